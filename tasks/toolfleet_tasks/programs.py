"""Stores programs in Redis, as jobs are stored, and shows and cancels them.

A program is a record, not a process. Its position names the calls that it waits for, and the one step that may be taken
next; its field `told` has the state of the interpreter before that step. Both are sealed, and written in one step, so of two workers
that take a step one succeeds, and no reply is handed over twice. A state is opened only for the step, the caller and the
source that it was stored for.

The calls of a program are made as a job's steps are, each under an id and an idempotency key made of the program's id and
its number. Their records, keys and results are kept as long as a program can wait.
"""

import asyncio
import builtins
import contextlib
import hashlib
import json
import math
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from toolfleet_registry.contracts import Message, PublishedCall, ToolCall, ToolResult
from toolfleet_registry.contracts.jobs import ENDED, JobSpec
from toolfleet_registry.contracts.programs import ProgramCall, ToolProgram
from toolfleet_registry.errors import FleetUnavailable, MessageRefused
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.admission import AdmissionControl
from toolfleet_tasks.jobs.completion import EndNote, end_events_of, end_note, without_secrets
from toolfleet_tasks.jobs.records import Found, JobChange, JobRecords, RecordKind
from toolfleet_tasks.jobs.state_machine import EndedRound, JobPosition, Transition
from toolfleet_tasks.ledger.contents import KEEP
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.messages.ids import RESUME_PROGRAMS, program_key, step_call_id
from toolfleet_tasks.messages.signing import seal_of
from toolfleet_tasks.redis_connection import PipelinedConnection, answered, ignored, run
from toolfleet_tasks.results.receipts import HAD
from toolfleet_tasks.results.stored import read_stored
from toolfleet_tasks.results.verifier import Verifier
from toolfleet_tasks.scripts import COUNTED_FROM_BYTES

log = get_logger(__name__)

T = TypeVar("T")

_FIELDS = ("spec", "at", "end", "end_signature")  # without the state, which may have megabytes
_INLINE_CHARACTERS = 65_536  # of a state: sealing a larger one is done in a thread
_TRIES = 20  # to mark a program that moves meanwhile
_ANSWERED = frozenset(
    {b"failed", b"permanent", b"not_sent", b"turned_away"}
)  # outcomes of attempts that leave nothing open
_MOST_LISTED = 1_000
_MARGIN_SECONDS = 3_600  # beyond a program's time, for clocks and for a worker that takes a call up again
_HANDED_OVER_SECONDS = 60  # beyond its caller's call, which has the value then: it counts in the user's share so long
_WAIT_SECONDS = 1.0  # between two looks at a program whose end may not have been announced


class ProgramPosition(JobPosition):
    """The position of a program; its state is `waiting`, or one of the ends. `step` counts the states that were stored.

    `waits`: the numbers of the calls whose replies are not handed over; `calls`: how many numbers are given; `detached`:
    its caller no longer waits for its end; `hides`: a tool with sensitive results was called; `is_cancelled`: its end was
    asked for; `call_until`: the deadline of its caller's call; `tries`: how often its next step was begun and not stored;
    `due_at`: when to publish a call that could not be, for a reason that passes.
    """

    waits: tuple[int, ...] = ()
    calls: int = 0
    detached: bool = False
    hides: bool = False
    is_cancelled: bool = False
    tries: int = 0

    def wakes(self, now: float) -> bool:
        """Return whether its conversation is woken if it ends now: its caller no longer waits."""
        return self.detached or (self.call_until or 0) <= now


class WaitingCall(Message):
    """A call of a program that was numbered, and whose reply is not handed over.

    `monty_id` is the interpreter's number of it. `until`: by when it is published, in seconds since the epoch, or has ended,
    if no people have to approve it. `returns_unknown`: an unknown outcome is returned, and does not end the program. `server`: the
    Redis, with its data, that knew no record of it then; another one may have lost it.
    """

    number: int
    monty_id: int
    tool_name: str
    arguments: dict[str, Any]
    until: float
    returns_unknown: bool = False
    server: str = ""

    def data_in(self, server: str) -> str:
        """Return the id of the data in which its record is, if it has one; "" if this server may have lost it."""
        return server.partition(" ")[2] if self.server == server else ""


