"""Keeps what a process has claimed in the ledger while it lives, what it has of earlier attempts, and until when one may begin.

A lease runs from the moment at which its claim, or its last good renewal, was sent. Two clocks tell it, and the one that is
further on counts: one goes on while the machine is suspended, and the fleet's is set right after it was stopped from outside.
"""

import asyncio
import json
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, cast

from redis.exceptions import ResponseError

from toolfleet_registry import metric_families
from toolfleet_registry.contracts import EffectState, PublishedCall, ToolResult
from toolfleet_registry.contracts.attempts import (
    ALLOWANCE_SECONDS,
    Acceptance,
    LeaseOver,
    StatusMissing,
    StillAtWork,
    is_handle,
    is_poll_time,
)
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock, machine_clock
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.system.process import this_process
from toolfleet_tasks.ledger import scripts
from toolfleet_tasks.ledger.scripts import CallKeys
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.messages.signing import Signatures
from toolfleet_tasks.redis_connection import Part, PipelinedConnection, RedisConnectionLost, run_durably, write_durably
from toolfleet_tasks.results.verifier import Verifier

log = get_logger(__name__)

FIRST_SECONDS, LONGEST_SECONDS, GROWTH = 0.5, 30.0, 1.5
"""Until a module is asked that does not say when it wants to be: at first, at most, and how much longer each time."""
SHORTEST_SECONDS = 0.2
_LEAVING_SECONDS = 2.0  # until a process counts as gone, which is not there now
_LAST_SECONDS = 1.0  # before its deadline a call is asked for once more
_AFTER_SECONDS = 0.05  # a message that is to come once the deadline has passed comes so much later

Granted = Literal["go", "accepted", "unknown", "exhausted", "open", "killed", "unapproved"]
"""What a claim was granted for: to run an attempt, to ask for one that its module continues, or to end a call that must not run again, or not now, kills workers, or is not approved."""

_NEVER = (-math.inf, -math.inf)
_NOTABLE_SECONDS = 0.001  # of a worker's own work in an attempt: less is not worth its place in each audit line

Refusal = Literal["done", "early", "busy", "full", "paused", "away", "queued", "newer", "stale", "behind"]
"""Why there is no claim: the call has ended, its module goes on with it and is asked later, another worker is at it, or its queue is paused, or its module runs as many calls as it may, is away and will
be looked for soon, or is back and lets calls in one after the other; its record is for workers of a newer version; its message brings no answer to what it has asked; or it has not its turn."""

_RENEWALS = 4  # a lease is renewed so often within its time: some may fail
_SCATTERED = 2  # what `MOVE` says if an earlier attempt may have gone to another process
_CHUNK = 200  # records a script, so that none holds Redis up


@dataclass(frozen=True, slots=True)
class AcceptedAttempt:
    """`begun_at` by the fleet's clock; `wait_seconds`: until the module is asked where it is."""

    handle: str
    begun_at: float
    wait_seconds: float

    @classmethod
    def of(cls, acceptance: Acceptance, *, begun_at: float) -> Self:
        """One that was accepted just now."""
        wanted = acceptance.poll_after_seconds
        return cls(acceptance.handle, begun_at, FIRST_SECONDS if wanted is None else _bounded(wanted))

    @classmethod
    def read(cls, text: str) -> Self | None:
        """Parse a written attempt; `None` if it is invalid."""
        try:
            fields = json.loads(text)
            handle, begun_at, wait = fields["handle"], fields["begun_at"], fields["wait_seconds"]
        except (ValueError, LookupError, TypeError, RecursionError):
            return None
        is_known = is_handle(handle) and isinstance(begun_at, int | float) and is_poll_time(wait)
        return cls(handle, float(begun_at), float(wait)) if is_known else None

    def written(self) -> str:
        """As JSON."""
        return json.dumps({"handle": self.handle, "begun_at": self.begun_at, "wait_seconds": self.wait_seconds})

    def after(self, found: StillAtWork | StatusMissing) -> "AcceptedAttempt":
        """The same after it was asked for: the module says when it wants to be asked again, or is left alone for longer each time."""
        if isinstance(found, StatusMissing) and found.is_leaving:  # in a moment one knows
            return replace(self, wait_seconds=min(self.wait_seconds, _LEAVING_SECONDS))
        wanted = found.poll_after_seconds if isinstance(found, StillAtWork) else None
        seconds = self.wait_seconds * GROWTH if wanted is None else wanted
        return replace(self, wait_seconds=_bounded(seconds))

    def answered(self) -> "AcceptedAttempt":
        """The same once it is answered what it asks: the module is asked as soon as at first."""
        return replace(self, wait_seconds=FIRST_SECONDS)

    def delay(self, seconds_left: float, *, longest: float) -> float:
        """Return the delay of its message, with so much time left, and the longest delay of the broker.

        The last time it comes just before the deadline, and then once after it.
        """
        delay = min(self.wait_seconds, longest)
        if delay < seconds_left - _LAST_SECONDS:
            return delay
        last = seconds_left - _LAST_SECONDS
        return last if last >= SHORTEST_SECONDS else max(seconds_left, 0) + _AFTER_SECONDS


