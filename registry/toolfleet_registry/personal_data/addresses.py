"""Finds addresses: of email, of pages (URL), of machines (IPv4 and IPv6) and of network cards.

Email addresses may be of any script, with a tag, with a domain in Unicode or in punycode. A URL has a scheme, `://` and a
host, or begins with `www.`. Machines' addresses are found in all their spellings.
"""

import re
from collections.abc import Iterator
from ipaddress import IPv6Address
from typing import Any

from toolfleet_registry.linear_patterns import compiled
from toolfleet_registry.personal_data.findings import EXTRA, FoundData, SearchedTexts, scanner


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


class UrlDetector:
    """Finds URLs, from the scheme to the end of path, query and fragment, with user, password, port and a host in brackets.

    Not part of it: punctuation at its end, a bracket or quote that was opened before it, and words after it in
    languages without blanks. A host alone (`example.com`) is none: it may be a file or a method.
    """

    def __init__(self) -> None:
        self._scanner = scanner(r"(?i)(?:[a-z][a-z0-9+.-]*://|\bwww\.)[^\x00-\x20\"<>`{}|^\\\x7f]+")

    def find(self, texts: SearchedTexts) -> Iterator[FoundData]:
        """Yield each URL, without the rest of its sentence."""
        if b"://" not in texts.data and b"www." not in texts.data.lower():
            return
        plain = texts.plain
        for match in self._scanner.finditer(texts.data):
            position, end = match.start(), match.end()
            position = max(position, plain.find("://", position, end) - _LONGEST_SCHEME)
            while position < end:  # several may follow one another without a blank
                written = _WRITTEN.match(plain, position, end)
                if written is None:
                    break
                start, stop = written.start(1), _end(plain, written)
                yield FoundData("url", start, stop)
                position = max(written.end(), stop)


def _end(plain: str, written: re.Match[str]) -> int:
    start, end = written.start(1), written.end()
    before = plain[start - 1 : start]
    if before in _AROUND and (after := plain.find(before, start, end)) >= 0:
        end = after
    if (words := _WORDS.search(plain, written.start("host"), end)) is not None:
        end = words.start() + 1
    while end > start and (plain[end - 1] in ".,;:!?'*\"…" or _is_closing(plain, start, end)):
        end -= 1
    return end


def _is_closing(plain: str, start: int, end: int) -> bool:
    """Return whether the last character closes a bracket that was opened before the URL."""
    opening = _OPENING.get(plain[end - 1])
    if opening is None or end - start > _LONGEST_COUNTED:
        return opening is not None and end - start > _LONGEST_COUNTED
    return plain.count(opening, start, end) < plain.count(plain[end - 1], start, end)


_AROUND = {"'", ",", ";"}  # a quote, or what parts the columns of a table
_LONGEST_SCHEME = 16
_OPENING = {")": "(", "]": "["}
_LONGEST_COUNTED = 4_000  # characters: brackets are counted again for each that stands at the end
_DENSE_SCRIPTS = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_NO_PART = (
    r"\s\"<>`{}|^\\\u3000-\u3003\u3008-\u3020\uff01-\uff0c\uff0e\uff1a-\uff1f\uff3b-\uff3d\uff5b-\uff65\u2018-\u201f«»"
)
_HOST = rf"(?:\[[0-9A-Fa-f:.%]+\]|(?:[0-9A-Za-z_-]|[^\W\x00-\x7f])[^{_NO_PART}/?#\[\]()@,;:!'*$&=+~]*)"
# A scheme has letters before it only where it is none, and a second URL begins behind a comma at most.
_WRITTEN = re.compile(
    rf"[^a-zA-Z]?((?:[a-zA-Z][a-zA-Z0-9+.-]{{1,15}}://(?:[^{_NO_PART}/?#@\[\]]{{1,200}}@)?|www\.)(?P<host>{_HOST})"
    rf"(?::\d{{1,5}})?(?:[/?#](?:(?![,;][a-zA-Z][a-zA-Z+]{{1,9}}://)[^{_NO_PART}])*)?)",
    re.IGNORECASE,
)
_WORDS = re.compile(rf"[0-9A-Za-z](?=[{_DENSE_SCRIPTS}])")


class IpDetector:
    """Finds every legal IP address but `::`, without its port, its brackets and the length of its network; with its zone.

    Four numbers may be a version as well. They are an address, unless something says otherwise: a `v`, a word such as
    "version" or "section" in one of nine languages, or the name of the member; `==`, `@` or the like before them; a
    name and a dash (`driver-1.2.3.4`), or a slash and `.0.0.0` at their end, as in browsers' names. An address of IPv6
    has a digit, and more than `1::2`, which is a slice; times and dates are none, for they have too few parts.
    """

    def __init__(self) -> None:
        self._dotted = scanner(r"\b[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}\b")
        self._no_address_after = compiled(_NO_ADDRESS_AFTER.encode(), extra=EXTRA)
        self._colons = _ColonScanner()

    def find(self, texts: SearchedTexts) -> Iterator[FoundData]:
        """Yield each address."""
        if texts.data.count(b".") >= _POINTS:
            for match in self._dotted.finditer(texts.data):
                if _is_ipv4(texts, match.start(), match.end(), self._no_address_after):
                    yield FoundData("ip", match.start(), match.end())
        for start, end in self._colons.runs(texts):
            yield from _ipv6(texts.plain, start, end)