class ProgramState(Message):
    """The state of a program before its next step, as it is sealed.

    `program`, `step`, `caller` and `source` (digests) say what it belongs to; `format` is the snapshot's, and `snapshot`
    is in base64.
    """

    program: str
    step: int
    caller: str
    source: str
    format: int
    snapshot: str
    waiting: tuple[WaitingCall, ...]
    made: tuple[ProgramCall, ...]


class ProgramEnd(EndNote):
    """A program's end, with its calls. A sensitive result is kept only for a caller that waits for it.

    `digest`: that of a result over 64 kB, which lies apart, for some hours at most; `result` says so then.
    """

    calls: tuple[ProgramCall, ...] = ()
    digest: str = ""


_KIND = RecordKind("program", ProgramPosition, ProgramEnd, lambda keys: keys.of_programs, _FIELDS)


@dataclass(frozen=True, slots=True)
class StoredProgram:
    """A program as it was read; `at` is its position as it was written. `state`: that of its next step, if it was stored here."""

    spec: JobSpec
    place: ProgramPosition
    at: str
    end: ProgramEnd | None = None
    state: ProgramState | None = None

    @property
    def source(self) -> str:
        """The program's text; '' of one that has ended."""
        start = self.spec.start
        found = start.arguments.get("source") if start is not None and isinstance(start.arguments, dict) else None
        return found if isinstance(found, str) else ""

    def call_id(self, number: int) -> str:
        """Return the id of the program's call of this number."""
        return step_call_id(self.spec.job_id, number)

    def call(self, number: int, tool_name: str, arguments: dict[str, Any]) -> ToolCall:
        """Return the program's call of this number, under its key."""
        key = program_key(self.spec.job_id, number)
        return ToolCall(tool_name=tool_name, arguments=arguments, user_id=self.spec.user_id, idempotency_key=key)


@dataclass(frozen=True, slots=True)
class CallEnd:
    """A call as the ledger knows it: nothing, that people are asked, that it was begun, or its end.

    `is_answered`: its module has answered each attempt that was sent; without that a failed one may have happened.
    `stored`: its result as it is stored, if that was asked for and is small.
    """

    state: Literal["", "people", "begun", "done"]
    is_answered: bool = False
    stored: bytes = b""


class ProgramMoved(Exception):
    """A program is not where it was read any more: another worker has moved it."""


