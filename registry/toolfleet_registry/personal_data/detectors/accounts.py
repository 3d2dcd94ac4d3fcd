"""Finds numbers of bank accounts (IBAN): a country, its length, and check digits that are right."""

import re
from collections.abc import Iterator

from toolfleet_registry.personal_data.detectors.scan import scanner
from toolfleet_registry.personal_data.found import FoundData
from toolfleet_registry.personal_data.searched_texts import SearchedTexts


class IbanDetector:
    """Finds IBANs in upper or lower case, without blanks, with single blanks between any characters, or with dashes."""

    def __init__(self) -> None:
        self._scanner = scanner(r"\b[A-Za-z]{2}[0-9]{2}")

    def find(self, texts: SearchedTexts) -> Iterator[FoundData]:
        """Yield each account."""
        if texts.digits < _CHECK_DIGITS:
            return
        for match in self._scanner.finditer(texts.data):
            start = match.start()
            length = _LENGTHS.get(texts.plain[start : start + 2].upper())
            if length is not None and (end := _end(texts.plain, start, length)) is not None:
                yield FoundData("iban", start, end)


def _end(plain: str, start: int, length: int) -> int | None:
    """Return the end of as many letters and digits as the country's numbers have, if the checksum is right."""
    written = _WRITTEN.match(plain, start, start + 2 * length)
    if written is None:
        return None
    places = [place for place in range(start, written.end()) if plain[place] not in " -"]
    if len(places) < length:
        return None
    end = places[length - 1] + 1
    if end < len(plain) and plain[end].isalnum() and plain[end].isascii():
        return None
    account = "".join(plain[place] for place in places[:length])
    is_right = int("".join(str(int(char, 36)) for char in account[4:] + account[:4])) % 97 == 1
    return end if is_right else None


_CHECK_DIGITS = 2
_WRITTEN = re.compile(r"[0-9A-Za-z](?:[ -]?[0-9A-Za-z])*", re.ASCII)
# Of the registry of ISO 13616, in characters.
_LENGTHS = {
    "AD": 24, "AE": 23, "AL": 28, "AT": 20, "AZ": 28, "BA": 20, "BE": 16, "BG": 22, "BH": 22, "BI": 27, "BR": 29, "BY": 28,
    "CH": 21, "CR": 22, "CY": 28, "CZ": 24, "DE": 22, "DJ": 27, "DK": 18, "DO": 28, "EE": 20, "EG": 29, "ES": 24, "FI": 18,
    "FK": 18, "FO": 18, "FR": 27, "GB": 22, "GE": 22, "GI": 23, "GL": 18, "GR": 27, "GT": 28, "HR": 21, "HU": 28, "IE": 22,
    "IL": 23, "IQ": 23, "IS": 26, "IT": 27, "JO": 30, "KW": 30, "KZ": 20, "LB": 28, "LC": 32, "LI": 21, "LT": 20, "LU": 20,
    "LV": 21, "LY": 25, "MC": 27, "MD": 24, "ME": 22, "MK": 19, "MN": 20, "MR": 27, "MT": 31, "MU": 30, "NI": 28, "NL": 18,
    "NO": 15, "OM": 23, "PK": 24, "PL": 28, "PS": 29, "PT": 25, "QA": 29, "RO": 24, "RS": 22, "RU": 33, "SA": 24, "SC": 31,
    "SD": 18, "SE": 24, "SI": 19, "SK": 24, "SM": 27, "SO": 23, "ST": 25, "SV": 28, "TL": 23, "TN": 24, "TR": 26, "UA": 29,
    "VA": 22, "VG": 24, "XK": 20, "YE": 30,
}  # fmt: skip
