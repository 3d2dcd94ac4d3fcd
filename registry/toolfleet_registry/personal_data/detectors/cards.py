"""Finds numbers of payment cards: an issuer's beginning, its length, and a last digit that is right (Luhn)."""

import re
from collections.abc import Iterator

from toolfleet_registry.personal_data.detectors.digit_runs import DigitRun, DigitRunScanner
from toolfleet_registry.personal_data.found import FoundData
from toolfleet_registry.personal_data.searched_texts import SearchedTexts


class CardDetector:
    """A card number of 12 to 19 digits: without separators, or in the groups that stand on a card, with the same blank, dash, point, slash or `_` between them.

    One of ten numbers of that length with such a beginning is right by chance; no text says which.
    """

    def __init__(self) -> None:
        self._scanner = DigitRunScanner()

    def find(self, texts: SearchedTexts) -> Iterator[FoundData]:
        """Yield each card."""
        for run in self._scanner.runs(texts):
            yield from _cards(texts.plain, run)


def _cards(plain: str, run: DigitRun) -> Iterator[FoundData]:
    if plain[run.start] in "01789+" or run.end - run.start < _SHORTEST:
        return
    number = first = 0  # what begins amid other groups of digits is part of a longer number
    while number < len(run.parts):
        if number == first or run.begins_at(number):
            for start, end, following in run.windows(number):
                begin = start + plain.startswith("(", start)
                if end - begin <= _LONGEST and _is_card(plain[begin:end]):
                    yield FoundData("credit_card", begin, end)
                    number, first = following - 1, following
                    break
        number += 1


def _is_card(text: str) -> bool:
    digits = text.translate(_WITHOUT_MARKS)
    return bool(_WRITTEN.fullmatch(text) and _ISSUED.fullmatch(digits)) and _luhn(digits) % 10 == 0


def _luhn(digits: str) -> int:
    values = [int(digit) for digit in reversed(digits)]
    return sum(values[::2]) + sum(_DOUBLED[value] for value in values[1::2])


_SHORTEST, _LONGEST = 12, 23  # characters: 19 digits and four blanks
_WITHOUT_MARKS = str.maketrans("", "", " -./_")
_WRITTEN = re.compile(
    r"\d{12,19}|\d{4}([ ./_-])\d{4}\1\d{4}\1\d{4}(?:\1?\d{1,3})?|\d{4}([ ./_-])\d{6}\2\d{4,5}", re.ASCII
)
# Visa, Mastercard, American Express, Discover, UnionPay, JCB, Diners Club, Maestro, Mir.
_ISSUED = re.compile(
    r"4(?:\d{12}|\d{15}|\d{18})|5[1-5]\d{14}|2(?:22[1-9]|2[3-9]\d|[3-6]\d\d|7[01]\d|720)\d{12}|3[47]\d{13}"
    r"|(?:6011|64[4-9]\d|65\d\d|62\d\d|35(?:2[89]|[3-8]\d))\d{12,15}|3(?:0[0-5]|[689]\d)\d{11,16}"
    r"|(?:50|5[6-9]|6\d)(?:\d{10}|\d{14,17})|220[0-4]\d{12,15}|2131\d{11}",
    re.ASCII,
)
_DOUBLED = (0, 2, 4, 6, 8, 1, 3, 5, 7, 9)
