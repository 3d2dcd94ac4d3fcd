"""Stores approvals in Redis, sealed where the fleet signs. A record that the fleet has not written is ignored.

An approval is a hash: `state`, `revision` (another one after each decision), `request` and `call` (sealed), `expires_ms`, `votes`,
`journal`, and `trace` of a call that was made in one. Lists read `summary` (sealed, without large arguments, of the revision `summarised`)
and find it by `words`; `stored_key` and `stored_member` say where it counts, `trimmed` that large arguments are gone. The ledger's record of a call that waits has the token `approval`; of one that was approved `approved`, sealed, which the claim of
its first attempt consumes, and `may_begin` until then. Every script may be sent again, when its answer was lost.
"""

import asyncio
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

from toolfleet_registry.contracts import Message, PublishedCall
from toolfleet_registry.contracts.calls import ApprovedCall
from toolfleet_registry.contracts.tool_definition import Effect
from toolfleet_registry.errors import MessageRefused
from toolfleet_registry.redis.keys import ApprovalKeys
from toolfleet_registry.settings import Settings
from toolfleet_registry.spans import TraceContext, context_here
from toolfleet_registry.system import fleet_clock
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.admission import Refusal
from toolfleet_tasks.approvals.approvers import (
    ApprovalState,
    ApprovalSummary,
    ApprovalVote,
    Approver,
    AskedApproval,
    JournalLine,
    word_of_conversation,
    words_of_approver,
    words_of_request,
)
from toolfleet_tasks.ledger.ledger import approval_seal
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.messages.signing import seal_of
from toolfleet_tasks.redis_connection import PipelinedConnection, run
from toolfleet_tasks.scripts import script
from toolfleet_tasks.tracing import trace_in, trace_text

log = get_logger(__name__)

M = TypeVar("M", bound=Message)

MOST_WAITING = 100_000
"""Calls that wait for people at once: more are a program's fault, and nobody would get to the end of them."""

KEPT_SECONDS = 7 * 86_400
"""An approval is kept so long after its call can begin no more."""

SETTLED_KEPT = 10_000
_MARGIN_SECONDS = 60
_MOST_READ = 1_000  # approvals that one script looks at for a list
_AT_ONCE = 100  # summaries in one answer: 2 MB, as a connection that subscribes is cut for much more
_SUMMARISED_AT_ONCE = 8  # each is read whole, over one connection

Place = Literal["", "published", "begun", "done"]
"""Where the call is: it waits, may begin, was begun, or has ended."""

_REQUEST = script("approvals/request")
"""Returns `waiting`; `joined` or `conflict` with the call that its idempotency key stands for; `ended`; `crowd` with how many wait; or
`stored` with the bytes of its user's share.
"""

_DECIDE = script("approvals/decide")
"""Returns `taken`; `raced` if somebody has decided meanwhile; what the approval is, if it waits no longer; `expired`, or `waiting` if it is not
yet; `ended` if its call was taken back; `lost` if Redis has lost its record; or `unknown`.
"""

_READ_APPROVAL = script("approvals/read")
"""Returns the fields of the approval, and `done`, `published`, `begun` or '' for its call; nothing if there is none."""

_LIST_APPROVALS = script("approvals/list")
"""Returns the next rank, how many are still to be left out, what has no summary of its revision, and summaries with what belongs to them."""

_SUMMARISE = script("approvals/summarise")

_DUE = script("approvals/due")
"""Returns their ids."""

_SETTLE = script("approvals/settle")


@dataclass(frozen=True, slots=True)
class ListedApproval:
    """An approval as lists and streams have it: large arguments of its `request` may be left out."""

    request: AskedApproval
    """What people are asked."""
    effect: Effect | None
    """The effect of the call, as its tool declares it."""
    arguments_left_out: bool
    """Whether the arguments are not here, as they are large."""
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

    @property
    def approval_id(self) -> str:
        """The approval's id, which is that of the call."""
        return self.request.approval_id

    @property
    def is_open(self) -> bool:
        """Whether people may decide about it."""
        return self.state == "waiting" and self.place != "done"

    @property
    def is_withdrawn(self) -> bool:
        """Whether its call was cancelled before a decision."""
        return self.state == "waiting" and self.place == "done"


@dataclass(frozen=True, slots=True)
class StoredApproval(ListedApproval):
    """An approval as it was read, with all of its call. Once it is settled, large arguments are gone."""

    call: PublishedCall
    """The call as it would be published now."""
    origin: TraceContext | None = None
    """The place of the call in a trace, or None."""


@dataclass(frozen=True, slots=True)
class ApprovalChange:
    """The whole new content of an approval."""

    state: ApprovalState
    request: AskedApproval
    call: PublishedCall
    votes: Sequence[ApprovalVote]
    journal: Sequence[JournalLine]
    approved: ApprovedCall | None = None