def ends_ms(call: PublishedCall, lease_ms: int) -> int:
    """Return until when an attempt that is claimed now may be at work, in ms since the epoch.

    It begins within its lease, and its module has the call's limit and its deadline.
    """
    return round(min(call.deadline_at, fleet_clock.now() + lease_ms / 1000 + call.limit_seconds) * 1000)


def _bounded(seconds: float) -> float:
    return min(max(seconds, SHORTEST_SECONDS), LONGEST_SECONDS)


class EarlierAttempts:
    """Signs and verifies what attempts came to, and under which handle modules go on with them."""

    def __init__(self, settings: Settings, verifier: Verifier) -> None:
        self._signatures = Signatures(settings, "attempt")
        self._verifier = verifier

    def signature(self, call_id: str, text: str) -> str:
        """Return the signature of an attempt's text; "" if the fleet does not sign."""
        return self._signatures.of(call_id, text)

    def signed(self, call_id: str, attempt: AcceptedAttempt) -> str:
        """An accepted attempt as it is kept."""
        return self.signed_text(call_id, attempt.written())

    def signed_text(self, call_id: str, text: str) -> str:
        """A JSON object about an attempt as it is kept."""
        return f"{self.signature(call_id, text)} {text}".lstrip()

    async def last(self, call_id: str, found: bytes) -> ToolResult | None:
        """Return the result of the last ended attempt; `None` if it is unsigned."""
        text = await self.believed(call_id, found)
        return json_text.load(ToolResult, text) if text else None

    async def accepted(self, call_id: str, found: bytes) -> AcceptedAttempt | None:
        """Return the attempt that the module continues; `None` if it is unsigned."""
        text = await self.believed(call_id, found)
        return AcceptedAttempt.read(text) if text else None

    async def believed(self, call_id: str, found: bytes) -> str:
        """The text, which may have a signature and a space before it; "" if it is not believed."""
        signature, _, text = found.decode(errors="replace").partition(" ")
        if found.startswith(b"{"):
            signature, text = "", found.decode()
        if not text or not await self._verifier.believes(call_id, "attempt", text, signature or None):
            return ""
        return text


