"""Builds the parameters of the ledger's scripts; what the names mean stands in `lua/ledger.lua`."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from toolfleet_registry.contracts import EffectState, PublishedCall
from toolfleet_registry.contracts.attempts import Attempt
from toolfleet_registry.contracts.names import ToolName
from toolfleet_registry.redis.script import Parameters
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock
from toolfleet_tasks.ledger.audit import PartsOfLine
from toolfleet_tasks.ledger.claims import Claim
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


class Stored(NamedTuple):
    """The values that `FINISH` stores: Celery's value or '', the announcement, and a dead letter or ''."""

    value: str
    announcement: str
    letter: str


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
    stored: Stored,
    *,
    seconds: Seconds,
    audit_line: tuple[str, int],
    message: tuple[str, str, str] | None,
    settings: Settings,
) -> Parameters:
    """Return the parameters that store a call's one result with its `audit_line`, of which so many are kept, and forget its `message`."""
    record = claim.keys.record
    unacked, index, tag = message or (record, record, "")
    return FINISH.parameters_of(
        (*claim.keys.of_finish, unacked, index),
        **ended.of(claim),
        effect_state=effect_state,
        result_seconds=seconds.result,
        record_seconds=seconds.record,
        value=stored.value,
        announcement=stored.announcement,
        letter=stored.letter,
        letters_kept=settings.dead_letters_kept,
        line=audit_line[0],
        lines_kept=audit_line[1],
        tag=tag,
    )


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
    away = is_away(attempt, call, seconds=seconds)
    return heard(str(attempt.outcome), seconds, "" if away is None else int(away))


def heard(outcome: str, seconds: float, is_away: int | str = 0) -> Ended:
    """Return a module's answer, or its silence, after `seconds` as its breaker counts it; "" where that says nothing of the module."""
    return Ended(f"{outcome} {seconds * 1000:.0f}", is_away, BREAKER_FAILURES, round(BREAKER_SECONDS * 1000))