class ApprovalRecords:
    """The approvals of one Redis.

    Raises `RedisConnectionLost` or `ResponseError` if Redis does not answer or refuses.
    """

    def __init__(self, connection: PipelinedConnection, settings: Settings) -> None:
        self._connection, self._keys = connection, settings.keys
        self._stored_bytes_most = settings.stored_bytes_per_caller
        self.keys = ApprovalKeys(settings.keys)
        self._seal = approval_seal(settings)
        self._calls = seal_of(settings)
        self._is_traced = settings.traces is not False

    async def request(
        self, call: PublishedCall, request: AskedApproval, *, intention: tuple[str, int, str] | None
    ) -> Refusal | None:
        """Have the call wait; return why it does not, or `None`.

        `intention` is that of an idempotency key, as admission has it.
        """
        intent, intent_seconds, digest = intention or (self._keys.call(call.call_id), 0, "")
        left = request.expires_at - fleet_clock.now()
        parameters = _REQUEST.parameters(
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
            stored_bytes_most=self._stored_bytes_most,
            **self._index_fields(request, call),
        )
        kind, *rest = await run(self._connection, _REQUEST, parameters)
        if kind == b"waiting":
            return None
        if kind == b"crowd":
            return Refusal("crowd", count=int(rest[0]))
        if kind == b"stored":
            return Refusal("stored", count=int(rest[0]))
        return Refusal(kind.decode(), call_id=rest[0].decode())

    async def read(self, approval_id: str) -> StoredApproval | None:
        """Read the approval; `None` if there is none, or it is not the fleet's."""
        parameters = _READ_APPROVAL.parameters(
            approval=self.keys.approval(approval_id), record=self._keys.call(approval_id)
        )
        found = await run(self._connection, _READ_APPROVAL, parameters, reads=True)
        if not found:
            return None
        state, revision, request, text, _, votes, journal, trace, trimmed, place = map(_text, found)
        try:
            call = self._calls.open(text, task_id=approval_id)
            read = StoredApproval(
                self._opened(AskedApproval, request),
                call.effect,
                bool(trimmed),
                cast("ApprovalState", state),
                int(revision),
                tuple(self._believed(approval_id, votes)),
                tuple(self._opened(JournalLine, line) for line in _texts(journal)),
                cast("Place", place),
                call,
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
        """Write the new state of an approval that was read. Returns what `_DECIDE` returns."""
        approval_id, now = found.approval_id, fleet_clock.now()
        left = max(decision.call.deadline_at, decision.request.expires_at) - now
        approved = decision.approved
        parameters = _DECIDE.parameters(
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
            **self._index_fields(decision.request, decision.call),
        )
        answer = await run(self._connection, _DECIDE, parameters)
        return str(answer.decode())

    async def due_count(self) -> int:
        """Return the number of approvals that need a step now."""
        now = str(_ms(fleet_clock.now()))
        return int(await self._connection.execute("ZCOUNT", self.keys.waiting, "-inf", now))

    async def due(self, *, count: int, lease_seconds: float) -> list[str]:
        """Take the ids of approvals that need a step now."""
        parameters = _DUE.parameters(
            waiting=self.keys.waiting, fleet_ms=_ms(fleet_clock.now()), lease_ms=_ms(lease_seconds), count=count
        )
        return [found.decode() for found in await run(self._connection, _DUE, parameters)]

    async def put_off(self, approval_id: str, until: float) -> None:
        """Check the approval again at this time, in seconds since the epoch."""
        await self._connection.execute("ZADD", self.keys.waiting, "XX", str(_ms(until)), approval_id)

    async def settle(self, approval_id: str, found: StoredApproval | None = None) -> None:
        """Note that the approval needs nothing more. Large arguments of what was `found` are dropped."""
        request = call = ""
        summary = None if found is None else ApprovalSummary.of(found.request, found.effect)
        if found is not None and summary is not None and summary.arguments_left_out:
            small: dict[str, Any] = {"arguments": {}, "context": None}
            request, call = self._sealed(summary.request), self._calls.seal(found.call.model_copy(update=small))
        parameters = _SETTLE.parameters(
            waiting=self.keys.waiting,
            settled=self.keys.settled,
            approval=self.keys.approval(approval_id),
            request=request,
            call=call,
            call_id=approval_id,
            fleet_ms=_ms(fleet_clock.now()),
            kept=SETTLED_KEPT,
            seconds=KEPT_SECONDS,
        )
        await run(self._connection, _SETTLE, parameters)

    async def keep_asked(self, user_id: str | None, idempotency_key: str, request: AskedApproval) -> None:
        """Store which call the user's key has stood for. It outlives the call's end, which opens the key again."""
        seconds = math.ceil(max(request.expires_at - fleet_clock.now(), 0)) + KEPT_SECONDS
        key = self.keys.asked(user_id, idempotency_key)
        await self._connection.execute("SET", key, request.approval_id, "EX", str(seconds))

    async def asked(self, user_id: str | None, idempotency_key: str) -> str | None:
        """Return the id of the call that was asked about under this key, or `None`."""
        found: bytes | None = await self._connection.execute("GET", self.keys.asked(user_id, idempotency_key))
        return None if found is None else found.decode()

    async def count(self) -> int:
        """Count those that are not settled."""
        return int(await self._connection.execute("ZCARD", self.keys.waiting))

    async def page(
        self,
        *,
        settled: bool,
        limit: int,
        offset: int,
        viewer: Approver | None = None,
        conversation_id: str | None = None,
        keep: Callable[[ListedApproval], bool] = lambda _: True,
    ) -> list[ListedApproval]:
        """List those that wait, the next to expire first; or of those that are settled the last first.

        With a `viewer` those that may be theirs to see, of which those that are not to `keep` are left out.
        """
        start, skip, found = 0, offset, list[ListedApproval]()
        while start >= 0 and len(found) < limit:
            start, skip, read = await self._listed(
                index=self.keys.settled if settled else self.keys.waiting,
                start=start,
                descending="1" if settled else "",
                most=_MOST_READ,
                skip=skip,
                want=min(limit - len(found), _AT_ONCE),
                conversation="" if conversation_id is None else word_of_conversation(conversation_id),
                viewer=() if viewer is None else words_of_approver(viewer),
            )
            found += filter(keep, read)
        return found

    async def listed(self, approval_id: str) -> ListedApproval | None:
        """Return one approval as lists have it; `None` as of `read`."""
        start, found = 0, list[ListedApproval]()
        while start >= 0 and not found:
            start, _, found = await self._listed(ids=(approval_id,))
        return found[0] if found else None

    async def _listed(
        self,
        *,
        index: str = "",
        start: int = 0,
        descending: str = "",
        most: int = 2,
        skip: int = 0,
        want: int = 2,
        conversation: str = "",
        viewer: Sequence[str] = (),
        ids: Sequence[str] = (),
    ) -> tuple[int, int, list[ListedApproval]]:
        """Ask for one answer of `_LIST_APPROVALS`, and add the summaries that are missing: then it has to be asked again."""
        parameters = _LIST_APPROVALS.parameters(
            index=index or self.keys.waiting,
            start=start,
            descending=descending,
            most=most,
            skip=skip,
            want=want,
            approvals=self.keys.approval(""),
            calls=self._keys.call(""),
            conversation=conversation,
            viewer=viewer,
            ids=ids,
        )
        start, skip, stale, found = await run(self._connection, _LIST_APPROVALS, parameters, reads=True)
        for k in range(0, len(stale), _SUMMARISED_AT_ONCE):
            some = stale[k : k + _SUMMARISED_AT_ONCE]
            await asyncio.gather(*(self._summarise(name.decode(), revision.decode()) for name, revision in some))
        read = [self._listed_of([*map(_text, each)]) for each in found]
        return start, skip, [each for each in read if each is not None]

    async def _summarise(self, approval_id: str, revision: str) -> None:
        """Write the summary of an approval that an older process has written; an empty one of what cannot be read."""
        found, summary, words = await self.read(approval_id), "", ""
        if found is not None:
            revision, words = str(found.revision), words_of_request(found.request)
            summary = self._sealed(ApprovalSummary.of(found.request, found.effect))
        key = self.keys.approval(approval_id)
        parameters = _SUMMARISE.parameters(approval=key, revision=revision, summary=summary, words=words)
        await run(self._connection, _SUMMARISE, parameters)

    def _index_fields(self, request: AskedApproval, call: PublishedCall) -> dict[str, str]:
        """Return the words by which an approval is listed, and the counters that it counts in."""
        return {
            "summary": self._sealed(ApprovalSummary.of(request, call.effect)),
            "words": words_of_request(request),
            "stored": self._keys.stored(call.user_id),
        }

    def _listed_of(self, fields: Sequence[str]) -> ListedApproval | None:
        state, revision, summary, votes, journal, place, approval_id = fields
        try:
            read = self._opened(ApprovalSummary, summary)
            listed = ListedApproval(
                read.request,
                read.effect,
                read.arguments_left_out,
                cast("ApprovalState", state),
                int(revision),
                tuple(self._believed(approval_id, votes)),
                tuple(self._opened(JournalLine, line) for line in _texts(journal)),
                cast("Place", place),
            )
        except (MessageRefused, ValueError) as exc:
            log.warning("approval_unreadable", approval_id=approval_id, error=str(exc))
            return None
        if listed.approval_id != approval_id:
            log.warning("approval_unreadable", approval_id=approval_id, error="it is another call's")
            return None
        return listed

    def _sealed(self, message: Message) -> str:
        return self._seal.sign(json_text.dump(message))

    def _opened(self, kind: type[M], text: str) -> M:
        return json_text.load(kind, self._seal.read(text))

    def _believed(self, approval_id: str, votes: str) -> list[ApprovalVote]:
        """Return the genuine votes for this approval."""
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
    """Return the kinds of an approval's events; an approval that is not enough yet is a vote."""
    is_open = decision.state == "waiting"
    return ["voted" if is_open and line.what == "approved" else line.what for line in decision.journal[before:]]


def _texts(text: str) -> list[str]:
    read: Any = json.loads(text) if text else []
    return [each for each in read if isinstance(each, str)] if isinstance(read, list) else []


def _text(part: bytes | int) -> str:
    return part.decode(errors="replace") if isinstance(part, bytes) else str(part)


def _ms(seconds: float) -> int:
    return math.ceil(seconds * 1000)