class ProgramRecords:
    """The programs of one connection, to the Redis of the results. Belongs to the connection's event loop.

    Raises `RedisConnectionLost` or `ResponseError` if Redis does not answer or refuses.
    """

    def __init__(self, connection: PipelinedConnection, settings: Settings, verifier: Verifier | None = None) -> None:
        self._connection, self._settings, self._keys = connection, settings, settings.keys
        self._verifier = verifier or Verifier(connection, settings)
        self._records = JobRecords(connection, settings, self._verifier, _KIND)
        self._has_core = settings.core_url is not None
        self._wakes = seal_of(settings, purpose="job")  # of what wakes a conversation, whatever has ended
        self._admission = AdmissionControl(settings)

    async def create(self, spec: JobSpec, place: ProgramPosition, *, limit: int) -> StoredProgram | int:
        """Store a program; return it, the one that has its id already, or how many its user has if these are too many."""
        made = await self._records.create(spec, place, limit=limit)
        return made if isinstance(made, int) else _stored(made)

    async def get(self, program_id: str) -> StoredProgram | None:
        """Return a program, also one that has ended, with its whole result, if that is still kept."""
        found = await self._records.get(program_id)
        program = None if found is None else _stored(found)
        if program is None or program.end is None or not program.end.digest:
            return program
        text = await self._connection.read("GET", self._keys.program_value(program_id, program.end.digest))
        if text is None or hashlib.sha256(text).hexdigest() != program.end.digest:
            return program
        return replace(program, end=program.end.model_copy(update={"result": json.loads(text)}))

    async def read(self, program_id: str) -> StoredProgram | None:
        """Return a program as `get` does, to go on with it; one that cannot be read is put off, and one that is gone forgotten.

        Of one that has ended the calls are forgotten that have ended after it.
        """
        program = await self.get(program_id)
        if program is not None and program.end is not None:
            self.drop(program, [each.number for each in program.end.calls])
        if program is None:
            at = await self._connection.execute("HGET", self._keys.program(program_id), "at")
            if at is None:
                await self._connection.execute("ZREM", self._keys.programs_due, program_id)
            else:
                await self._records.put_off(program_id, at)
        return program

    async def refuse(self, program: StoredProgram) -> None:
        """Put off a program whose state cannot be read here."""
        await self._records.put_off(program.spec.job_id, program.at.encode())

    async def state(self, program: StoredProgram) -> ProgramState | None:
        """Return the state that the program's next step begins with; `None` before its first step.

        Raises `ProgramMoved`, also for one that was stored here, `MessageRefused` for one that the fleet did not write for
        this program and step, and `NewerMessage`.
        """
        if program.place.step == 0 or program.place.state in ENDED:
            return None
        name, fields = self._keys.program(program.spec.job_id), ("at", "told")[: 1 + (program.state is None)]
        at, *texts = await self._connection.read("HMGET", name, *fields)
        if at != program.at.encode():
            raise ProgramMoved
        if program.state is not None:
            return program.state
        (text,) = texts
        if text is None:
            raise MessageRefused("The state of the program is missing.")
        return await _aside(len(text), lambda: self._opened(program, text))

    def _opened(self, program: StoredProgram, text: bytes) -> ProgramState:
        spec = program.spec
        state = json_text.load(ProgramState, self._records.unbound("told", spec.job_id, text))
        if (state.program, state.step, state.caller, state.source) != _owner_of(program, program.place.step):
            raise MessageRefused("The state is not that of this program's step.")
        return state

    async def ends(self, call_ids: Sequence[str], *, with_results: bool = False) -> list[CallEnd]:
        """Return what the ledger knows of these calls, in their order; `with_results`: with small results, as they are stored."""
        return await asyncio.gather(*(self._end_of(each, with_result=with_results) for each in call_ids))

    async def _end_of(self, call_id: str, *, with_result: bool) -> CallEnd:
        reading = self._connection.execute("HMGET", self._keys.call(call_id), "state", "begun", "token", "log")
        if with_result:
            part = self._connection.execute("GETRANGE", self._keys.result(call_id), 0, COUNTED_FROM_BYTES - 1)
            found, stored = await asyncio.gather(reading, part)
        else:
            found, stored = await reading, b""
        state, begun, token, log_text = found
        if state != b"done":
            return CallEnd("people" if token == b"approval" else "begun" if begun is not None else "")
        outcomes = {each.partition(b" ")[2].partition(b" ")[0] for each in (log_text or b"").split(b";") if each}
        is_answered = bool(outcomes) and outcomes <= _ANSWERED
        return CallEnd("done", is_answered=is_answered, stored=stored if len(stored) < COUNTED_FROM_BYTES else b"")

    async def result(self, call_id: str, end: CallEnd | None = None) -> tuple[ToolResult | None, int]:
        """Return the result of a call that has ended, and the bytes that are stored; `None` if it has expired or is not genuine.

        `end`: as `ends` has returned it.
        """
        text = end.stored if end is not None else b""
        text = text or await self._connection.read("GET", self._keys.result(call_id))
        text = text or await self._connection.read("HGET", self._keys.call(call_id), "result") or b""
        stored = await self._verifier.believed(call_id, text)
        size = len(text) if stored else 0
        return (await _aside(size, lambda: read_stored(stored, "")) if stored else None), size

    async def move(
        self,
        program: StoredProgram,
        place: ProgramPosition,
        *,
        due_at: float | None = None,
        state: ProgramState | None = None,
    ) -> StoredProgram | None:
        """Move a program that is still where it was read; return it, or `None` with nothing changed.

        Args:
            program: The program as it was read.
            place: Its next position; with the same position only `due_at` is changed.
            due_at: When to look at it next; `None`: as before.
            state: That of the step which follows, as `state_of` returns it; `None`: as before. `place.step` must be another one then.

        """
        sealed = None if state is None else await _aside(len(state.snapshot), lambda: self._sealed(program, state))
        moved = await self._records.move(_found(program), JobChange(place, due_at=due_at, sealed_state=sealed))
        return None if moved is None else replace(_stored(moved), state=state)

    def _sealed(self, program: StoredProgram, state: ProgramState) -> str:
        return self._records.bound("told", program.spec.job_id, json_text.dump(state))

    async def end(
        self, program: StoredProgram, ended: EndedRound | None, calls: Sequence[ProgramCall]
    ) -> StoredProgram | None:
        """End a program that is still where it was read, `None`: as cancelled; return it, or `None` with nothing changed.

        Its conversation is woken if its caller no longer waits for it. Tell who waits with `announce`.
        """
        now, spec, place = fleet_clock.now(), program.spec, program.place
        wakes = place.wakes(now)
        shown = spec.model_copy(update={"hides_results": place.hides and wakes})
        last = place.model_copy(update={"state": "cancelled" if ended is None else ended.state, "waits": ()})
        move = Transition(last, ended, is_over=True)
        base = end_note(shown, move, now)
        assert base is not None
        result, digest = base.result, ""
        value = None if ended is None or shown.hides_results else ended.result
        if value is not None and (result is None or place.hides):
            result, digest = await self._kept_apart(spec, value, None if wakes else place.call_until)
        note = ProgramEnd(
            ended_at=round(now, 3),
            result=result,
            error=base.error,
            error_code="cancelled" if ended is None else ended.error_code,
            calls=tuple(calls),
            digest=digest,
        )
        has_core, seal = self._has_core, self._wakes.sign
        events = end_events_of(shown, move, now, has_core=has_core, seal=seal) if wakes else ()
        moved = await self._records.move(_found(program), JobChange(last, end=note, events=events))
        return None if moved is None else replace(_stored(moved), end=note)

    async def _kept_apart(self, spec: JobSpec, value: Any, until: float | None) -> tuple[str, str]:
        """Keep a large value, `until` its caller has it, or as a call's result; return what stands in its place, and its digest."""
        text = await asyncio.to_thread(json.dumps, value, separators=(",", ":"))
        # A caller that waits has it in a moment, and then it counts as the result of its call.
        digest = hashlib.sha256(text.encode()).hexdigest()
        left = self._settings.result_ttl_seconds if until is None else until - fleet_clock.now() + _HANDED_OVER_SECONDS
        parameters = KEEP.parameters(
            record=self._keys.program(spec.job_id),
            contents=self._keys.program_value(spec.job_id, digest),  # of two workers that end it one has its own
            stored=self._keys.stored(spec.user_id),
            token="",
            call_id=spec.job_id,
            text=text,
            seconds=math.ceil(left),
            most=self._settings.stored_bytes_per_caller if until is None else 2**53,
            spent=0,
        )
        await run(self._connection, KEEP, parameters)
        return f"A value of {len(text)} bytes, which is not kept here.", digest

    def announce(self, program_id: str) -> None:
        """Tell who waits for a program that it has ended. Is not waited for."""
        self._connection.send("PUBLISH", self._keys.program_changed(program_id), "").add_done_callback(ignored)

    def forget_calls(self, program: StoredProgram) -> None:
        """Keep of an ended program's calls what is kept of any call, without their results. Is not waited for."""
        spec, calls = program.spec, () if program.end is None else program.end.calls
        self.drop(program, [each.number for each in calls])
        seconds = math.ceil(self._settings.result_ttl_seconds)
        for each in calls:
            if each.state not in {"waiting", "left"}:
                intent = self._keys.intent(spec.user_id, program_key(spec.job_id, each.number))
                for key in (self._keys.call(each.call_id), intent):
                    self._connection.send("EXPIRE", key, seconds).add_done_callback(ignored)

    def drop(self, program: StoredProgram, numbers: Collection[int]) -> None:
        """Drop the results of those calls that have ended. Is not waited for: what gets lost expires."""
        if not numbers:
            return
        keys, spec, ids = self._keys, program.spec, [*map(program.call_id, numbers)]
        names = [(keys.call(each), keys.result(each), keys.readers(each), keys.stored(spec.user_id)) for each in ids]
        self._connection.send(*HAD.command(results=names, had=[(each, "", "") for each in ids])).add_done_callback(
            ignored
        )

    async def intents(self, program: StoredProgram, numbers: Collection[int]) -> dict[int, bytes | None]:
        """Return what the keys of the program's calls of these numbers stand for, as it is stored; `None` where nothing is."""
        spec = program.spec
        names = [self._keys.intent(spec.user_id, program_key(spec.job_id, each)) for each in numbers]
        return dict(zip(numbers, await self._connection.execute("MGET", *names) if names else (), strict=True))

    def is_foreign(self, call: PublishedCall, intent: bytes | None) -> bool:
        """Return whether the key of a program's call stands for another call: another one was made under its number."""
        if intent is None:
            return False
        _, _, value = self._admission.intention_of(call)
        holder, digest = [*intent.decode(errors="replace").split(" "), ""][:2]
        return (holder, digest) != (call.call_id, value.partition(" ")[0])

    async def due(self, *, count: int, lease_seconds: float) -> list[str]:
        """Return the ids of at most `count` due programs; other workers have them again after the lease. Two may get one."""
        now, name = fleet_clock.now(), self._keys.programs_due
        found = await self._connection.execute("ZRANGEBYSCORE", name, "-inf", round(now * 1000), "LIMIT", 0, count)
        lease = round((now + lease_seconds) * 1000)
        await asyncio.gather(*(self._connection.execute("ZADD", name, "XX", lease, each) for each in found))
        return [each.decode(errors="replace") for each in found]

    async def of_user(self, user_id: str | None, *, ended: bool, limit: int) -> list[StoredProgram]:
        """Return programs of a user, the newest first."""
        return [_stored(each) for each in await self._records.of_user(user_id, ended=ended, limit=limit)]

    async def of_all(self, *, ended: bool, limit: int) -> list[StoredProgram]:
        """Return programs of all users: the next due first, then, with `ended`, the latest that have ended."""
        return [_stored(each) for each in await self._records.of_all(ended=ended, limit=limit)]


