"""Finds numbers of persons: of bank accounts (IBAN), of payment cards, and of phones, by the plans of `phonenumbers`.

Cards and phones are looked for in runs of at least seven digits, of which each part may begin or end a number. A run goes
on over points, dashes, slashes, brackets and up to three of them, and over one `_`; a part begins and ends at a blank.
Dates are no parts. What touches a run may say that it is none: letters, a decimal point, a sign of a currency.

An account is a country, its length, and check digits that are right; a card is an issuer's beginning, its length, and a
last digit that is right (Luhn); a phone fits the plan of its country, which `phonenumbers` has: with `+` those of all,
nationally those of some.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from toolfleet_registry.linear_patterns import compiled
from toolfleet_registry.personal_data.findings import EXTRA, FoundData, SearchedTexts, scanner

_LONG = 10  # digits

_KINDS = (
    "fixed_line", "mobile", "toll_free", "premium_rate", "shared_cost", "personal_number", "voip", "pager", "uan", "voicemail",
)  # fmt: skip

# In English, German, French, Spanish, Polish, Russian, Japanese, Chinese, Italian and Portuguese.
_WORDS = (
    r"(?i)(?:(?:^|\PL)(?:tel|mob|cell|call|fax|dial|sms|ruf|t[ée]l|kom|тел|моб)\PL|phone|mobile|cell|call|whatsapp|telefon|handy|mobil"
    r"|anruf|rufnummer|t[ée]l[ée]phone|portable|appel|joignable|tel[ée]fono|m[óo]vil|celular|ll[áa]ma|komórk|zadzwoń|dzwoń"
    r"|телефон|мобильн|звони|電話|携帯|电话|手机|致电|cellulare|telefone|telem[óo]vel)"
)

MOST_PARTS = 7  # that one number is written in

_FEWEST_DIGITS, _MOST_DIGITS = 7, 19

_PLAIN_EDGES = frozenset(("", "\n", '"', "(", ")", ",", ";"))

_EDGE = r"(?:\b|x[0-9]{1,6}\b)"  # `x12` is an extension in America

_MARKS = r"(?:[ .\-/()]{1,3}|_)"

_GAP = rf"{_MARKS}?"

_RUN = rf"(?:\+ ?\(?|\(|\b)[0-9](?:{_GAP}[0-9]){{6,}}{_EDGE}"

_GROUPS = "|".join(  # seven digits or more, the first of them in a group of so many
    rf"[0-9]{{{count}}}{_MARKS}[0-9](?:{_GAP}[0-9]){{{6 - count},}}" for count in range(1, 7)
)

_MEANT = (
    rf"\+ ?\(?[0-9](?:{_GAP}[0-9]){{6,}}{_EDGE}|(?:\(|\b)(?:{_GROUPS}|[0-9]{{7,}}{_MARKS}[0-9](?:{_GAP}[0-9])*"
    rf"|0[0-9]{{6,}}|[0-9]{{11}}|[2-6][0-9]{{11,18}}){_EDGE}"
)

_PART = re.compile(r"(?:\+ ?)?[^ ]+|  +")

# Several blanks, or a date.
_NO_PART = re.compile(
    r" +|\d{4}([-/.])\d{1,2}\1\d{1,4}|\d{1,2}([-/.])\d{1,2}\2(?:19|20)\d\d(?:-\d+)?|(?:19|20)\d\d-\d{5,}|(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:[0-2]\d|3[01])"
)

_NO_NUMBER_AFTER = re.compile(r"(?:[0-9A-Za-z_][-_./+]|[0-9]:|[#$€£¥.]|[#$€£¥] |[A-Za-z][0-9]{1,4} )\Z")

_NO_NUMBER_BEFORE = re.compile(r"(?!x[0-9]{1,6}\b)(?:[._-]?[0-9A-Za-z]|[@%°]| ?(?:[$€£¥]|zł\b|kB\b|px\b)|:[0-9])")

_CHECK_DIGITS = 2

_WRITTEN_ACCOUNT = re.compile(r"[0-9A-Za-z](?:[ -]?[0-9A-Za-z])*", re.ASCII)

# Of the registry of ISO 13616, in characters.
_ACCOUNT_LENGTHS = {
    "AD": 24, "AE": 23, "AL": 28, "AT": 20, "AZ": 28, "BA": 20, "BE": 16, "BG": 22, "BH": 22, "BI": 27, "BR": 29, "BY": 28,
    "CH": 21, "CR": 22, "CY": 28, "CZ": 24, "DE": 22, "DJ": 27, "DK": 18, "DO": 28, "EE": 20, "EG": 29, "ES": 24, "FI": 18,
    "FK": 18, "FO": 18, "FR": 27, "GB": 22, "GE": 22, "GI": 23, "GL": 18, "GR": 27, "GT": 28, "HR": 21, "HU": 28, "IE": 22,
    "IL": 23, "IQ": 23, "IS": 26, "IT": 27, "JO": 30, "KW": 30, "KZ": 20, "LB": 28, "LC": 32, "LI": 21, "LT": 20, "LU": 20,
    "LV": 21, "LY": 25, "MC": 27, "MD": 24, "ME": 22, "MK": 19, "MN": 20, "MR": 27, "MT": 31, "MU": 30, "NI": 28, "NL": 18,
    "NO": 15, "OM": 23, "PK": 24, "PL": 28, "PS": 29, "PT": 25, "QA": 29, "RO": 24, "RS": 22, "RU": 33, "SA": 24, "SC": 31,
    "SD": 18, "SE": 24, "SI": 19, "SK": 24, "SM": 27, "SO": 23, "ST": 25, "SV": 28, "TL": 23, "TN": 24, "TR": 26, "UA": 29,
    "VA": 22, "VG": 24, "XK": 20, "YE": 30,
}  # fmt: skip

_SHORTEST_CARD, _LONGEST_CARD = 12, 23  # characters: 19 digits and four blanks

_WITHOUT_MARKS = str.maketrans("", "", " -./_")

_WRITTEN_CARD = re.compile(
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

_SHORTEST_PHONE, _MOST_PHONE_DIGITS, _LONGEST_PHONE = 7, 17, 30

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
        """Return the number as E.164 writes it, for what begins with `+`; `None` if there is none such."""
        return _e164(self._library, text, None)

    def e164(self, text: str) -> str | None:
        """Return the E.164 form of an international number, or of the first region with such a number."""
        if text.startswith(("+", "00")):
            return self.international(text if text[0] == "+" else f"+{text[2:]}")
        return next((found for plan in self.national if (found := plan.e164(text)) is not None), None)


def _library() -> ModuleType:
    try:
        import phonenumbers  # an extra: few agents need it
    except ImportError as exc:
        raise ValueError(f"Finding phone numbers needs number plans: install 'toolfleet[{EXTRA}]'.") from exc
    return phonenumbers


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
        """Return the number as E.164 writes it; `None` if it does not exist here."""
        return _e164(self._library, text, self.region)


def _e164(library: Any, text: str, region: str | None) -> str | None:
    """Return the number as E.164 writes it; `None` if it does not exist in this region, or, without one, anywhere."""
    try:
        number = library.parse(text, region)
    except library.NumberParseException:
        return None
    exists = library.is_valid_number(number) if region is None else library.is_valid_number_for_region(number, region)
    return str(library.format_number(number, library.PhoneNumberFormat.E164)) if exists else None


def _plan(library: ModuleType, region: str) -> NumberPlan:
    metadata = library.PhoneMetadata.metadata_for_region(region) if region.isupper() else None
    if metadata is None:
        raise ValueError(f"{region!r} is no region of phone numbers: write two capitals, such as 'DE'.")
    kinds = (getattr(metadata, name) for name in _KINDS)
    patterns = [kind.national_number_pattern for kind in kinds if kind is not None and kind.national_number_pattern]
    mobile = metadata.mobile.national_number_pattern if metadata.mobile else None
    known = re.compile("|".join(patterns), re.ASCII)
    return NumberPlan(region, metadata.national_prefix or "", known, re.compile(mobile or "(?!)", re.ASCII), library)


class CallWords:
    """Words in front of digits that announce a phone number, in ten languages: "mobile", "Tel.", "llámame", and such names of members."""

    def __init__(self) -> None:
        self._anywhere = compiled(_WORDS.encode(), extra=EXTRA)
        self._before = compiled(f"{_WORDS}[^0-9!?\u3002\uff01\uff1f]{{0,20}}$".encode(), extra=EXTRA)

    def are_in(self, texts: SearchedTexts) -> bool:
        """Return whether there is such a word anywhere: in most texts there is none, and digits need no second check."""
        return texts.once("call_words", lambda texts: self._anywhere.search(_bytes(texts.plain)) is not None)

    def stand_before(self, texts: SearchedTexts, start: int) -> bool:
        """Return whether there is such a word before this place, in the same sentence and at most 20 characters away; or in the member's name."""
        return self.are_in(texts) and self._before.search(_bytes(texts.before(start))) is not None


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class DigitRun:
    """The start and end of the parts of a run. `None` is a date or several blanks: no number extends over it.

    Of a part that belongs to something else, such as a word, only its edge is there: no number starts or ends in it.
    """

    start: int
    end: int
    parts: tuple[tuple[int, int] | None, ...]
    is_bare: bool = False
    """Digits, and nothing else."""

    def windows(self, first: int) -> Iterator[tuple[int, int, int]]:
        """Yield windows of one part to seven, from the part `first`: start, end, and the number of the next part; the longest first."""
        ends = list[tuple[int, int]]()
        for number in range(first, min(first + MOST_PARTS, len(self.parts))):
            part = self.parts[number]
            if part is None:
                break
            ends.append((part[1], number + 1))
        begin = self.parts[first]
        if begin is not None:
            for end, following in reversed(ends):
                yield begin[0], end, following

    def begins_at(self, first: int) -> bool:
        """Return whether no other part is directly before this one."""
        return first == 0 or self.parts[first - 1] is None

    def is_apart(self, first: int, following: int) -> bool:
        """Return whether no other part is directly next to these."""
        return self.begins_at(first) and (following == len(self.parts) or self.parts[following] is None)


