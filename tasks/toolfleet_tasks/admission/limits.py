"""Limits users: by a tool's cooldown and daily limit, and a budget for each cost class; days are UTC, by Redis's clock.

They are kept where calls are let in, and once more where they begin (`lua/limits.py`); a call that ends with
nothing done counts in none.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from toolfleet_registry.contracts import Terms, ToolDefinition, ToolResult
from toolfleet_registry.policy.limits import LimitUse, Remaining, cost_class, strictest, terms_of
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.settings import Settings

_DAY_SECONDS = 86_400
_LONGEST_COOLDOWN_SECONDS = 10 * 365 * _DAY_SECONDS  # what a clock can count; more is for ever
_MOST_CALLS = 2**53  # what Lua can count; more is any number


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit of one user, in Redis under `key`: `daily` calls a UTC day (0: any number), and a cooldown between two.

    `name` is the tool's, or that of a cost class if it `is_budget`.
    """

    name: str
    key: str
    daily: int
    cooldown_ms: int
    is_budget: bool = False

    @property
    def args(self) -> tuple[int, int]:
        """As the scripts take it."""
        return self.daily, self.cooldown_ms


def terms_for(tool: ToolDefinition, stricter: Terms | None, settings: Settings) -> Terms | None:
    """What a call of `tool` travels with: the limits that hold for it with these settings; `None` if none does."""
    terms = strictest(terms_of(tool), stricter)
    if terms is None:
        return None
    cost = terms.cost if cost_class(terms.cost) in settings.cost_budgets else None
    if not (cost or terms.cooldown_seconds or terms.daily_limit):
        return None
    return Terms(cooldown_seconds=terms.cooldown_seconds, daily_limit=terms.daily_limit, cost=cost)


def limits_of(tool_name: str, user_id: str | None, terms: Terms | None, settings: Settings) -> tuple[Limit, ...]:
    """The limits in which a user's call of a tool counts. All users without an id are one."""
    if terms is None:
        return ()
    keys, found = settings.keys, list[Limit]()
    if terms.daily_limit or terms.cooldown_seconds:
        found.append(_tool_limit(tool_name, user_id, terms, keys))
    kind = cost_class(terms.cost)
    if kind is not None and kind in settings.cost_budgets:
        budget = min(settings.cost_budgets[kind], _MOST_CALLS)
        found.append(Limit(kind, keys.limit(user_id, kind), budget, 0, is_budget=True))
    return tuple(found)


def refused_by(tool_name: str, limits: Sequence[Limit], answer: Sequence[Any]) -> ToolResult:
    """The result of a call for which a script has found no room: its answer, without the first word."""
    which, is_daily, rest_ms, now_ms = (int(part) for part in answer)
    limit = limits[which - 1]
    if limit.is_budget:
        reason = f"the daily budget of {limit.daily} calls of {limit.name!r} tools is used up"
    elif is_daily:
        reason = f"its daily limit of {limit.daily} calls is reached"
    else:
        reason = f"it may be called once in {_duration(limit.cooldown_ms)}"
    text = f"Tool call refused: {reason}. Try again at {_shown(now_ms + rest_ms)}."
    result = ToolResult.failed(tool_name, "rate_limited", text, effect_state="none", retryable=True)
    return result.model_copy(update={"retry_after_seconds": math.ceil(rest_ms / 100) / 10})


def limits_among(tools: Sequence[ToolDefinition], user_id: str | None, settings: Settings) -> tuple[Limit, ...]:
    """The limits of these tools, and all budgets of the settings."""
    found = [
        _tool_limit(tool.name, user_id, terms, settings.keys)
        for tool in tools
        if (terms := terms_of(tool)) is not None and (terms.daily_limit or terms.cooldown_seconds)
    ]
    for kind in settings.cost_budgets:
        found.extend(limits_of("", user_id, Terms(cost=kind), settings))
    return tuple(found)


def remaining(limits: Sequence[Limit], answer: Sequence[int]) -> Remaining:
    """What `lua.limits.LOOK` says of the limits."""
    now_ms, *rest = answer
    used = zip(limits, rest[::2], rest[1::2], strict=True)
    uses = {(limit.is_budget, limit.name): _use(limit, count, rest_ms, now_ms) for limit, count, rest_ms in used}
    return Remaining(
        costs={kind: uses[True, kind] for kind in ("free", "cheap", "expensive") if (True, kind) in uses},
        tools={name: use for (is_budget, name), use in uses.items() if not is_budget},
        resets_at=(now_ms // 1000 // _DAY_SECONDS + 1) * _DAY_SECONDS,
    )


def _tool_limit(tool_name: str, user_id: str | None, terms: Terms, keys: Keys) -> Limit:
    cooldown = min(terms.cooldown_seconds or 0, _LONGEST_COOLDOWN_SECONDS)
    daily = min(terms.daily_limit or 0, _MOST_CALLS)
    return Limit(tool_name, keys.limit(user_id, tool_name), daily, math.ceil(cooldown * 1000))


def _use(limit: Limit, used: int, rest_ms: int, now_ms: int) -> LimitUse:
    left = max(limit.daily - used, 0) if limit.daily else None
    return LimitUse(used=used, left=left, free_at=(now_ms + rest_ms) / 1000 if rest_ms > 0 else None)


def _duration(ms: int) -> str:
    for unit, unit_ms in (("d", _DAY_SECONDS * 1000), ("h", 3_600_000)):
        if ms % unit_ms == 0:
            return f"{ms // unit_ms} {unit}"
    return f"{f'{ms / 1000:.3f}'.rstrip('0').rstrip('.')} s"


def _shown(at_ms: int) -> str:
    """Whole seconds, the next one: a call at that time gets in."""
    return datetime.fromtimestamp(math.ceil(at_ms / 1000), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