class ProgramService:
    """Shows and cancels the programs of one fleet. Raises `FleetUnavailable` when Redis does not answer.

    `control` runs one of our own tasks, and `watching` follows a channel.
    """

    def __init__(
        self,
        records: ProgramRecords,
        settings: Settings,
        *,
        control: Callable[..., Awaitable[None]],
        watching: Callable[[bytes, Callable[[bytes], None]], AbstractContextManager[None]],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self.records = records
        self._keys, self._control, self._watching, self._spawn = settings.keys, control, watching, spawn

    async def get(self, program_id: str, user_id: str | None, *, of_any: bool = False) -> ToolProgram | None:
        """Return a program of this user, or for operators of any, with its calls; `None` if there is none, or if it is no longer kept."""
        program = await answered(self.records.get(program_id))
        is_theirs = program is not None and (of_any or program.spec.user_id == user_id)
        return await self._shown(program) if program is not None and is_theirs else None

    async def list(self, user_id: str | None, *, ended: bool = True, limit: int = 100) -> builtins.list[ToolProgram]:
        """Return at most `limit` programs of this user, the newest first; without `ended` only those that are not over."""
        found = await answered(self.records.of_user(user_id, ended=ended, limit=_bounded(limit)))
        return [shown(each) for each in found]

    async def list_all(self, *, ended: bool = False, limit: int = 100) -> builtins.list[ToolProgram]:
        """Return at most `limit` programs of all users, for operators: the next due first; of ended ones, the latest first."""
        return [shown(each) for each in await answered(self.records.of_all(ended=ended, limit=_bounded(limit)))]

    async def cancel(self, program_id: str, user_id: str | None, *, of_any: bool = False) -> ToolProgram | None:
        """Have a program that `get` would return ended, and its calls withdrawn that no worker has begun. One that has ended stays as it is."""
        for _ in range(_TRIES):
            program = await answered(self.records.get(program_id))
            if program is None or not (of_any or program.spec.user_id == user_id):
                return None
            if program.place.state not in ENDED and not program.place.is_cancelled:
                place = program.place.model_copy(update={"is_cancelled": True})
                program = await answered(self.records.move(program, place, due_at=fleet_clock.now()))
            if program is not None:
                if program.place.state not in ENDED:
                    self._spawn(self.kick(program_id))
                return await self._shown(program)
        raise FleetUnavailable(f"The program {program_id!r} moves all the time: try again.")

    async def wait(self, program_id: str, *, seconds: float) -> StoredProgram | None:
        """Return a program when it has ended, or as it is after `seconds`; `None` if there is none."""
        changed, loop = asyncio.Event(), asyncio.get_running_loop()
        until = loop.time() + seconds
        with self._watching(self._keys.program_changed(program_id).encode(), lambda _: changed.set()):
            while True:
                changed.clear()
                program = await answered(self.records.get(program_id))
                left = until - loop.time()
                if program is None or program.place.state in ENDED or left <= 0:
                    return program
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(left, _WAIT_SECONDS)):
                        await changed.wait()

    async def kick(self, program_id: str) -> None:
        """Have a worker that can run programs look at one. Raises nothing: beat's tick will do."""
        try:
            await self._control(RESUME_PROGRAMS, program_id)
        except Exception as exc:  # noqa: BLE001 - Redis, kombu and its transports raise anything
            log.warning("kick_not_published", task=RESUME_PROGRAMS, error=str(exc) or repr(exc))

    async def _shown(self, program: StoredProgram) -> ToolProgram:
        calls: Sequence[ProgramCall] = () if program.end is None else program.end.calls
        try:
            state = await answered(self.records.state(program))
            calls = calls if state is None else state.made
        except (ProgramMoved, MessageRefused, ValueError):  # or only a newer worker can read it
            log.info("program_calls_not_shown", program_id=program.spec.job_id)
        return shown(program).model_copy(update={"calls": tuple(calls)})


