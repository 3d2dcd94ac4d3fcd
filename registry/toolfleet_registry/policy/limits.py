"""Combines the terms under which a tool may be called, and computes what of them a user has used.

Pure functions. Where nothing is limited there are no terms, so that calls of such tools cost nothing more.
"""

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import Field

from toolfleet_registry.contracts import CostClass, Message, RetryTerms, Since, Terms, ToolDefinition
from toolfleet_registry.contracts.limits import LIMITS, CallTotal, limits_in


class LimitUse(Message):
    """One limit of one user."""

    used: int
    """Calls that were used on this UTC day; of a run or a conversation, in all."""
    left: int | None
    """How many are left; `None`: any number."""
    free_at: float | None
    """When the next call may be made, in seconds since the epoch; `None`: now."""


class Remaining(Message):
    """The user's remaining limits of today."""

    costs: dict[CostClass, LimitUse]
    """Of each cost class with a budget."""
    tools: dict[str, LimitUse]
    """Of each limited tool, by name."""
    resets_at: float
    """When the next UTC day begins, in seconds since the epoch."""
    totals: Annotated[dict[str, LimitUse], Since(3)] = Field(default={})
    """Of each tool that an agent's profile limits in a run or a conversation, by name: what the one that was named has left, of several limits the fewest."""


def terms_of(tool: ToolDefinition) -> Terms | None:
    """Return the terms of the tool's definition; `None` if there are none. A limit of 0 is none."""
    limits = limits_in(tool)
    return Terms(**limits, requires_gate=tool.requires_gate) if limits or tool.requires_gate else None


def strictest(one: Terms | None, other: Terms | None) -> Terms | None:
    """Combine terms: the longer cooldown, the lower limit, the more expensive class.

    Args:
        one: Terms, or None for none.
        other: Other terms.

    Returns:
        Terms that satisfy both, or None.

    """
    if one is None or other is None or one == other:
        return one or other
    return Terms(
        **{name: _strictest_of(name, (getattr(one, name), getattr(other, name))) for name in LIMITS},
        requires_gate=one.requires_gate or other.requires_gate,
        totals=lowest((*one.totals, *other.totals)),
    )


def fewest_retries(one: RetryTerms | None, other: RetryTerms | None) -> RetryTerms | None:
    """Return retry terms that satisfy both: fewer retries, after the longer pauses, on error codes of both.

    `None` is the fleet's single retry.
    """
    if one is None and other is None:
        return None
    one, other = one or SINGLE_RETRY, other or SINGLE_RETRY
    return RetryTerms(
        max_retries=min(one.max_retries, other.max_retries),
        backoff_factor=max(one.backoff_factor, other.backoff_factor),
        initial_delay_seconds=max(one.initial_delay_seconds, other.initial_delay_seconds),
        max_delay_seconds=max(one.max_delay_seconds, other.max_delay_seconds),
        jitter=one.jitter or other.jitter,
        undeclared=one.undeclared and other.undeclared,
        retry_on=_in_both(one.retry_on, other.retry_on),
    )


def lowest(totals: Iterable[CallTotal]) -> tuple[CallTotal, ...]:
    """Return the lowest limit of each kind and name, sorted."""
    found = dict[tuple[str, str], CallTotal]()
    for total in totals:
        known = found.get(key := (total.kind, total.name))
        found[key] = total if known is None else min(known, total, key=_strictness)
    return tuple(found[key] for key in sorted(found))


def cost_class(cost: str | None) -> CostClass | None:
    """Return the cost class that counts for a tool.

    Args:
        cost: The `cost` of the tool's definition. An unknown one counts as expensive: a typo must not make a tool cheap.

    Returns:
        The class, or None for a tool without a cost.

    """
    if not cost:
        return None
    return _CLASSES.get(cost, "expensive")


def unknown_costs(tools: Iterable[ToolDefinition]) -> list[str]:
    """Return the unknown cost classes that some tools name, shortened, each once: they count as expensive."""
    return sorted({tool.cost[:_SHOWN] for tool in tools if tool.cost and tool.cost not in _CLASSES})


def _strictest_of(limit: str, values: Iterable[Any]) -> Any:
    """Return the stricter value that is set: the longer cooldown, the more expensive class, and of all others the lower number."""
    said = filter(None, values)
    if limit == "cost":
        return max(said, key=_dearness, default=None)
    return (max if limit == "cooldown_seconds" else min)(said, default=None)


def _strictness(total: CallTotal) -> tuple[int, int]:
    return total.most, -_EXITS.index(total.exit_behavior)


def _in_both(one: tuple[str, ...] | None, other: tuple[str, ...] | None) -> tuple[str, ...] | None:
    if one is None or other is None:
        return other if one is None else one
    return tuple(sorted({*one} & {*other}))


def _dearness(cost: str) -> int:
    return list(_CLASSES).index(cost_class(cost) or "free")


SINGLE_RETRY = RetryTerms.model_construct()  # as its model says; validated it would be built by an import
"""What holds for calls of which no profile says more or less; their pauses are the fleet's own."""

_EXITS: tuple[str, ...] = ("continue", "end", "error")  # the last is the strictest
_SHOWN = 60  # characters of foreign text in a line of the log
_CLASSES: dict[str, CostClass] = {"free": "free", "cheap": "cheap", "expensive": "expensive"}