class MacAddressDetector:
    """Six bytes with colons or dashes, or three pairs with points, as switches write them; and the eight bytes of an EUI-64.

    With dashes or points at least one digit is a letter. A longer row of bytes is a fingerprint.
    """

    def __init__(self) -> None:
        self._colons = _ColonScanner()
        self._others = scanner(
            r"\b(?:[0-9A-Fa-f]{2}(?:-[0-9A-Fa-f]{2}){5}|[0-9A-Fa-f]{4}\.[0-9A-Fa-f]{4}\.[0-9A-Fa-f]{4})\b"
        )

    def find(self, texts: SearchedTexts) -> Iterator[FoundData]:
        """Yield each address."""
        plain = texts.plain
        for match in self._others.finditer(texts.data) if _may_have_bytes(texts.data) else ():
            start, end = match.start(), match.end()
            is_longer = _BYTE_BEFORE.search(plain[max(start - 2, 0) : start]) or _BYTE_AFTER.match(plain, end)
            if _LETTER.search(plain, start, end) and not is_longer:
                yield FoundData("mac_address", start, end)
        for start, end in self._colons.runs(texts):
            if end - start in {17, 23} and _BYTES.fullmatch(plain, start, end):
                yield FoundData("mac_address", start, end)


class _ColonScanner:
    """Finds runs of hexadecimal digits with at least two colons, except times of day."""

    def __init__(self) -> None:
        self._scanner = scanner(r"[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*")

    def runs(self, texts: SearchedTexts) -> list[tuple[int, int]]:
        return texts.once("colons", self._runs)

    def _runs(self, texts: SearchedTexts) -> list[tuple[int, int]]:
        if b":" not in texts.data:
            return []
        spans = (match.span() for match in self._scanner.finditer(texts.data))
        return [
            _edges(texts.plain, start, end)
            for start, end in spans
            if end - start > _LONGEST_TIME or _is_short(texts, start, end)
        ]


def _may_have_bytes(data: bytes) -> bool:
    return data.count(b"-") >= _DASHES or data.count(b".") >= _POINTS_OF_SWITCHES


def _is_short(texts: SearchedTexts, start: int, end: int) -> bool:
    return "::" in texts.plain[start:end]


def _is_ipv4(texts: SearchedTexts, start: int, end: int, no_address_after: Any) -> bool:
    plain = texts.plain
    if any(int(part) > _MOST or (part[0] == "0" and part != "0") for part in plain[start:end].split(".")):
        return False
    if _GOES_ON.match(plain, end):
        return False
    before = texts.before(start)
    if no_address_after.search(before.encode("utf-8", "replace")):
        return False
    return not (plain.endswith(".0.0.0", start, end) and _PRODUCT.search(before))


def _ipv6(plain: str, start: int, end: int) -> Iterator[FoundData]:
    text = plain[start:end]
    groups = text.count(":")
    if not (groups >= _COLONS_OF_ALL or "::" in text) or end - start > _LONGEST or _BYTES.fullmatch(text):
        return
    if not (_DIGIT.search(text) and (_LONG_GROUP.search(text) or text == "::1")):
        return
    if text == "::1" and _INDEXED.search(plain[max(start - 2, 0) : start]):
        return
    try:
        IPv6Address(text)
    except ValueError:
        return
    zone = _ZONE.match(plain, end)
    yield FoundData("ip", start, zone.end() if zone else end)


def _edges(plain: str, start: int, end: int) -> tuple[int, int]:
    """Return the start and end of a run of digits, colons and points, without adjacent words or punctuation."""
    if start and plain[start - 1].isalnum() and plain[start - 1].isascii():
        start = plain.index(":", start, end) + 1 if plain[start] != ":" else start
    if plain.startswith(":", start) and not plain.startswith("::", start):
        start += 1
    while end > start and plain[end - 1] in ".:" and not plain.endswith("::", start, end):
        end -= 1
    if end < len(plain) and plain[end].isalnum() and plain[end].isascii():
        end = start
    return start, end


_POINTS, _POINTS_OF_SWITCHES, _DASHES = 3, 2, 5  # of one address
_LONGEST_TIME = 12  # characters: 12:34:56.789
_MOST = 255
_COLONS_OF_ALL = 7
_LONGEST = 45  # characters, with an IPv4 address at the end
_BYTES = re.compile(r"[0-9A-Fa-f]{2}(?::[0-9A-Fa-f]{2}){5}(?:(?::[0-9A-Fa-f]{2}){2})?")
_BYTE_BEFORE = re.compile(r"[0-9A-Za-z][-.]\Z")
_BYTE_AFTER = re.compile(r"[-.][0-9A-Za-z]")
_LETTER = re.compile(r"[A-Fa-f]")
_DIGIT = re.compile(r"[0-9]")
_LONG_GROUP = re.compile(r"[0-9A-Fa-f]{3}")
_INDEXED = re.compile(r"[\w)\]]\[\Z")
_ZONE = re.compile(r"%[0-9A-Za-z][0-9A-Za-z._-]{0,15}(?<![.-])")
_GOES_ON = re.compile(r"\.[0-9A-Za-z]|[-+_][A-Za-z]")
_NO_ADDRESS_AFTER = (
    r"(?i)(?:[0-9a-z_]\.|\bv\.? ?|[=~<>!]= ?|[~^]|[0-9a-z]@|[a-z][-_]|§ ?|(?:バージョン|版本|章|节)[^0-9a-z]{0,4}"
    r"|(?:^|\PL)(?:versions?|versión|versão|versione|wersj[aię]|версия|версии|ver|rv|release|rev|build|firmware|section|chapter|abschnitt"
    r"|kapitel|sección|capítulo|chapitre|rozdział|раздел|глава)[^0-9a-z]{0,4})$"
)
_PRODUCT = re.compile(r"[A-Za-z]/\Z")
