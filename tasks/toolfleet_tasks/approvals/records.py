"""Stores approvals in Redis, sealed where the fleet signs. What nobody of the fleet has written counts for nothing."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

from toolfleet_registry.contracts import Message, PublishedCall
from toolfleet_registry.contracts.approvals.terms import ApprovedCall
from toolfleet_registry.errors import MessageRefused
from toolfleet_registry.redis.approval_keys import ApprovalKeys
from toolfleet_registry.settings import Settings
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.time import fleet_clock
from toolfleet_registry.tracing.here import context_here
from toolfleet_registry.tracing.trace_context import TraceContext
from toolfleet_tasks.admission.refusal import Refusal
from toolfleet_tasks.approvals.request import (
    ApprovalState,
    ApprovalVote,
    AskedApproval,
    JournalLine,
)
from toolfleet_tasks.ledger.approved import approval_seal
from toolfleet_tasks.lua.approvals import DECIDE, DUE, READ_APPROVAL, REQUEST, SETTLE
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.messages.signing import seal_of
from toolfleet_tasks.redis.connection import PipelinedConnection
from toolfleet_tasks.redis.script_runner import run
from toolfleet_tasks.tracing.message_trace import trace_in, trace_text

M = TypeVar("M", bound=Message)

MOST_WAITING = 100_000
"""Calls that wait for people at once: more are a program's fault, and nobody would get to the end of them."""

KEPT_SECONDS = 7 * 86_400
"""An approval is kept so long after its call can begin no more."""

SETTLED_KEPT = 10_000
_MARGIN_SECONDS = 60

Place = Literal["", "published", "begun", "done"]
"""Where the call is: it waits, may begin, was begun, or has ended."""

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class StoredApproval:
    """An approval as it was read."""

    request: AskedApproval
    """What people are asked."""
    call: PublishedCall
    """The call as it would be published now."""
    state: ApprovalState
    """`waiting`, `approved`, `rejected` or `expired`."""
    revision: int
    """How often something was decided about it, from 1."""
    votes: tuple[ApprovalVote, ...]
    """What each person has decided about the call as it is now."""
    journal: tuple[JournalLine, ...]
    """All that has happened to it, in that order."""
    place: Place
    """Where the call is: it waits, may begin (`published`), was `begun`, or is `done`."""
    origin: TraceContext | None = None
    """Where the call was made in a trace; `None`: in none."""

    @property
    def approval_id(self) -> str:
        """Its id, which is that of the call."""
        return self.request.approval_id

    @property
    def is_open(self) -> bool:
        """Whether people may decide about it."""
        return self.state == "waiting" and self.place != "done"

    @property
    def is_withdrawn(self) -> bool:
        """Whether its call was taken back while people decided."""
        return self.state == "waiting" and self.place == "done"


@dataclass(frozen=True, slots=True)
class ApprovalChange:
    """What becomes of an approval: all of it."""

    state: ApprovalState
    request: AskedApproval
    call: PublishedCall
    votes: Sequence[ApprovalVote]
    journal: Sequence[JournalLine]
    approved: ApprovedCall | None = None


