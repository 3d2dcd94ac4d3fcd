"""Limits users: by a tool's cooldown and daily limit, a budget for each cost class, and totals for runs and threads.

Days are UTC, by Redis's clock. Limits are kept where calls are let in, and once more where they begin (`lua/limits.lua`); a call that ends with
nothing done counts in none.
"""

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from toolfleet_registry.contracts import Conversation, PublishedCall, Terms, ToolDefinition, ToolResult
from toolfleet_registry.contracts.calls import note
from toolfleet_registry.contracts.limits import MOST_CALLS, CallTotal, limits_in
from toolfleet_registry.policy.call_faults import LONGEST
from toolfleet_registry.policy.hints import AT_LIMIT, UNNAMED_RUN, UNNAMED_THREAD
from toolfleet_registry.policy.limits import LimitUse, Remaining, cost_class, strictest, terms_of
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.settings import Settings
from toolfleet_tasks.scripts import script

TAKE = script("limits/take")
"""Returns 0; or -1 if others have the call, or ['limited', which one of them is the last to be free again, 1 if that is for its
window's limit, the ms until then, the server's time (ms)], and has changed nothing. May be sent again.
"""

READ = script("limits/read")
"""Returns the server's time (ms), then for each the calls that count on this day, and the ms until the next one may be let in."""

JUDGE = script("limits/judge")
"""Returns 0, or as `TAKE` does ['limited', …]."""

_DAY_SECONDS = 86_400
_LONGEST_COOLDOWN_SECONDS = 10 * 365 * _DAY_SECONDS  # what a clock can count; more is for ever
_TOTAL_KEPT_SECONDS = {"run": _DAY_SECONDS, "thread": 30 * _DAY_SECONDS}
# Since its last call. A run is one turn, which is over within the day; a conversation may rest for weeks.
_KEYS_KEPT = 4_096  # of runs and threads
_WINDOW = 1  # what a script says of a limit that refuses for its window; 0 is a cooldown, 2 a total


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit of one user, in Redis under `key`: `most` calls (0: any number) in a window, a UTC day, and a cooldown between two.

    `name` is the tool's, or that of a cost class if it `is_budget`. With a `total` it is of a run or a thread: so many calls in
    all, of this tool and those that count with it, and no window or cooldown.
    """

    name: str
    key: str
    most: int
    cooldown_ms: int = 0
    is_budget: bool = False
    total: CallTotal | None = None
    window_ms: int = _DAY_SECONDS * 1000

    @property
    def args(self) -> tuple[int, int, int, int]:
        """Return the limit as the scripts take it: `most`, `window`, `cooldown`, and for how many ms a total is kept after its last call."""
        kept = 0 if self.total is None else _TOTAL_KEPT_SECONDS[self.total.kind] * 1000
        return self.most, self.window_ms, self.cooldown_ms, kept


@dataclass(frozen=True, slots=True)
class Within:
    """The run and the thread that a call is part of, by its caller's names."""

    run_id: str | None = None
    thread_id: str | None = None

    @classmethod
    def of(cls, call: PublishedCall) -> "Within":
        """Return the run and thread of a call's message."""
        return cls(call.run_id, call.thread_id)

    @classmethod
    def of_conversation(cls, conversation: Conversation) -> "Within":
        """Return the run and thread of an agent's conversation. A long name becomes its digest, an empty one none."""
        return cls(_bounded(conversation.run_id), _bounded(conversation.conversation_id))

    def id_of(self, total: CallTotal) -> str | None:
        """Return the id of the run or the thread that the total is for; `None` without a name."""
        return self.run_id if total.kind == "run" else self.thread_id


NOWHERE = Within()
"""Of a call that names neither."""


def terms_for(tool: ToolDefinition, stricter: Terms | None, settings: Settings) -> Terms | None:
    """Return the limits that a call of `tool` carries with these settings; `None` if there are none."""
    terms = strictest(terms_of(tool), stricter)
    if terms is None:
        return None
    limits = limits_in(terms)
    if cost_class(terms.cost) not in settings.cost_budgets:
        limits.pop("cost", None)
    return Terms(**limits, totals=terms.totals) if limits or terms.totals else None


def limits_of(
    tool_name: str, user_id: str | None, terms: Terms | None, settings: Settings, within: Within = NOWHERE
) -> tuple[Limit, ...]:
    """Return the limits towards which a user's call of a tool counts. All users without an id are one.

    A total of a run or thread without a name is not among them: `unnamed` refuses such a call.
    """
    if terms is None:
        return ()
    keys, found = settings.keys, list[Limit]()
    if terms.daily_limit or terms.cooldown_seconds:
        found.append(_tool_limit(tool_name, user_id, terms, keys))
    kind = cost_class(terms.cost)
    if kind is not None and kind in settings.cost_budgets:
        budget = min(settings.cost_budgets[kind], MOST_CALLS)
        found.append(Limit(kind, keys.limit(user_id, kind), budget, is_budget=True))
    found.extend(_total_limits(tool_name, user_id, terms.totals, keys, within))
    return tuple(found)


def limits_of_call(call: PublishedCall, terms: Terms | None, settings: Settings) -> tuple[Limit, ...]:
    """Return the limits of a call under these terms, as its message names its user, run and thread."""
    return limits_of(call.tool_name, call.user_id, terms, settings, Within.of(call))


def unnamed(tool_name: str, terms: Terms | None, within: Within) -> ToolResult | None:
    """Return the refusal of a call that must name its run or thread, and does not.

    Fails closed: otherwise nothing would count.
    """
    if terms is None or not terms.totals:
        return None
    missing = next((total for total in terms.totals if within.id_of(total) is None), None)
    if missing is None:
        return None
    note("limits", "denied")
    limit, field = ("run_limit", "run_id") if missing.kind == "run" else ("thread_limit", "conversation_id")
    text = f"Tool call refused: its agent's profile has a {limit} for it, and the call has no {field!r} to count by."
    hint = UNNAMED_RUN if missing.kind == "run" else UNNAMED_THREAD
    return ToolResult.refused(tool_name, "rate_limited", text, hint=hint)


