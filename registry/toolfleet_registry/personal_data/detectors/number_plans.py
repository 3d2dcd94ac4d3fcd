"""Knows which phone numbers exist, by the metadata of the library `phonenumbers`: looked at cheaply first, then judged by it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from toolfleet_registry.personal_data.detectors.scan import EXTRA


class NumberPlans:
    """The phone number plans of all countries for `+`, and of `regions` for numbers as dialled there.

    Raises `ValueError` for an unknown region, and if the library is not installed.
    """

    def __init__(self, regions: Sequence[str]) -> None:
        self._library = _library()
        self.national = tuple(_plan(self._library, region) for region in regions)

    def of(self, digits: str) -> list["NumberPlan"]:
        """Return the plans in which these digits may be a number, with or without the prefix."""
        return [plan for plan in self.national if plan.prefixed(digits) or plan.has(digits)]

    def is_international(self, text: str) -> bool:
        """Return whether a text that begins with `+` is an existing number."""
        return self.international(text) is not None

    def international(self, text: str) -> str | None:
        """The number as E.164 writes it, for what begins with `+`; `None` if there is none such."""
        try:
            number = self._library.parse(text, None)
        except self._library.NumberParseException:
            return None
        if not self._library.is_valid_number(number):
            return None
        return str(self._library.format_number(number, self._library.PhoneNumberFormat.E164))

    def e164(self, text: str) -> str | None:
        """Return the E.164 form of an international number, or of the first region whose number the text is."""
        if text.startswith(("+", "00")):
            return self.international(text if text[0] == "+" else f"+{text[2:]}")
        return next((found for plan in self.national if (found := plan.e164(text)) is not None), None)


@dataclass(frozen=True, slots=True)
class NumberPlan:
    """The number plan of one region: `prefix` before an area's code, as the 0 in Germany; empty if there is none."""

    region: str
    prefix: str
    _known: re.Pattern[str]
    _mobile: re.Pattern[str]
    _library: Any

    def prefixed(self, digits: str) -> bool:
        """Return whether the digits begin with the prefix, and continue as a number of this region may."""
        return (
            bool(self.prefix)
            and digits.startswith(self.prefix)
            and bool(self._known.fullmatch(digits, len(self.prefix)))
        )

    def begins(self, text: str) -> bool:
        """Return whether a text, as written, begins with the prefix."""
        return bool(self.prefix) and text.lstrip("(").startswith(self.prefix)

    def has(self, digits: str) -> bool:
        """Return whether the digits may be a number of this region without the prefix."""
        return bool(self._known.fullmatch(digits))

    def is_long_mobile(self, digits: str) -> bool:
        """Return whether the digits are a mobile number of at least ten digits, with or without the prefix."""
        return len(digits) >= _LONG and bool(
            self._mobile.fullmatch(digits.removeprefix(self.prefix)) or self._mobile.fullmatch(digits)
        )

    def is_valid(self, digits: str) -> bool:
        """Return whether the number exists."""
        return self.e164(digits) is not None

    def e164(self, text: str) -> str | None:
        """The number as E.164 writes it; `None` if it does not exist here."""
        try:
            number = self._library.parse(text, self.region)
        except self._library.NumberParseException:
            return None
        if not self._library.is_valid_number_for_region(number, self.region):
            return None
        return str(self._library.format_number(number, self._library.PhoneNumberFormat.E164))


def _plan(library: ModuleType, region: str) -> NumberPlan:
    metadata = library.PhoneMetadata.metadata_for_region(region) if region.isupper() else None
    if metadata is None:
        raise ValueError(f"{region!r} is no region of phone numbers: write two capitals, such as 'DE'.")
    kinds = (getattr(metadata, name) for name in _KINDS)
    patterns = [kind.national_number_pattern for kind in kinds if kind is not None and kind.national_number_pattern]
    mobile = metadata.mobile.national_number_pattern if metadata.mobile else None
    known = re.compile("|".join(patterns), re.ASCII)
    return NumberPlan(region, metadata.national_prefix or "", known, re.compile(mobile or "(?!)", re.ASCII), library)


def _library() -> ModuleType:
    try:
        import phonenumbers  # noqa: PLC0415 - an extra: few agents need it
    except ImportError as exc:
        raise ValueError(f"Finding phone numbers needs number plans: install 'toolfleet[{EXTRA}]'.") from exc
    return phonenumbers


_LONG = 10  # digits
_KINDS = (
    "fixed_line", "mobile", "toll_free", "premium_rate", "shared_cost", "personal_number", "voip", "pager", "uan", "voicemail",
)  # fmt: skip