class ApprovalRecords:
    """Those of one Redis. Raises `RedisConnectionLost` or `ResponseError` where Redis does not do what it is asked."""

    def __init__(self, connection: PipelinedConnection, settings: Settings) -> None:
        self._connection, self._keys = connection, settings.keys
        self.keys = ApprovalKeys(settings.keys)
        self._seal = approval_seal(settings)
        self._calls = seal_of(settings)
        self._is_traced = settings.traces is not False

    async def request(
        self, call: PublishedCall, request: AskedApproval, *, intention: tuple[str, int, str] | None
    ) -> Refusal | None:
        """Have the call wait; `None`, or why it does not. `intention`: of an idempotency key, as admission has it."""
        intent, intent_seconds, digest = intention or (self._keys.call(call.call_id), 0, "")
        left = request.expires_at - fleet_clock.now()
        parameters = REQUEST.parameters(
            record=self._keys.call(call.call_id),
            intent=intent,
            approval=self.keys.approval(call.call_id),
            waiting=self.keys.waiting,
            call_id=call.call_id,
            deadline=request.expires_at,
            intention=digest,
            intent_seconds=max(intent_seconds, math.ceil(left) + _MARGIN_SECONDS),
            request=self._sealed(request),
            call=self._calls.seal(call),
            expires_ms=_ms(request.expires_at),
            seconds=math.ceil(left) + KEPT_SECONDS,
            effect=call.effect or "",
            most=MOST_WAITING,
            events=self.keys.events,
            channel=self.keys.changed,
            trace=trace_text(context_here() if self._is_traced else None),
        )
        kind, *rest = await run(self._connection, REQUEST, parameters)
        if kind == b"waiting":
            return None
        if kind == b"crowd":
            return Refusal("crowd", count=int(rest[0]))
        return Refusal(kind.decode(), call_id=rest[0].decode())

    async def read(self, approval_id: str) -> StoredApproval | None:
        """The approval; `None` if there is none, or nobody of the fleet has written it."""
        parameters = READ_APPROVAL.parameters(
            approval=self.keys.approval(approval_id), record=self._keys.call(approval_id)
        )
        found = await run(self._connection, READ_APPROVAL, parameters)
        if not found:
            return None
        state, revision, request, call, _, votes, journal, trace, place = (
            part.decode(errors="replace") if isinstance(part, bytes) else str(part) for part in found
        )
        try:
            read = StoredApproval(
                self._opened(AskedApproval, request),
                self._calls.open(call, task_id=approval_id),
                cast("ApprovalState", state),
                int(revision),
                tuple(self._believed(approval_id, votes)),
                tuple(self._opened(JournalLine, line) for line in _texts(journal)),
                cast("Place", place),
                trace_in(trace),
            )
        except (MessageRefused, ValueError) as exc:
            log.warning("approval_unreadable", approval_id=approval_id, error=str(exc))
            return None
        if read.request.approval_id != approval_id:
            log.warning("approval_unreadable", approval_id=approval_id, error="it is another call's")
            return None
        return read

    async def decide(self, found: StoredApproval, decision: ApprovalChange) -> str:
        """Write what becomes of an approval that was read. Returns what `DECIDE` says."""
        approval_id, now = found.approval_id, fleet_clock.now()
        left = max(decision.call.deadline_at, decision.request.expires_at) - now
        approved = decision.approved
        parameters = DECIDE.parameters(
            approval=self.keys.approval(approval_id),
            record=self._keys.call(approval_id),
            waiting=self.keys.waiting,
            call_id=approval_id,
            revision=found.revision,
            state=decision.state,
            votes=json.dumps([self._sealed(vote) for vote in decision.votes]),
            journal=json.dumps([self._sealed(line) for line in decision.journal]),
            request=self._sealed(decision.request),
            call=self._calls.seal(decision.call),
            approved="" if approved is None else self._sealed(approved),
            fleet_ms=_ms(now),
            seconds=math.ceil(max(left, 0)) + KEPT_SECONDS,
            events=self.keys.events,
            channel=self.keys.changed,
            kinds=" ".join(_kinds(decision, len(found.journal))),
        )
        answer = await run(self._connection, DECIDE, parameters)
        return str(answer.decode())

    async def due_count(self) -> int:
        """How many there are about which something is to be done now."""
        now = str(_ms(fleet_clock.now()))
        return int(await self._connection.execute("ZCOUNT", self.keys.waiting, "-inf", now))

    async def due(self, *, count: int, lease_seconds: float) -> list[str]:
        """Take the ids about which something is to be done now."""
        parameters = DUE.parameters(
            waiting=self.keys.waiting, fleet_ms=_ms(fleet_clock.now()), lease_ms=_ms(lease_seconds), count=count
        )
        return [found.decode() for found in await run(self._connection, DUE, parameters)]

    async def put_off(self, approval_id: str, until: float) -> None:
        """Look at it again then, in seconds since the epoch."""
        await self._connection.execute("ZADD", self.keys.waiting, "XX", str(_ms(until)), approval_id)

    async def settle(self, approval_id: str) -> None:
        """There is nothing more to do about it."""
        parameters = SETTLE.parameters(
            waiting=self.keys.waiting,
            settled=self.keys.settled,
            call_id=approval_id,
            fleet_ms=_ms(fleet_clock.now()),
            kept=SETTLED_KEPT,
            seconds=KEPT_SECONDS,
        )
        await run(self._connection, SETTLE, parameters)

    async def keep_asked(self, user_id: str | None, idempotency_key: str, request: AskedApproval) -> None:
        """Keep which call the user's key has stood for, also after its end, which opens the key again."""
        seconds = math.ceil(max(request.expires_at - fleet_clock.now(), 0)) + KEPT_SECONDS
        key = self.keys.asked(user_id, idempotency_key)
        await self._connection.execute("SET", key, request.approval_id, "EX", str(seconds))

    async def asked(self, user_id: str | None, idempotency_key: str) -> str | None:
        """Which call that was; `None` for none."""
        found: bytes | None = await self._connection.execute("GET", self.keys.asked(user_id, idempotency_key))
        return None if found is None else found.decode()

    async def ids(self, *, settled: bool, limit: int, offset: int) -> list[str]:
        """Of those that wait the next to expire first; of those that are settled the last first."""
        key, command = (self.keys.settled, "ZREVRANGE") if settled else (self.keys.waiting, "ZRANGE")
        found: list[bytes] = await self._connection.execute(command, key, str(offset), str(offset + limit - 1))
        return [each.decode() for each in found]

    def _sealed(self, message: Message) -> str:
        return self._seal.sign(json_text.dump(message))

    def _opened(self, kind: type[M], text: str) -> M:
        return json_text.load(kind, self._seal.read(text))

    def _believed(self, approval_id: str, votes: str) -> list[ApprovalVote]:
        """Those that somebody of the fleet has written, for this approval."""
        found = list[ApprovalVote]()
        for text in _texts(votes):
            try:
                vote = self._opened(ApprovalVote, text)
            except (MessageRefused, ValueError) as exc:
                log.warning("approval_vote_ignored", approval_id=approval_id, error=str(exc))
                continue
            if vote.approval_id == approval_id:
                found.append(vote)
        return found


def _kinds(decision: ApprovalChange, before: int) -> list[str]:
    """What its events are called; an approval that is not enough is a vote."""
    is_open = decision.state == "waiting"
    return ["voted" if is_open and line.what == "approved" else line.what for line in decision.journal[before:]]


def _texts(text: str) -> list[str]:
    read: Any = json.loads(text) if text else []
    return [each for each in read if isinstance(each, str)] if isinstance(read, list) else []


def _ms(seconds: float) -> int:
    return math.ceil(seconds * 1000)