def shown(program: StoredProgram) -> ToolProgram:
    """Return a program as its owner sees it, without its calls."""
    spec, place, end = program.spec, program.place, program.end
    state: Any = place.state
    ended = EndedRound(state) if end is None else EndedRound(state, end.result, end.error, end.error_code)
    ended = without_secrets(spec.model_copy(update={"hides_results": place.hides}), ended)
    return ToolProgram(
        program_id=spec.job_id,
        state=state,
        user_id=spec.user_id,
        conversation_id=spec.conversation.conversation_id,
        created_at=spec.created_at,
        expires_at=spec.deadline_at,
        ended_at=None if end is None else end.ended_at,
        calls_made=place.calls,
        result=ended.result,
        error=ended.error,
        error_code=ended.error_code,
    )


def state_of(
    program: StoredProgram,
    step: int,
    snapshot: tuple[int, str],
    waiting: Collection[WaitingCall],
    made: Collection[ProgramCall],
) -> ProgramState:
    """Return the state of a program before this step, of a snapshot with its format, in base64."""
    program_id, step, caller, source = _owner_of(program, step)
    return ProgramState(
        program=program_id,
        step=step,
        caller=caller,
        source=source,
        format=snapshot[0],
        snapshot=snapshot[1],
        waiting=tuple(waiting),
        made=tuple(made),
    )


