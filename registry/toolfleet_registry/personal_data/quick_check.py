r"""Checks in one pass over its JSON whether a value may have personal data: most have nothing that any detector starts from.

It never says that there is nothing where a detector would find something: each of its alternatives is a part of what a
detector's finding must have, and none of these parts can have a quote, a comma or a bracket of JSON in it. What it cannot
judge (other scripts, exponents, what is no JSON, what is deep) it leaves to the detectors.
"""

from json import JSONEncoder
from typing import Any

from toolfleet_registry.personal_data.detectors.scan import scanner

_MOST_BRACKETS = 100
_PARTS = (
    r"@",  # of an email
    r"://|(?i:www\.)",  # of a URL
    r"[A-Za-z]{2}[0-9]{2}",  # of an IBAN: country and check digits
    r"[0-9](?:[ .\-/()_]{0,3}[0-9]){6}",  # of a card's or a phone's number
    r"[0-9]\.[0-9]{1,3}\.[0-9]",  # of an address of IPv4
    r"::|[0-9A-Fa-f]:[0-9A-Fa-f]{1,4}:",  # of one of IPv6, or of a network card
    r"[0-9A-Fa-f]{2}-[0-9A-Fa-f]{2}-|[0-9A-Fa-f]{4}\.[0-9A-Fa-f]{4}\.",  # of a network card
    r"[0-9]e[+\-]?[0-9]",  # a number of many digits
    r"%[0-9A-Fa-f]{2}|\\\\[ux/]|&[#A-Za-z]",  # what `DecodedText` decodes; JSON doubles a backslash
)


class QuickCheck:
    """Checks values for all types of personal data at once; own patterns it does not know."""

    def __init__(self) -> None:
        self._parts = scanner("|".join(_PARTS))
        self._encode = JSONEncoder(ensure_ascii=False, check_circular=False).encode

    def rules_out(self, value: Any) -> bool:
        """Whether nothing in a JSON value can be personal data."""
        try:
            text = self._encode(value)
        except (TypeError, ValueError, RecursionError):
            return False
        if not text.isascii() or text.count("[") + text.count("{") > _MOST_BRACKETS:
            return False
        return self._parts.search(text.encode()) is None
