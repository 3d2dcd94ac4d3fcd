"""Builds the parameters of the ledger's scripts; what the names mean stands in `lua/ledger.lua`."""

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

from toolfleet_registry.contracts import EffectState, PublishedCall
from toolfleet_registry.contracts.attempts import Attempt, Outcome
from toolfleet_registry.contracts.names import ToolName
from toolfleet_registry.redis.script import Parameters
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock
from toolfleet_tasks.ledger.audit import PartsOfLine
from toolfleet_tasks.ledger.claims import Claim, ends_ms
from toolfleet_tasks.ledger.retry import MOST_DEATHS, is_away, most_attempts
from toolfleet_tasks.ledger.scripts import CLAIM, CLOSE, END, FINISH, CallKeys
from toolfleet_tasks.limits import TAKE, Limit
from toolfleet_tasks.scripts import PATIENCE_MS


class Seconds(NamedTuple):
    """The life of a call's result and of its record, in seconds."""

    result: int
    record: int


BREAKER_FAILURES = 20
"""Calls in a row without an answer after which a module counts as away; so many answers and it is back for all.

More than a restart under light load brings. One to which no worker can connect is away at once.
"""

BREAKER_SECONDS = 10.0
"""How long a module that is away is left alone at most: 1 s at first, and longer each time it is looked for in vain."""


class Ended(NamedTuple):
    """The end of an attempt, in the form of `CLOSE` and `FINISH`."""

    outcome: str = ""
    away: int | str = ""
    failures: int = 0
    longest_ms: int = 0

    def of(self, claim: Claim) -> dict[str, Any]:
        """Return the arguments of a script that ends an attempt of this claim."""
        return {
            "token": claim.token,
            "call_id": claim.call.call_id,
            "attempt": claim.attempts,
            "outcome": self.outcome,
            "away": self.away,
            "failures": self.failures,
            "longest_ms": self.longest_ms,
        }


class How(NamedTuple):
    """The way `END` ends a call: the token, the mode, the data that Redis must have, and how long it is known."""

    token: str
    mode: str
    data: str
    seconds: Seconds


def of_claim(
    claim: Claim, settings: Settings, lease_ms: int, *, deaths: int | None, can_reach: bool, replica: str
) -> Parameters:
    """Return the parameters that ask for a call."""
    call = claim.call
    return CLAIM.parameters_of(
        claim.keys.of_claim,
        token=claim.token,
        call_id=call.call_id,
        lease_ms=lease_ms,
        effect=call.effect or "",
        seconds=claim.ttl_seconds,
        bound=settings.module_concurrency.get(ToolName.parse(call.tool_name).module, 0),
        most_attempts=most_attempts(call.retry),
        most_deaths=MOST_DEATHS,
        killed="lapsed" if deaths is None else "yes" if deaths >= MOST_DEATHS else "no",
        patience_ms=round((call.published_at - fleet_clock.now()) * 1000 + PATIENCE_MS),
        can_reach=int(can_reach),
        replica=replica,
        round=0 if call.inputs is None else call.inputs.round,
        approval="" if call.approval is None else call.approval.binding,
        lane=call.lane,
        turn=None if call.turn is None else f"{ends_ms(call, lease_ms)} {call.turn.line}",
    )


def of_take(claim: Claim, held: str, limits: Sequence[Limit], *, held_ms: int) -> Parameters:
    """Return the parameters that count a call towards its limits; `held` is the key where they are noted."""
    return TAKE.parameters(
        held=held,
        record=claim.keys.record,
        limits=[limit.key for limit in limits],
        token=claim.token,
        call_id=claim.call.call_id,
        held_ms=held_ms,
        terms=[limit.args for limit in limits],
    )


def of_close(
    claim: Claim, ended: Ended, *, so_far: EffectState, text: str, signature: str, seconds: Seconds
) -> Parameters:
    """Return the parameters that end an attempt that another one follows; `text` is its result."""
    return CLOSE.parameters_of(
        claim.keys.of_attempt,
        **ended.of(claim),
        so_far=so_far,
        last=text,
        seconds=seconds.record,
        signature=signature,
    )


