"""Says what personal data was found and of which kind, and words what stands in its place."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from hmac import HMAC
from ipaddress import ip_address
from typing import Any, Literal, TypeAlias, get_args

from toolfleet_registry.linear_patterns import compiled
from toolfleet_registry.personal_data.searched_texts import in_usual_characters

Kind: TypeAlias = Literal["iban", "credit_card", "mac_address", "ip", "email", "url", "phone"]
"""The kinds that are known without a pattern."""

KINDS: tuple[Kind, ...] = get_args(Kind)
"""Sorted: what has a checksum first, what is a matter of habits last. Of two at one place the first counts."""

NOT_SEARCHED = "not_searched"
"""Stands for a kind where nothing was looked for: too deep, or not JSON."""

_RANKS: dict[str, int] = {kind: rank for rank, kind in enumerate(KINDS)}

Strategy: TypeAlias = Literal["redact", "mask", "hash", "block"]
"""What becomes of personal data.

- `redact`: `[EMAIL]`, the kind in capitals.
- `mask`: of a phone's, a card's or an account's number the last four letters and digits, `****2671`; of an email its first
  character and the end of its domain, `a***@***.com`. Of other kinds nothing is harmless: as `redact`.
- `hash`: `[email:3f09c1d2a4b5c6d7]`, the beginning of an HMAC-SHA256 of the value under the operator's key. The same value has
  the same digest, however it is spelt: capitals in emails, blanks and dashes in numbers, `+49 30 …` for `030 …`, zeros in IPv6.
- `block`: nothing goes on; an error names place and kind.
"""

STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)

SHORTEST_KEY = 16  # bytes

HideValue: TypeAlias = Callable[[str, str], str]
"""The text that stands in the place of a value: from its kind and what it was. Where several overlap, it is `label` instead."""

_ONLY_CHARACTERS = re.compile(r"[^0-9A-Za-z]")

EXTRA = "pii"
"""The extra of the distribution that has what detectors need."""


@dataclass(frozen=True, slots=True)
class FoundData:
    """One place in a text: `text[start:end]`, in characters. `kind` is one of `KINDS`, or the name of an own pattern.

    `is_one` is false where several overlap and none covers all of it: then nothing of it is harmless. `value` is what was found, if
    it is written otherwise there, as `%40` for `@`; `None`: it is what stands there.
    """

    kind: str
    start: int
    end: int
    is_one: bool = True
    value: str | None = None

    def moved(self, by: int) -> "FoundData":
        """Return the same `by` characters further on."""
        return replace(self, start=self.start + by, end=self.end + by)


def settled(found: Sequence[FoundData]) -> list[FoundData]:
    """Return the findings sorted and disjoint: overlapping ones become one, which covers all of them.

    Its kind is that of the longest; of equally long ones an own pattern's, then the first of `KINDS`. So an email
    inside of a URL is part of the URL, and nothing that any detector has found stays visible next to a label.
    """
    kept = list[FoundData]()
    if not found:  # nearly always
        return kept
    longest = FoundData("", 0, 0)
    for each in sorted(found, key=_by_place):
        if kept and each.start < kept[-1].end:
            if each.end - each.start > longest.end - longest.start:
                longest = each
            start, end = kept[-1].start, max(kept[-1].end, each.end)
            is_one = (longest.start, longest.end) == (start, end)
            kept[-1] = FoundData(longest.kind, start, end, is_one, longest.value)
        else:
            longest = each
            kept.append(each)
    return kept


def _by_place(found: FoundData) -> tuple[int, int, int]:
    return found.start, -found.end, _RANKS.get(found.kind, -1)


def label(kind: str) -> str:
    """Return the label that replaces a finding of this kind."""
    return f"[{kind.upper()}]"


def labels_of(kinds: Iterable[str]) -> re.Pattern[str]:
    """Compile a pattern for labels that hide something already, in which nothing is searched."""
    names = "|".join(sorted(kinds))
    return re.compile(rf"\[(?:{names.upper()}|SAME_[0-9]+|(?:{names}):[0-9a-f]{{16}})\]")


def hiding(strategy: Strategy, key: bytes | None, e164: Callable[[str], str | None]) -> HideValue:
    """Return the function that hides a value by this strategy.

    `e164` normalizes a phone number. Raises `ValueError` without a key to hash with.
    """
    if strategy == "hash":
        if key is None or len(key) < SHORTEST_KEY:
            raise ValueError(f"The strategy 'hash' needs a key of at least {SHORTEST_KEY} bytes.")
        return lambda kind, value: digest(key, kind, _one_spelling(kind, value, e164))
    return _masked if strategy == "mask" else lambda kind, _: label(kind)


def digest(key: bytes, kind: str, value: str) -> str:
    """Return what stands for a value: the same for the same value under the same key."""
    message = f"{kind}\0{value}".encode("utf-8", "surrogatepass")
    return f"[{kind}:{HMAC(key, message, sha256).hexdigest()[:16]}]"


def _masked(kind: str, value: str) -> str:
    if kind in {"phone", "credit_card", "iban"}:
        return f"****{_ONLY_CHARACTERS.sub('', in_usual_characters(value))[-4:]}"
    if kind == "email":
        return f"{value[0]}***@***.{value.rpartition('.')[2]}"
    return label(kind)


def _one_spelling(kind: str, value: str, e164: Callable[[str], str | None]) -> str:
    usual = in_usual_characters(value)
    if kind == "phone":
        return e164(usual) or _ONLY_CHARACTERS.sub("", usual)
    if kind in {"credit_card", "iban", "mac_address"}:
        return _ONLY_CHARACTERS.sub("", usual).upper()
    return ip_address(value).compressed if kind == "ip" else value.lower() if kind == "email" else value


def scanner(pattern: str) -> Any:
    r"""Compile an RE2 in which `\b` knows ASCII words. Raises `ValueError` if RE2 is not installed."""
    return compiled(pattern.encode("latin-1"), extra=EXTRA, is_latin=True)