@dataclass(slots=True, eq=False)
class Claim:
    """One call in this process's hands, under a fencing `token`.

    `attempts` counts the started ones, this one included; `so_far` is what earlier ones may have done, `last` the
    result of the last ended one, `accepted` the one that the module continues, `log` how each ended. `rest_seconds`:
    until its module's open breaker lets one through. `keys`: those of its scripts. `ttl_seconds`: how long its record
    lives. `on_lost` is called when another worker has the call. `begin_by`: when an attempt may last start, by the
    clock that counts suspension and by the fleet's. `replica`, `is_scattered`: as of a lease; `request`: how long its
    request took, and when that had ended; `mover` writes another replica to the ledger, and returns the answer of
    `MOVE`. `approved`: the approval, sealed. `why`: the reason that breaker is open. `patience_seconds`: how long a
    retry may still wait for its module.
    """

    call: PublishedCall
    keys: CallKeys
    token: str
    granted: Granted = "go"
    attempts: int = 0
    so_far: EffectState = "none"
    last: ToolResult | None = None
    accepted: AcceptedAttempt | None = None
    log: str = ""
    rest_seconds: float = 0
    on_lost: Callable[[], object] = field(default=lambda: None)
    ttl_seconds: int = 0
    begin_by: tuple[float, float] = _NEVER
    replica: str = ""
    is_scattered: bool = False
    approved: str = ""
    why: str = ""
    patience_seconds: float = 0
    mover: "Callable[[Claim, str], Awaitable[int]] | None" = None
    request: tuple[float, float] | None = None

    def note_request(self, seconds: float, *, ended_at: float) -> None:
        """Implements `Lease.note_request`."""
        self.request = seconds, ended_at

    def own_ms(self, seconds: float) -> tuple[float, float] | None:
        """Return the worker's own time in an attempt of so many seconds that ends now, before its request and after it; `None` below a millisecond."""
        if self.request is None:
            return None
        took, ended_at = self.request
        if (own := seconds - took) < _NOTABLE_SECONDS:
            return None
        after = min(max(machine_clock.monotonic() - ended_at, 0), own)
        return round((own - after) * 1000, 1), round(after * 1000, 1)

    @property
    def attempt(self) -> int:
        """The number of the attempt that it was granted for."""
        return self.attempts

    @property
    def answer_before(self) -> ToolResult | None:
        """Return the module's answer to the attempt before, for a call without an effect that a setting has repeated.

        That is the call's end where the repeat surely does not come to be. `None`: there is no such answer.
        """
        is_known = self.granted not in {
            "unknown",
            "killed",
            "accepted",
        }  # else an attempt of which nothing is known follows it
        return self.last if is_known and self.call.effect is None and self.so_far != "none" else None

    def seconds_left(self) -> float:
        """Seconds in which its attempt may still begin; 0 or less once others may have the call, and after its deadline."""
        suspend_aware, fleet = self.begin_by
        now = fleet_clock.now()
        return min(suspend_aware - fleet_clock.suspend_aware(), fleet - now, self.call.deadline_at - now)

    def read(self, answer: Sequence[Any]) -> None:
        """Take the answer of `CLAIM` that granted it, but for the parts to be verified."""
        granted, self.attempts, so_far, _, log_, rest_ms, _, replica, scattered, approved, *more = answer
        self.granted, self.so_far = cast("Granted", granted.decode()), cast("EffectState", so_far.decode())
        self.log, self.rest_seconds = log_.decode(), rest_ms / 1000
        self.replica, self.is_scattered, self.approved = replica.decode(), scattered == b"1", approved.decode()
        self.why, self.patience_seconds = (more[0].decode(), more[1] / 1000) if more else ("", 0)
        if self.call.inputs is not None and self.so_far == "none":  # its record may be lost, and it has asked before
            self.so_far = self.call.inputs.so_far

    async def move(self, replica: str) -> None:
        """Implements `Lease.move`. Waits until Redis has stored it, however long that is away."""
        moved = 0 if self.mover is None else await self.mover(self, replica)
        if not moved:
            raise LeaseOver
        self.replica, self.is_scattered = replica, moved == _SCATTERED

    @property
    def parts(self) -> tuple[str | int, ...]:
        """The fields that write its record again, if Redis has lost it."""
        call = self.call
        return (
            self.token,
            call.call_id,
            self.granted,
            self.attempts,
            call.effect or "",
            self.so_far,
            self.ttl_seconds,
            self.replica,
            int(self.is_scattered) or "",
        )

    def turn_parts(self, line: str, lease_ms: int) -> tuple[str | int, ...]:
        """Return the fields that give the call its turn again, if Redis has lost it."""
        call = self.call
        deadline_ms = round(call.deadline_at * 1000)
        return self.token, call.call_id, line, deadline_ms, ends_ms(call, lease_ms)


