"""Finds email addresses, of any script: plain, with a tag, with a domain in Unicode or in punycode."""

import re
from collections.abc import Iterator

from toolfleet_registry.personal_data.detectors.scan import scanner
from toolfleet_registry.personal_data.found import FoundData
from toolfleet_registry.personal_data.searched_texts import SearchedTexts


class EmailDetector:
    """Finds email addresses with a local part of at most 64 characters, and a domain whose last label is no number.

    Not an address: what is between `://` and `@` in a URL, `git@host:path` of a clone, `name@1.2.3` of a package, and
    `logo@2x.png`. Quoted local parts and domains in brackets are not searched for.
    """

    def __init__(self) -> None:
        self._scanner = scanner(r"[0-9A-Za-z._%+'?\x80-\xff-]@[0-9A-Za-z?\x80-\xff][0-9A-Za-z.?\x80-\xff-]*")

    def find(self, texts: SearchedTexts) -> Iterator[FoundData]:
        """Yield each address, from its first character to its last."""
        if b"@" not in texts.data:
            return
        plain = texts.plain
        for match in self._scanner.finditer(texts.data):
            at = match.start() + 1
            domain = _DOMAIN.match(plain, at + 1, min(match.end(), at + 1 + _LONGEST_DOMAIN))
            local = _LOCAL.search(plain[max(at - _LONGEST_LOCAL - 1, 0) : at]) if domain else None
            if local is None or domain is None:
                continue
            start = at - len(_without_words(local.group()).lstrip(".'%+-"))
            if start < at and _is_address(plain, start, at, domain):
                yield FoundData("email", start, domain.end())


def _without_words(local: str) -> str:
    """Remove words before an address, in languages without blanks."""
    if local.isascii():
        return local
    dense = [match.end() for match in _DENSE.finditer(local)]
    return local[dense[-1] :] if dense and dense[-1] < len(local) else local


def _is_address(plain: str, start: int, at: int, domain: re.Match[str]) -> bool:
    name, written = plain[start:at], domain.group()
    before = plain[start - 1 : start] if start else ""
    if at - start > _LONGEST_LOCAL or ".." in name or before in {"@", "\\"}:
        return False
    if _VERSION.match(written) or _SCALED.fullmatch(written):
        return False
    if name == "git" and plain[domain.end() : domain.end() + 1] == ":":
        return False
    scheme = plain.rfind("://", max(0, start - _LONGEST_LOCAL), start)
    return scheme < 0 or bool(_AFTER_AUTHORITY.search(plain, scheme + 3, at))


_LONGEST_LOCAL, _LONGEST_DOMAIN = 64, 253
_LOCAL = re.compile(r"[\w.%+'-]*[\w%+'-]\Z")
_LABEL = r"[^\W_](?:[\w-]{0,61}[^\W_])?"
_DOMAIN = re.compile(
    rf"(?:{_LABEL}\.)+(?:xn--[0-9a-zA-Z-]{{2,59}}|[a-zA-Z]{{2,24}}|[^\W\d_\x00-\x7f]{{2,24}})(?![0-9a-zA-Z_]|-[0-9a-zA-Z])"
)
_DENSE = re.compile("[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uff00-\uffef]+")
_VERSION = re.compile(r"v?\d+\.\d+(?:\.|-|$)")
_SCALED = re.compile(r"[1-9]x\.(?:png|jpe?g|gif|webp|svg|avif)", re.IGNORECASE)
_AFTER_AUTHORITY = re.compile(r"[/?#\s\"'<>,;]")