class DigitRunScanner:
    """Finds the runs of some texts.

    Digits alone without a leading 0 may be the number of anything. Without a word that announces a phone number they
    are skipped at once, except for those with as many digits as a card or a Chinese mobile has: in ordinary data that
    is nearly all.
    """

    def __init__(self) -> None:
        self._all = scanner(_RUN)
        self._some = scanner(_MEANT)
        self._call_words = CallWords()

    def runs(self, texts: SearchedTexts) -> list[DigitRun]:
        """Return each run that may contain a number."""
        return texts.once("digit runs", lambda texts: list(self._runs(texts)))

    def _runs(self, texts: SearchedTexts) -> Iterator[DigitRun]:
        if texts.digits < _FEWEST_DIGITS:
            return
        plain = texts.plain
        scanned = self._all if self._call_words.are_in(texts) else self._some
        for match in scanned.finditer(texts.data):
            start, end = match.span()
            end = plain.rfind("x", start, end) if plain.find("x", start, end) > 0 else end  # an extension
            begin = start + plain.startswith("(", start)
            if plain[begin:end].isdigit():  # most are, and most of these are numbers of orders, records, milliseconds
                if _is_number(plain, begin, end):
                    yield DigitRun(begin, end, ((begin, end),), is_bare=True)
                continue
            parts = tuple(
                None if _NO_PART.fullmatch(plain, part.start(), part.end()) else part.span()
                for part in _PART.finditer(plain, start, end)
            )
            parts = _trimmed(plain, parts)
            if any(parts):
                yield DigitRun(start, end, parts)


