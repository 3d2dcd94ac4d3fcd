"""Finds addresses of machines: of IPv4 and IPv6, in all their spellings, and of network cards."""

import re
from collections.abc import Iterator
from ipaddress import IPv6Address
from typing import Any

from toolfleet_registry.linear_patterns import compiled
from toolfleet_registry.personal_data.detectors.scan import EXTRA, scanner
from toolfleet_registry.personal_data.found import FoundData
from toolfleet_registry.personal_data.searched_texts import SearchedTexts


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