def refused_by(tool_name: str, limits: Sequence[Limit], answer: Sequence[Any]) -> ToolResult:
    """Return the result of a call for which a script has found no room: its answer, without the first word."""
    which, kind, rest_ms, now_ms = (int(part) for part in answer)
    limit = limits[which - 1]
    if limit.total is not None:
        return _over_total(tool_name, limit.total)
    if limit.is_budget:
        reason = f"the daily budget of {limit.most} calls of {limit.name!r} tools is used up"
    elif kind == _WINDOW:
        reason = f"its daily limit of {limit.most} calls is reached"
    else:
        reason = f"it may be called once in {_duration(limit.cooldown_ms)}"
    text = f"Tool call refused: {reason}. Try again at {_shown(now_ms + rest_ms)}."
    result = ToolResult.failed(tool_name, "rate_limited", text, effect_state="none", retryable=True)
    return result.model_copy(update={"retry_after_seconds": math.ceil(rest_ms / 100) / 10})


def limits_among(
    tools: Sequence[ToolDefinition],
    user_id: str | None,
    settings: Settings,
    *,
    beside: Callable[[ToolDefinition], Terms | None] | None = None,
    within: Within = NOWHERE,
) -> tuple[Limit, ...]:
    """Return the limits of these tools, with the terms that `beside` adds to each one's own, and all budgets of the settings."""
    found = list[Limit]()
    for tool in tools:
        if (terms := strictest(terms_of(tool), beside and beside(tool))) is not None:
            own = terms.model_copy(update={"cost": None})
            found.extend(limits_of(tool.name, user_id, own, settings, within))
    for kind in settings.cost_budgets:
        found.extend(limits_of("", user_id, Terms(cost=kind), settings))
    return tuple(found)


def remaining(limits: Sequence[Limit], answer: Sequence[int]) -> Remaining:
    """Parse the answer of `READ` about the limits."""
    now_ms, *rest = answer
    used = zip(limits, rest[::2], rest[1::2], strict=True)
    uses, totals = dict[tuple[bool, str], LimitUse](), dict[str, LimitUse]()
    for limit, count, rest_ms in used:
        if limit.total is None:
            uses[limit.is_budget, limit.name] = _use(limit, count, rest_ms, now_ms)
            continue
        left = max(limit.most - count, 0)
        if limit.name not in totals or left < (totals[limit.name].left or 0):
            totals[limit.name] = LimitUse(used=count, left=left, free_at=None)
    return Remaining(
        costs={kind: uses[True, kind] for kind in ("free", "cheap", "expensive") if (True, kind) in uses},
        tools={name: use for (is_budget, name), use in uses.items() if not is_budget},
        resets_at=(now_ms // 1000 // _DAY_SECONDS + 1) * _DAY_SECONDS,
        totals=totals,
    )


def _tool_limit(tool_name: str, user_id: str | None, terms: Terms, keys: Keys) -> Limit:
    cooldown = min(terms.cooldown_seconds or 0, _LONGEST_COOLDOWN_SECONDS)
    daily = min(terms.daily_limit or 0, MOST_CALLS)
    return Limit(tool_name, keys.limit(user_id, tool_name), daily, math.ceil(cooldown * 1000))


def _bounded(name: str | None) -> str | None:
    if name is None or len(name) <= LONGEST:
        return name or None
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()


def _total_limits(
    tool_name: str, user_id: str | None, totals: Sequence[CallTotal], keys: Keys, within: Within
) -> list[Limit]:
    return [
        Limit(
            tool_name, _key_of_total(keys, user_id, total.kind, total.name, named), total.most, total=total, window_ms=0
        )
        for total in totals
        if (named := within.id_of(total)) is not None
    ]


@lru_cache(maxsize=_KEYS_KEPT)
def _key_of_total(keys: Keys, user_id: str | None, kind: str, name: str, named: str) -> str:
    """Return the key that all calls of one run or thread share."""
    return keys.limit(user_id, json.dumps([kind, name, named]))


def _over_total(tool_name: str, total: CallTotal) -> ToolResult:
    where = "run" if total.kind == "run" else "conversation"
    calls = "1 call" if total.most == 1 else f"{total.most} calls"
    text = f"Tool call refused: its agent may make {calls} of this kind in a {where}, and has made them."
    result = ToolResult.refused(tool_name, "rate_limited", text, hint=AT_LIMIT[total.exit_behavior])
    # A sender that names a run, without which nothing is counted, can read the field.
    return result.model_copy(update={"ends_run": True}) if total.exit_behavior == "error" else result


def _use(limit: Limit, used: int, rest_ms: int, now_ms: int) -> LimitUse:
    left = max(limit.most - used, 0) if limit.most else None
    return LimitUse(used=used, left=left, free_at=(now_ms + rest_ms) / 1000 if rest_ms > 0 else None)


def _duration(ms: int) -> str:
    for unit, unit_ms in (("d", _DAY_SECONDS * 1000), ("h", 3_600_000)):
        if ms % unit_ms == 0:
            return f"{ms // unit_ms} {unit}"
    return f"{f'{ms / 1000:.3f}'.rstrip('0').rstrip('.')} s"


def _shown(at_ms: int) -> str:
    """Return whole seconds, rounded up: a call at that time gets in."""
    return datetime.fromtimestamp(math.ceil(at_ms / 1000), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