def _is_number(plain: str, start: int, end: int) -> bool:
    """Return whether digits alone may be a number: they are not too many, not a date, and not part of something else."""
    if end - start > _MOST_DIGITS or (end - start == 8 and _NO_PART.fullmatch(plain, start, end)):  # noqa: PLR2004 - yyyymmdd
        return False
    if plain[start - 1 : start] in _PLAIN_EDGES and plain[end : end + 1] in _PLAIN_EDGES:
        return True  # nearly all
    return not (_NO_NUMBER_AFTER.search(plain[max(start - 6, 0) : start]) or _NO_NUMBER_BEFORE.match(plain, end))


def _trimmed(plain: str, parts: tuple[tuple[int, int] | None, ...]) -> tuple[tuple[int, int] | None, ...]:
    """Empty the first part if the text before it says that it is no number, and the last part by the text after it."""
    first, last = parts[0], parts[-1]
    if first is not None and _NO_NUMBER_AFTER.search(plain[max(first[0] - 6, 0) : first[0]]):
        parts = ((first[1], first[1]), *parts[1:])
    if last is not None and last[0] < last[1] and _NO_NUMBER_BEFORE.match(plain, last[1]):
        parts = (*parts[:-1], (last[0], last[0]))
    return parts


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
            length = _ACCOUNT_LENGTHS.get(texts.plain[start : start + 2].upper())
            if length is not None and (end := _account_end(texts.plain, start, length)) is not None:
                yield FoundData("iban", start, end)


def _account_end(plain: str, start: int, length: int) -> int | None:
    """Return the end of as many letters and digits as the country's numbers have, if the checksum is right."""
    written = _WRITTEN_ACCOUNT.match(plain, start, start + 2 * length)
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
    if plain[run.start] in "01789+" or run.end - run.start < _SHORTEST_CARD:
        return
    number = first = 0  # what begins amid other groups of digits is part of a longer number
    while number < len(run.parts):
        if number == first or run.begins_at(number):
            for start, end, following in run.windows(number):
                begin = start + plain.startswith("(", start)
                if end - begin <= _LONGEST_CARD and _is_card(plain[begin:end]):
                    yield FoundData("credit_card", begin, end)
                    number, first = following - 1, following
                    break
        number += 1


def _is_card(text: str) -> bool:
    digits = text.translate(_WITHOUT_MARKS)
    return bool(_WRITTEN_CARD.fullmatch(text) and _ISSUED.fullmatch(digits)) and _luhn(digits) % 10 == 0


def _luhn(digits: str) -> int:
    values = [int(digit) for digit in reversed(digits)]
    return sum(values[::2]) + sum(_DOUBLED[value] for value in values[1::2])


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
                if end - start <= _LONGEST_PHONE and (start := self._begin(texts, start, end, is_all=is_all)) >= 0:
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
        if not _SHORTEST_PHONE <= len(digits) <= _MOST_PHONE_DIGITS or text.count("(") != text.count(")"):
            return -1
        if text.startswith("+"):
            return start if self._plans.is_international(text) else -1
        if text.startswith("00"):
            return start if self._plans.is_international(f"+{text[2:]}") else -1
        is_national = is_all and _GROUPED.fullmatch(text) and self._is_national(texts, start, text, digits)
        return start if is_national else -1

    def _is_bare_phone(self, texts: SearchedTexts, start: int, digits: str) -> bool:
        if not _SHORTEST_PHONE <= len(digits) <= _MOST_PHONE_DIGITS:
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
