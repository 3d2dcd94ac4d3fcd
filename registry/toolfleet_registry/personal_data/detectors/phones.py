"""Finds phone numbers by the plans of their countries, which `phonenumbers` has: with `+` those of all, nationally those of some."""

import re
from collections.abc import Iterator, Sequence

from toolfleet_registry.personal_data.detectors.call_words import CallWords
from toolfleet_registry.personal_data.detectors.digit_runs import DigitRun, DigitRunScanner
from toolfleet_registry.personal_data.detectors.number_plans import NumberPlan, NumberPlans
from toolfleet_registry.personal_data.found import FoundData
from toolfleet_registry.personal_data.searched_texts import SearchedTexts


class PhoneDetector:
    """Numbers that exist in a country's plan, written as one writes them.

    `+49 171 …`: of every country, and `0049 171 …`. As at home: of `regions` only (ISO 3166, such as `DE`), if it begins with
    the 0 or 8 of its country, or stands in groups where a country has none, or is a mobile's. Digits alone without that 0 count after a word such as "phone" or
    "mobile", in one of nine languages, or in a member with such a name; or if there are eleven of them, as in China.
    """

    def __init__(self, regions: Sequence[str]) -> None:
        self._scanner = DigitRunScanner()
        self._plans = NumberPlans(regions)
        self._called = CallWords()

    def find(self, texts: SearchedTexts) -> Iterator[FoundData]:
        """Yield each number, with its brackets and its `+`, without an extension."""
        for run in self._scanner.runs(texts):
            yield from self._phones(texts, run)

    def _phones(self, texts: SearchedTexts, run: DigitRun) -> Iterator[FoundData]:
        if run.is_bare:
            if self._is_bare_phone(texts, run.start, texts.plain[run.start : run.end]):
                yield FoundData("phone", run.start, run.end)
            return
        for first in range(len(run.parts)):
            if not run.begins_at(first):
                continue
            for start, end, following in run.windows(first):
                is_all = run.is_apart(first, following)
                if end - start <= _LONGEST and (start := self._begin(texts, start, end, is_all=is_all)) >= 0:
                    yield FoundData("phone", start, end)
                    break

    def _begin(self, texts: SearchedTexts, start: int, end: int, *, is_all: bool) -> int:
        """Return where a number starts that ends there; -1 if it is none.

        A regional number must be all digits of its run: `is_all`.
        """
        text = texts.plain[start:end]
        if text.startswith("(") and text.count("(") > text.count(")"):
            text, start = text[1:], start + 1
        digits = _OTHER.sub("", text)
        if not _SHORTEST_NUMBER <= len(digits) <= _MOST_DIGITS or text.count("(") != text.count(")"):
            return -1
        if text.startswith("+"):
            return start if self._plans.is_international(text) else -1
        if text.startswith("00"):
            return start if self._plans.is_international(f"+{text[2:]}") else -1
        is_national = is_all and _GROUPED.fullmatch(text) and self._is_national(texts, start, text, digits)
        return start if is_national else -1

    def _is_bare_phone(self, texts: SearchedTexts, start: int, digits: str) -> bool:
        if not _SHORTEST_NUMBER <= len(digits) <= _MOST_DIGITS:
            return False
        if digits.startswith("00"):
            return self._called.stand_before(texts, start) and self._plans.is_international(f"+{digits[2:]}")
        if digits[0] == "0" and len(digits) in _USUAL_LENGTHS:
            return any(plan.begins(digits) and plan.is_valid(digits) for plan in self._plans.of(digits))
        if len(digits) == _AS_LONG_AS_IN_CHINA and any(
            plan.prefix != "1" and plan.is_long_mobile(digits) and plan.is_valid(digits)
            for plan in self._plans.of(digits)
        ):
            return True
        return self._called.stand_before(texts, start) and any(plan.is_valid(digits) for plan in self._plans.of(digits))

    def _is_national(self, texts: SearchedTexts, start: int, text: str, digits: str) -> bool:
        plans = self._plans.of(digits)
        if not plans:
            return False
        is_called = self._called.stand_before(texts, start)
        return any((is_called or _is_written(plan, text)) and plan.is_valid(digits) for plan in plans)


def _is_written(plan: NumberPlan, text: str) -> bool:
    """Return whether the grouping is that of a phone number, not of an amount or an order number."""
    if plan.prefix == "1":
        return bool(_AMERICAN.fullmatch(text))
    if "." in text:
        return bool(_IN_PAIRS.fullmatch(text))
    if plan.begins(text):
        return not _POST_CODE.fullmatch(text)
    return bool(_IN_GROUPS.fullmatch(text)) and (not plan.prefix or plan.is_long_mobile(_OTHER.sub("", text)))


_SHORTEST_NUMBER, _MOST_DIGITS, _LONGEST = 7, 17, 30
_AS_LONG_AS_IN_CHINA = 11
_USUAL_LENGTHS = range(10, 13)  # with the 0; what has 8 or 13 digits stands on products
_OTHER = re.compile(r"[^0-9]")
_IN_PAIRS = re.compile(r"\(?0\d{1,3}\)?(?:[./ ]\d{2,3}){2,4}\.\d\d", re.ASCII)
_POST_CODE = re.compile(r"(?:\d{5}|\d{3})-\d{4}", re.ASCII)  # American, Japanese
# An area's code or a first digit, and groups of at least two digits.
_GROUPED = re.compile(r"\(?(?:[18]|\d{2,6})(?:(?:\) ?[-./]? ?| ?[-./] ?| )\(?\d{2,8}){1,5}", re.ASCII)
# 3-3-3, 3-3-4, 3-4-4, 2-3-4, 3-2-2-2, 2-3-2-2, 3-3-2-2: what is grouped otherwise is rarely a phone's.
_IN_GROUPS = re.compile(
    r"\(?(?:\d{3}_(?:\d{3}_\d{3,4}|\d{4}_\d{4}|\d{2}_\d{2}_\d{2}|\d{3}_\d{2}_\d{2})|\d{2}_\d{3}_(?:\d{4}|\d{2}_\d{2}))".replace(
        "_", r"(?:\) ?|[ -])"
    ),
    re.ASCII,
)
_AMERICAN = re.compile(r"(?:1[ .-]?)?(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}", re.ASCII)