def of_finish(
    claim: Claim,
    ended: Ended,
    effect_state: EffectState,
    *,
    value: str,
    announcement: str,
    letter: str,
    line: str,
    time: str,
    seconds: Seconds,
    message: tuple[str, str, str] | None,
    letters_kept: int,
    lines_kept: int,
) -> Parameters:
    """Return the parameters that store a call's one result, and forget its `message`.

    Args:
        claim: Of who ends the call.
        ended: Its last attempt.
        effect_state: What has happened.
        value: Celery's value, or "". With the parts of a line the result's text.
        announcement: What is published; "" for the value itself.
        letter: A dead letter, or "".
        line: The audit line, or the parts of it that are not in the text.
        time: When the call ended, to the second; "" with a whole line.
        seconds: The life of result and record.
        message: Both keys and the tag of the message that has brought the call, if it is in this Redis.
        letters_kept: How many dead letters are kept.
        lines_kept: How many audit lines are kept.

    """
    keys = claim.keys
    unacked, index, tag = message or (keys.dead, keys.dead_order, "")  # unused without a tag, and the same for all
    return FINISH.parameters(
        dead=keys.dead,
        dead_order=keys.dead_order,
        audit_stream=keys.audit_stream,
        unacked=unacked,
        unacked_index=index,
        record=keys.records,
        result=keys.results,
        token=claim.token.removeprefix(tag),
        call_id=claim.call.call_id,
        attempt=claim.attempts,
        outcome=ended.outcome,
        away=ended.away,
        effect_state=effect_state,
        value=value,
        announcement=announcement,
        letter=letter,
        line=line,
        tag=tag,
        caller_limit=keys.caller_limit,
        breaker=keys.breaker,
        running="" if keys.running == keys.record else keys.running,
        intent="" if keys.intent == keys.record else keys.intent,
        time=time,
        result_seconds=seconds.result,
        record_seconds=seconds.record,
        failures=BREAKER_FAILURES,
        longest_ms=round(BREAKER_SECONDS * 1000),
        letters_kept=letters_kept,
        lines_kept=lines_kept,
    )


# Of those parameters:
_OWN = slice(8, 23)
_USUAL_KEYS = slice(11, 13)  # of a call's own: its caller's and its module's, which are often those of the call before
_SAME_KEYS = ("", "")

shared_in_finish = operator.itemgetter(slice(1, 8), slice(23, None))
"""The part of the parameters of `of_finish` in which calls must agree that end together."""


def of_finish_many(ends: Sequence[Parameters]) -> Parameters:
    """Return the parameters of `FINISH` for calls that end together, of their own parameters."""
    parameters = list(ends[0])
    keys = parameters[_OWN][_USUAL_KEYS]
    for end in ends[1:]:
        own = list(end[_OWN])
        if own[_USUAL_KEYS] == keys:
            own[_USUAL_KEYS] = _SAME_KEYS
        else:
            keys = own[_USUAL_KEYS]
        parameters += own
    return tuple(parameters)


def of_end(
    call_id: str,
    keys: CallKeys,
    how: How,
    values: Sequence[str],
    parts: PartsOfLine,
    *,
    letter: str,
    letters_kept: int,
    yields: bool,
) -> Parameters:
    """Return the parameters that end a call from outside; `values` are Celery's for one never started, surely not done, and any other."""
    return END.parameters_of(
        keys.of_end,
        token=how.token,
        call_id=call_id,
        mode=how.mode,
        data=how.data,
        result_seconds=how.seconds.result,
        record_seconds=how.seconds.record,
        **dict(zip(("unbegun", "undone", "unknown"), values, strict=True)),
        letter=letter,
        letters_kept=letters_kept,
        **dict(zip(_PARTS, parts, strict=True)),
        yields=int(yields),
    )


_PARTS = ("line", "line_unbegun", "line_undone", "line_unknown", "lines_kept")


def ended(call: PublishedCall, attempt: Attempt, *, seconds: float) -> Ended:
    """Return the end of an attempt that took `seconds`."""
    away = False if attempt.outcome is Outcome.SUCCESS else is_away(attempt, call, seconds=seconds)
    return heard(str(attempt.outcome), seconds, "" if away is None else int(away))


def heard(outcome: str, seconds: float, is_away: int | str = 0) -> Ended:
    """Return a module's answer, or its silence, after `seconds` as its breaker counts it; "" where that says nothing of the module."""
    return Ended(f"{outcome} {seconds * 1000:.0f}", is_away, BREAKER_FAILURES, round(BREAKER_SECONDS * 1000))