def published_until(intent: bytes | None) -> float | None:
    """Return the deadline of a call whose key stands for this, if it was published, or may have been."""
    if intent is None:
        return None
    try:
        return float(intent.split(b" ")[2])
    except (ValueError, IndexError):  # another program has written it
        return 0


def _owner_of(program: StoredProgram, step: int) -> tuple[str, int, str, str]:
    """Return what a state belongs to: the program, its step, and the digests of its caller, with its rights, and of its source."""
    digests = [
        hashlib.sha256(each.encode("utf-8", "surrogatepass")).hexdigest()
        for each in (json_text.dump(program.spec.caller), program.source)
    ]
    return program.spec.job_id, step, digests[0], digests[1]


def _bounded(limit: int) -> int:
    return min(max(limit, 1), _MOST_LISTED)


def _stored(found: Found) -> StoredProgram:
    place, end = found.place, found.end
    assert isinstance(place, ProgramPosition)
    return StoredProgram(found.spec, place, found.at, end if isinstance(end, ProgramEnd) else None)


def _found(program: StoredProgram) -> Found:
    return Found(program.spec, program.place, program.at, {}, fleet_clock.now(), end=program.end)


async def _aside(size: int, work: Callable[[], T]) -> T:
    """Do work on a text of this size in a thread, unless it is small."""
    return work() if size < _INLINE_CHARACTERS else await asyncio.to_thread(work)
