"""Stores the records of jobs in Redis. They are created, claimed, moved and ended, each in one step.

Specification and position are sealed.

A record that the fleet did not write, or that cannot be read, is never acted on. It is left to workers with another key
or of another version, and tried again; after days it is removed. Raises `RedisConnectionLost` or `ResponseError` if
Redis does not answer or refuses.

A job is a hash: `spec` (sealed JSON), `at` (its `JobPosition`, sealed JSON: a change names the one that it follows, so
of two workers that move a job one succeeds), `poll_values` (sealed JSON: the values that its polls take from its
start's result) and `end` (JSON, once it is over; with `end_signature`, if the fleet signs); `sent`, of one with a
call under way: when that was last confirmed to be in its queue; `unread`: since when it could not be read; `workflow`:
the mark of the user's workflow; `stopped`: the job of that workflow that has failed: only its own end as cancelled can
follow, and the next worker to claim it writes that. Its id is in `jobs_due` until then, by when (ms) it must be
processed next, and in its user's set by when (ms) it was made; after that in the user's set of ended ones, and in that
of all. Due times are the fleet's time, as are those of its events; other times are the server's.
"""

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from toolfleet_registry.contracts import ToolCall, ToolResult
from toolfleet_registry.contracts.jobs import ENDED, JobSpec
from toolfleet_registry.errors import MessageRefused
from toolfleet_registry.redis.keys import Keys, RecordNames
from toolfleet_registry.redis.script import Parameters
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock, randomness
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.jobs.completion import EndNote, JobEvent, without_arguments
from toolfleet_tasks.jobs.state_machine import JobPosition
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.messages.ids import step_call_id, workflow_mark
from toolfleet_tasks.messages.signing import Purpose, Signatures, seal_of
from toolfleet_tasks.redis_connection import Part, PipelinedConnection, ignored, run
from toolfleet_tasks.results import stored as results
from toolfleet_tasks.results.receipts import HAD
from toolfleet_tasks.results.verifier import Verifier
from toolfleet_tasks.scripts import script
from toolfleet_tasks.wakeups.service import COMPLETIONS_KEPT_SECONDS

log = get_logger(__name__)

# How long an ended job can be looked at, and one stays that cannot be read: who made it before a weekend asks after it.
_KEPT_SECONDS = 7 * 86_400
_FIELDS = ("spec", "at", "told", "end", "end_signature")
_READ_AT_ONCE = 50  # records, whose answers may be large
_BY = 8  # hex digits: among the changes from one place
_UNREAD_REST = 60.0  # seconds, until a record that could not be read is looked at again: by a worker that can, perhaps

CallState = Literal["", "begun", "done"]
"""What the ledger knows of a job's call: nothing, that it was begun, or its end."""

MOST_ENDED = 1_000
"""Jobs that have ended, of a user or of all, that can be listed. Of a user, no others are kept."""

CREATE = script("jobs/create")
"""Returns `made`; `exists` with the fields of the one that has this id; or `full` with how many there are."""

_READ = script("jobs/read")
"""Returns the server's time (ms), then id, spec, at, told, `done`, `begun` or '' for the call, what is stored of it, when it was confirmed
to be in its queue (ms, or ''), and which job has stopped this one (or ''); or nothing.
"""

_CLAIM = script("jobs/claim")
"""Returns the server's time (ms) and, the longest due first, each as `_READ` has it, but without what is stored of calls: a hundred results
could be more than Redis sends in a second.
"""

_MOVE = script("jobs/move")
"""Returns 1, or 0 with nothing changed: others have moved it, or one of its workflow has failed."""

_PUT_OFF = script("jobs/put_off")
"""Returns 1 if nothing reads it any more."""

_ASKED_AT_ONCE = 500  # records, for one field


@dataclass(frozen=True, slots=True)
class Found:
    """A job as it was read, at `now` by the fleet's clock; `at` is its position as it was written.

    `call_state` and `result` are those of the call that is under way; a `result` that has expired, or was not asked for, is
    `None`. `sent_at`: when that call was confirmed to be in its queue. `stopped_by`: a job of its workflow that has failed.
    """

    spec: JobSpec
    place: JobPosition
    at: str
    poll_values: MappingProxyType[str, Any] | dict[str, Any]
    now: float
    call_state: CallState = ""
    result: ToolResult | None = None
    end: EndNote | None = None
    sent_at: float | None = None
    stopped_by: str | None = None