@dataclass(frozen=True, slots=True)
class NotClaimed:
    """`result` is the stored text of a call that is done; `rest_seconds` until another try makes sense."""

    reason: Refusal
    result: str = ""
    rest_seconds: float = 0


class Claims:
    """Renews all held claims at once, several times in a lease. Belongs to the connection's event loop."""

    def __init__(self, connection: PipelinedConnection, *, lease_seconds: float) -> None:
        self.lease_ms = round(lease_seconds * 1000)
        self._connection = connection
        self._held: dict[str, Claim] = {}
        self._task: asyncio.Task[None] | None = None
        connection.on_connect.append(self._renew)  # after an outage, before others are told that a lease has run out

    def made(
        self,
        call: PublishedCall,
        keys: CallKeys,
        token: str,
        seconds: int,
        *,
        sent_at: tuple[float, float] | None = None,
    ) -> Claim:
        """Make a claim whose record lives so many seconds: one that is asked for now, or was granted to a request sent at `sent_at`."""
        begun, begin_by = int(sent_at is not None), self.sending(sent_at)
        return Claim(call, keys, token, attempts=begun, ttl_seconds=seconds, begin_by=begin_by, mover=self.moved)

    def sending(self, sent_at: tuple[float, float] | None = None) -> tuple[float, float]:
        """Return until when an attempt may start whose lease is granted to a request that is about to be sent, or was at `sent_at` (by both clocks)."""
        suspend_aware, fleet = sent_at or (fleet_clock.suspend_aware(), fleet_clock.now())
        seconds = self.lease_ms / 1000 - ALLOWANCE_SECONDS
        return suspend_aware + seconds, fleet + seconds

    async def renewed(self, claim: Claim) -> bool:
        """Renew a lease that is over, however long Redis is away. False if another worker has the call."""
        while claim.token in self._held:
            begin_by = self.sending()
            lost = await write_durably(self._connection, self._renewal([claim]), size=0)
            self._keep_turns([claim])
            self._confirm([claim], begin_by, cast("list[bytes]", lost))
            if begin_by[0] > fleet_clock.suspend_aware():  # else Redis has taken too long to answer
                break
        return claim.token in self._held

    async def moved(self, claim: Claim, replica: str) -> int:
        """Note in the ledger that the claim's attempt goes to another process; 0 if others have the call by now."""
        parameters = scripts.MOVE.parameters(record=claim.keys.record, token=claim.token, replica=replica)
        return cast("int", await run_durably(self._connection, scripts.MOVE, parameters))

    def held(self) -> Counter[str]:
        """Return how many calls of each module are in this process's hands. Thread-safe."""
        return Counter(claim.call.tool_name.partition(".")[0] for claim in tuple(self._held.values()))

    def drop(self, claim: Claim, *, answer: object = 1, is_end: bool = True) -> None:
        """The attempt is closed, or the call has ended; `answer`: whether the ledger has taken that, and not refused it as late."""
        self._held.pop(claim.token, None)
        if not (answer and is_end) and (calls := this_process().calls) is not None:
            family = metric_families.RETRIES if answer else metric_families.RESULTS_LATE
            calls.count_call(family, claim.call.tool_name)

    def give_back(self, claim: Claim) -> None:
        """Undo a claim that was not used, if it was granted at all."""
        keys, names = claim.keys, {"token": claim.token, "call_id": claim.call.call_id}
        command = scripts.UNCLAIM.command(record=keys.record, running=keys.running, breaker=keys.breaker, **names)
        self._connection.send(*command).add_done_callback(_seen)

    def note(self, claim: Claim, value: str, line_end: str) -> None:
        """Keep in the claim's record what its worker knows: Celery's value, and the end of the audit line."""
        keys, names = claim.keys, {"token": claim.token, "call_id": claim.call.call_id}
        command = scripts.NOTE.command(
            record=keys.record, running=keys.running, value=value, line_end=line_end, **names
        )
        self._connection.send(*command).add_done_callback(_seen)

    async def aclose(self) -> None:
        """Stop renewing, and release the held claims: the next worker need not wait."""
        if self._task is not None:
            self._task.cancel()
        held, self._held = list(self._held.values()), {}
        await asyncio.gather(*(self._let_go(claim) for claim in held), return_exceptions=True)

    def hold(self, claim: Claim) -> None:
        """Keep the claim, until `leave`."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._keep(), name="toolfleet-claims")
        self._held[claim.token] = claim
        if (calls := this_process().calls) is not None and claim.granted == "go" and claim.attempts == 1:
            calls.begun(claim.call.tool_name, fleet_clock.now() - claim.call.published_at)

    def leave(self, claim: Claim) -> None:
        """Release the claim, unless its attempt is closed or its call has ended."""
        if claim.token in self._held:
            del self._held[claim.token]
            self._let_go(claim)

    def _let_go(self, claim: Claim) -> "asyncio.Future[object]":
        keys, names = claim.keys, {"token": claim.token, "call_id": claim.call.call_id}
        command = scripts.LET_GO.command(record=keys.record, running=keys.running, **names)
        reply: asyncio.Future[object] = self._connection.send(*command)
        reply.add_done_callback(_seen)  # if it is lost, the lease runs out
        return reply

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self.lease_ms / 1000 / _RENEWALS)
            try:
                self._renew()
            except Exception:  # a defect of ours: without this loop every lease would run out
                log.exception("claims_not_renewed")

    def _renew(self) -> None:
        held = list(self._held.values())
        for start in range(0, len(held), _CHUNK):
            self._send_renewal(held[start : start + _CHUNK])

    def _send_renewal(self, claims: Sequence[Claim]) -> None:
        begin_by = self.sending()
        self._connection.send(*self._renewal(claims)).add_done_callback(
            lambda reply: self._on_renewed(claims, begin_by, reply)
        )
        self._keep_turns(claims)

    def _keep_turns(self, claims: Sequence[Claim]) -> None:
        kept = [(claim, claim.call.turn) for claim in claims if claim.call.turn is not None]
        if not kept:
            return
        command = scripts.KEEP_TURNS.command(
            records=[claim.keys.record for claim, _ in kept],
            base=kept[0][0].keys.records.removesuffix("call:"),
            claims=[claim.turn_parts(turn.line, self.lease_ms) for claim, turn in kept],
        )
        self._connection.send(*command).add_done_callback(_seen)

    def _renewal(self, claims: Sequence[Claim]) -> tuple[Part, ...]:
        calls = [(claim.keys.record, claim.keys.running) for claim in claims]
        return scripts.RENEW.command(calls=calls, lease_ms=self.lease_ms, claims=[claim.parts for claim in claims])

    def _on_renewed(
        self, claims: Sequence[Claim], begin_by: tuple[float, float], reply: "asyncio.Future[list[bytes]]"
    ) -> None:
        error = None if reply.cancelled() else reply.exception()
        if isinstance(error, ResponseError):
            log.warning("claims_not_renewed", error=str(error))
        if not reply.cancelled() and error is None:
            self._confirm(claims, begin_by, reply.result())

    def _confirm(self, claims: Sequence[Claim], begin_by: tuple[float, float], lost: Sequence[bytes]) -> None:
        taken = {token.decode() for token in lost}
        for claim in claims:
            claim.begin_by = _NEVER if claim.token in taken else begin_by
            if claim.token in taken and self._held.pop(claim.token, None) is not None:
                if (calls := this_process().calls) is not None:
                    calls.count_call(metric_families.CLAIMS_LOST, claim.call.tool_name)
                log.warning("claim_lost", call_id=claim.call.call_id, tool=claim.call.tool_name)
                claim.on_lost()


def _seen(reply: "asyncio.Future[object]") -> None:
    error = None if reply.cancelled() else reply.exception()
    if error is not None and not isinstance(error, RedisConnectionLost):
        log.warning("claim_not_let_go", error=str(error))
