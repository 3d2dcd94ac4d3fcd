"""Says of which kinds personal data is, where some was found, and which of two findings at one place counts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

Kind: TypeAlias = Literal["iban", "credit_card", "mac_address", "ip", "email", "url", "phone"]
"""The kinds that are known without a pattern."""

KINDS: tuple[Kind, ...] = get_args(Kind)
"""Sorted: what has a checksum first, what is a matter of habits last. Of two at one place the first counts."""

NOT_SEARCHED = "not_searched"
"""Stands for a kind where nothing was looked for: too deep, or not JSON."""

_RANKS: dict[str, int] = {kind: rank for rank, kind in enumerate(KINDS)}


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