@dataclass(frozen=True, slots=True)
class JobChange:
    """A change of a job: its position, its next due time (`None`: as before), its end if it is over, and the events.

    `poll_values` are the values that its polls take from its start's result; `None`: as before. `is_sent`: its call is
    known to be in its queue. `sealed_state`: what a record of another kind has in the place of values.
    """

    place: JobPosition
    due_at: float | None = None
    poll_values: dict[str, Any] | None = None
    end: EndNote | None = None
    events: Sequence[JobEvent] = field(default=())
    is_sent: bool = False
    sealed_state: str | None = None


@dataclass(frozen=True, slots=True)
class RecordKind:
    """One kind of records: what seals them, the messages of which they consist, their names, and the fields that are read."""

    purpose: Purpose = "job"
    position: type[JobPosition] = JobPosition
    note: type[EndNote] = EndNote
    names: Callable[[Keys], RecordNames] = lambda keys: keys.of_jobs
    fields: tuple[str, ...] = _FIELDS


class JobRecords:
    """The job records of one connection, to the Redis of the results.

    Belongs to the connection's event loop. It may share a `verifier` with others. `kind`: of records of another kind.
    """

    def __init__(
        self,
        connection: PipelinedConnection,
        settings: Settings,
        verifier: Verifier | None = None,
        kind: RecordKind | None = None,
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._kind = kind or RecordKind()
        self._keys, self._names = settings.keys, self._kind.names(settings.keys)
        self._seal = seal_of(settings, purpose=self._kind.purpose)
        self._ends, self._verifier = Signatures(settings, "job end"), verifier or Verifier(connection, settings)
        self._is_signed = self._verifier.is_on
        job, call, result = self._keys.job(""), self._keys.call(""), self._keys.result("")
        self._prefixes = {"job_prefix": job, "call_prefix": call, "result_prefix": result}

    async def create(self, spec: JobSpec, place: JobPosition, *, limit: int) -> Found | int:
        """Create a job.

        Returns it, the job that has its id already, or the number of its user's jobs if that is the most they may have.
        """
        names, at = self._names, self.bound("at", spec.job_id, json_text.dump(place))
        parameters = CREATE.parameters(
            job=names.record(spec.job_id),
            due_jobs=names.due,
            users_jobs=names.of(spec.user_id),
            id=spec.job_id,
            spec=self._seal.sign(json_text.dump(spec)),
            at=at,
            due_ms=_ms(place.due_at or 0),
            limit=limit,
            workflow=workflow_mark(spec.workflow_id),
        )
        answer = await run(self._connection, CREATE, parameters)
        if answer[0] == b"full":
            return int(answer[1])
        if answer[0] == b"made":
            return Found(spec, place, at, {}, spec.created_at)
        found = await self._read(spec.job_id, dict(zip(_FIELDS, answer[1:], strict=False)), spec.created_at)
        return found if found is not None else limit

    async def read(self, job_id: str) -> Found | None:
        """Return a job that can be read, with the result of its call."""
        now_ms, *rest = await run(self._connection, _READ, _READ.parameters(**self._prefixes, id=job_id))
        found = await self._viewed(rest[0], now_ms / 1000) if rest and rest[0] else None
        if found is None or not rest[0][5]:
            return found
        call_id = found.place.call_id or step_call_id(job_id, found.place.step)
        stored = await self._verifier.believed(call_id, rest[0][5])
        tool_name = (found.spec.start or found.spec.poll or ToolCall(tool_name="")).tool_name
        return replace(found, result=results.read_stored(stored, tool_name)) if stored else found

    async def claim(self, *, count: int, lease_seconds: float) -> tuple[list[Found], bool]:
        """Claim at most `count` due jobs for `lease_seconds`; also return whether there were that many.

        Results of calls that have ended are not included: `read` has one.
        """
        parameters = _CLAIM.parameters(
            due_jobs=self._keys.jobs_due,
            **self._prefixes,
            count=count,
            lease_ms=round(lease_seconds * 1000),
            fleet_ms=round(fleet_clock.now() * 1000),
        )
        now_ms, *views = await run(self._connection, _CLAIM, parameters)
        found = [(view, await self._viewed(view, now_ms / 1000)) for view in views]
        for view, job in found:
            if job is None:
                await self.put_off(view[0].decode(errors="replace"), view[2])
        return [job for _, job in found if job is not None], len(views) >= count

    async def rest(self) -> float | None:
        """Return the seconds until the next job is due, at least a millisecond; `None` if none waits."""
        found = await self._connection.execute("ZRANGE", self._keys.jobs_due, 0, 0, "WITHSCORES")
        now = fleet_clock.now()
        return max(*scored(found).values(), 1000 * now + 1) / 1000 - now if found else None

    async def move(self, job: Found, change: JobChange) -> Found | None:
        """Change a job that is still where it was found, and return it.

        `None`, with nothing changed, if another worker has moved it.

        One of a failed workflow can only be cancelled.
        """
        keys, spec, place = self._keys, job.spec, change.place
        if place != job.place:  # no two changes are alike, so that one that was sent twice is known
            place = place.model_copy(update={"by": randomness.uuid4().hex[:_BY]})
        at = job.at if place is job.place else self.bound("at", spec.job_id, json_text.dump(place))
        is_moved = await run(self._connection, _MOVE, self._move_parameters(job, change, place, at))
        if is_moved and job.result is not None:
            confirm(self._connection, _receipt_of(job.spec, job.place, keys))
        return replace(job, place=place, at=at) if is_moved else None

    def _move_parameters(self, job: Found, change: JobChange, place: JobPosition, at: str) -> Parameters:
        names, spec, end = self._names, job.spec, change.end
        end_text = "" if end is None else json_text.dump(end)
        is_failure = spec.workflow_id is not None and place.state in {"failed", "timed_out"}
        recurs = spec.schedule is not None and spec.schedule.cron is not None
        values = change.sealed_state or ""
        if change.poll_values is not None:
            values = self.bound("told", spec.job_id, _compact(change.poll_values))
        return _MOVE.parameters_of(
            (
                names.record(spec.job_id),
                names.due,
                names.of(spec.user_id),
                names.ended_of(spec.user_id),
                names.ended,
                self._keys.wakes_due,
                self._keys.clock,
            ),
            id=spec.job_id,
            before=job.at,
            after=at,
            due_ms="" if change.due_at is None else _ms(change.due_at),
            poll_values=values,
            job_end=end_text,
            spec="" if end is None else self._seal.sign(json_text.dump(without_arguments(spec))),
            kept_seconds=_KEPT_SECONDS,
            ended_kept=MOST_ENDED,
            completion_seconds=COMPLETIONS_KEPT_SECONDS,
            is_sent="1" if change.is_sent else "",
            end_signature="" if end is None else self._ends.of(spec.job_id, end_text),
            is_cancelled="1" if place.state == "cancelled" else "",
            stops="1" if is_failure else "",  # its workflow fails with it
            keeps_turn="1" if end is None and (not recurs or place.state == "starting") else "",
            events=[(one.kind, one.wake_id, one.body, self._place_of(one, spec)) for one in change.events],
        )

    async def get(self, job_id: str) -> Found | None:
        """Return a job, also one that has ended."""
        return next(iter(await self._get_many([job_id])), None)

    async def of_user(
        self, user_id: str | None, *, ended: bool, limit: int, workflow_id: str | None = None
    ) -> list[Found]:
        """Return the user's jobs, or those of one of their workflows, the newest first."""
        ids = of_user(self._connection, self._names, user_id, ended=ended, workflow_id=workflow_id, limit=limit)
        return [job for job in await self._get_many(await ids) if job.spec.user_id == user_id]

    async def of_all(self, *, ended: bool, limit: int, workflow_id: str | None = None) -> list[Found]:
        """Return jobs of all users: the next due first, then, with `ended`, the latest that have ended."""
        ids = of_all(self._connection, self._names, ended=ended, workflow_id=workflow_id, limit=limit)
        return await self._get_many(await ids)

    def sealed(self, text: str) -> str:
        """Seal a text of a job, so that it cannot be changed on its way."""
        return self._seal.sign(text)

    def unsealed(self, text: str) -> str:
        """Open a sealed text. Raises `MessageRefused`."""
        return self._seal.read(text)

    def _place_of(self, event: JobEvent, spec: JobSpec) -> str:
        if event.kind == "completion":
            return self._keys.completions_of(event.conversation_id, spec.user_id)
        return self._keys.wake(event.wake_id)

    async def _get_many(self, ids: Iterable[str]) -> list[Found]:
        names, found = list(ids), list[Found | None]()
        ask = (
            self._connection.read if len(names) > 1 else self._connection.execute
        )  # many may be too much for a connection
        for start in range(0, len(names), _READ_AT_ONCE):
            some = names[start : start + _READ_AT_ONCE]
            fields = self._kind.fields
            answers = await asyncio.gather(*(ask("HMGET", self._names.record(one), *fields) for one in some))
            read = zip(some, (dict(zip(fields, answer, strict=True)) for answer in answers), strict=True)
            found += [await self._read(one, named, 0.0) for one, named in read]
        return [job for job in found if job is not None]

    async def _viewed(self, view: list[Any], server_now: float) -> Found | None:
        now = fleet_clock.now()
        job_id, spec, at, poll_values, call_state, _, sent, stopped = view
        found = await self._read(job_id.decode(errors="replace"), {"spec": spec, "at": at, "told": poll_values}, now)
        if found is None:
            return None
        state: CallState = "done" if call_state == b"done" else "begun" if call_state == b"begun" else ""
        age = server_now - int(sent) / 1000 if sent.isdigit() else -1.0
        sent_at = now - age if age >= 0 else None  # below 0 Redis's clock was set back: unknown
        stopped_by = stopped.decode(errors="replace") or None
        return replace(found, call_state=state, sent_at=sent_at, stopped_by=stopped_by)

    async def put_off(self, job_id: str, at: bytes) -> None:
        """Leave a record that cannot be read here, with its position as it was read, to other workers."""
        rest = _UNREAD_REST * randomness.uniform(0.5, 1)  # spreads load, guards nothing
        parameters = _PUT_OFF.parameters(
            job=self._names.record(job_id),
            due_jobs=self._names.due,
            id=job_id,
            at=at,
            due_ms=_ms(fleet_clock.now() + rest),
            seconds=_KEPT_SECONDS,
        )
        if await run(self._connection, _PUT_OFF, parameters):
            log.error("job_taken_out", job_id=job_id, unread_days=_KEPT_SECONDS // 86_400)

    def bound(self, kind: str, job_id: str, text: str) -> str:
        """Seal one field of a job: where the fleet signs it is worth nothing in another field or job."""
        return self._seal.sign(f"{kind} {job_id} {text}") if self._is_signed else text

    def unbound(self, kind: str, job_id: str, text: bytes) -> str:
        """Open a text made by `bound`. Raises `MessageRefused`, or `ValueError` for an invalid text."""
        read = self._seal.read(text.decode())
        if self._is_signed and not read.startswith(f"{kind} {job_id} "):
            raise MessageRefused("The record is that of another job.")
        return read[len(f"{kind} {job_id} ") :] if self._is_signed else read

    async def _read(self, job_id: str, fields: Mapping[str, bytes | None], now: float) -> Found | None:
        """Parse a job.

        `None`, with a log entry, if the fleet did not write it; without an end that it did not write.
        """
        spec, at, poll_values, end, signature = (fields.get(name) for name in _FIELDS)
        poll_values = poll_values if "told" in self._kind.fields else None
        if spec is None or at is None:
            return None
        try:
            read = json_text.load(JobSpec, self._seal.read(spec.decode()))
            _check_is(read, job_id)
            place = json_text.load(self._kind.position, self.unbound("at", job_id, at))
            values = json.loads(self.unbound("told", job_id, poll_values)) if poll_values else {}
            ended, said = (end or b"").decode(), None if signature is None else signature.decode(errors="replace")
            is_announced = ended and await self._verifier.believes(job_id, "job end", ended, said)
            note = json_text.load(self._kind.note, ended) if is_announced else None
            _check_latest(place, note)
            return Found(read, place, at.decode(), values if isinstance(values, dict) else {}, now, end=note)
        except (MessageRefused, ValueError, RecursionError) as exc:
            log.error("job_refused", job_id=job_id, reason=str(exc).partition("\n")[0])  # noqa: TRY400 - it says all
            return None


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _check_is(spec: JobSpec, job_id: str) -> None:
    if spec.job_id != job_id:
        raise MessageRefused("The record is that of another job.")


def _check_latest(place: JobPosition, note: EndNote | None) -> None:
    if note is not None and place.state not in ENDED:  # its calls would be made again
        raise MessageRefused("The record has an end, and an older position.")


def _ms(moment: float) -> int:
    return round(moment * 1000)


def confirm(connection: PipelinedConnection, receipt: tuple[Part, ...]) -> None:
    """Send a receipt without waiting for an answer: if it is lost, the text expires."""
    connection.send(*receipt).add_done_callback(ignored)


def _receipt_of(spec: JobSpec, place: JobPosition, keys: Keys) -> tuple[Part, ...]:
    """Return the command that confirms a result. A result under a user's key stays: it may be asked for again."""
    step = step_call_id(spec.job_id, place.step)
    call_id = place.call_id or step
    is_keyed = place.step == 0 and spec.start is not None and bool(spec.start.idempotency_key)
    reader = step if place.call_id is not None or is_keyed else ""
    names = (keys.call(call_id), keys.result(call_id), keys.readers(call_id), keys.stored(spec.user_id))
    return HAD.command(results=[names], had=[(call_id, "", reader)])


async def of_user(
    connection: PipelinedConnection,
    names: RecordNames,
    user_id: str | None,
    *,
    ended: bool,
    workflow_id: str | None,
    limit: int,
) -> list[str]:
    """Return at most `limit` of the user's jobs, the newest first."""
    scores: dict[str, float] = {}
    for name in (names.of(user_id), names.ended_of(user_id))[: 1 + ended]:
        scores |= scored(await connection.execute("ZREVRANGE", name, 0, _last(limit, workflow_id), "WITHSCORES"))
    ids = await _of_workflow(connection, names, scores, workflow_id)
    return sorted(ids, key=lambda job_id: -scores[job_id])[:limit]


async def of_all(
    connection: PipelinedConnection, names: RecordNames, *, ended: bool, workflow_id: str | None, limit: int
) -> list[str]:
    """Return at most `limit` jobs of all users: the next due first, then, with `ended`, the latest that have ended."""
    ids, last = list[str](), _last(limit, workflow_id)
    for command, name in (("ZRANGE", names.due), ("ZREVRANGE", names.ended))[: 1 + ended]:
        found = [one.decode() for one in await connection.execute(command, name, 0, last)]
        ids += await _of_workflow(connection, names, found, workflow_id)
    return list(dict.fromkeys(ids))[:limit]


def scored(answer: list[Any]) -> dict[str, float]:
    """Return members and scores, as RESP3 pairs them or RESP2 lists them."""
    if answer and isinstance(answer[0], list):
        return {member.decode(): float(score) for member, score in answer}
    return {answer[i].decode(): float(answer[i + 1]) for i in range(0, len(answer), 2)}


def _last(limit: int, workflow_id: str | None) -> int:
    """Return the index of the last one to read: a workflow's jobs may be anywhere."""
    return limit - 1 if workflow_id is None else -1


async def _of_workflow(
    connection: PipelinedConnection, names: RecordNames, ids: Iterable[str], workflow_id: str | None
) -> list[str]:
    """Return the jobs of this workflow, of any user; of all workflows for `None`."""
    wanted, found = list(ids), list[str]()
    if workflow_id is None:
        return wanted
    mark = workflow_mark(workflow_id).encode()
    for first in range(0, len(wanted), _ASKED_AT_ONCE):
        batch = wanted[first : first + _ASKED_AT_ONCE]
        asked = [connection.execute("HGET", names.record(one), "workflow") for one in batch]
        found += [one for one, answer in zip(batch, asked, strict=True) if await answer == mark]
    return found
