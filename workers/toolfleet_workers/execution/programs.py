"""Runs programs: makes the record of one, takes its steps, and waits for its end.

A program is a record, not a process. A step reads the ends of the calls that the program waits for, hands them over to
its interpreter, stores what that has come to, and only then publishes the calls that are new. Of two workers that take a
step one stores it, and the other one reads again: calls are made under numbers, so that nothing is made twice. What a
worker leaves behind when it dies is due again after its lease.
"""

import asyncio
import contextlib
import re
from base64 import b64decode, b64encode
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from weakref import WeakValueDictionary

from toolfleet_registry.api_keys import LiveKeys
from toolfleet_registry.contracts import (
    Conversation,
    EffectState,
    ErrorCode,
    PublishedCall,
    ToolCall,
    ToolDefinition,
    ToolResult,
)
from toolfleet_registry.contracts.attempts import UNBOUNDED, Attempt, Health, Lease, LeaseOver, Outcome, require_live
from toolfleet_registry.contracts.call_context import CONVERSATION_FIELDS
from toolfleet_registry.contracts.jobs import ENDED, JobSpec
from toolfleet_registry.contracts.names import PROGRAMS, RUN_PROGRAM
from toolfleet_registry.contracts.programs import ProgramCall
from toolfleet_registry.errors import FleetUnavailable, MessageRefused, PublishUnconfirmed
from toolfleet_registry.local.program_tools import ON_UNKNOWN, SHOW_PROGRAM, function_name
from toolfleet_registry.policy.redaction import OUR_WORDS
from toolfleet_registry.schemas.arguments import size_of
from toolfleet_registry.settings import Settings
from toolfleet_registry.specs import effect_of
from toolfleet_registry.system import fleet_clock
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks import worker_runtime
from toolfleet_tasks.app import FleetApp
from toolfleet_tasks.client.session import Session, worker_session
from toolfleet_tasks.jobs.engine import JobCallState, until_of
from toolfleet_tasks.jobs.state_machine import EndedRound, passes
from toolfleet_tasks.jobs.state_machine import is_unknown as is_unknown_tool
from toolfleet_tasks.messages import fleet_results
from toolfleet_tasks.messages.ids import RESUME, outer_call_of, program_id_of
from toolfleet_tasks.messages.json_text import NewerMessage
from toolfleet_tasks.programs import (
    CallEnd,
    ProgramMoved,
    ProgramPosition,
    ProgramService,
    ProgramState,
    StoredProgram,
    WaitingCall,
    published_until,
    state_of,
)
from toolfleet_tasks.queues import queue_of
from toolfleet_tasks.redis_connection import answered
from toolfleet_tasks.scripts import COUNTED_FROM_BYTES
from toolfleet_tasks.transport.redis_publisher import control_soon
from toolfleet_workers.execution.interpreter import (
    PROCESSES,
    Bounds,
    Broken,
    Called,
    Finished,
    Functions,
    Interpreter,
    Raised,
    Reply,
    Returned,
    SnapshotNotRead,
    Suspended,
    format_of,
)
from toolfleet_workers.runner import too_late, unsuccessful

log = get_logger(__name__)

_MOST_ROUNDS = 300  # of a program in one go: more than it may have calls
_FIRST_REST, _LONGEST_REST = 15.0, 600.0  # seconds between two looks at a program that waits; they grow with its age
_AGE_PART = 0.1
_LONGEST_LEFT = 60.0  # seconds until another worker may try a snapshot: reading it costs megabytes
_SOON_SECONDS = 1.0  # until a call that could not be published, for a reason that passes, is tried again
_UNKNOWN_SECONDS = 5.0  # of a call of a module that is not known now
_MARGIN_SECONDS = 5.0  # after its deadline a call without an end is ended: clocks differ
_MOST_REPLY_BYTES = 512 * 2**10  # of a result that a program is given as it is
_MOST_REPLIES_BYTES = (
    16 * 2**20
)  # of results that a step hands over: what has ended beside them comes with the next one
_MOST_TRIES = 5  # of a step that was begun and not stored, before its program ends: what it does may end workers
_MOST_KNOWN = 1_000  # programs whose functions are remembered
_MOST_AT_HAND = 200  # programs that are remembered as they were stored, each with a small state
_SMALL_STATE = 65_536  # bytes
_MOST_NAMES = 500  # of functions in a source: a program may make fewer calls
_LONGEST_ERROR = 1_400  # characters of a traceback: the calls that were made come after it
_MOST_CALLS_SHOWN = 20
_END_SECONDS = 1.0  # of the time of a call of `programs.run`: to tell its caller that its program goes on
_MOST_LEASE_SECONDS = 30.0
_KEEP_SECONDS = 10.0  # for a value that is kept as an artifact
_BATCH = 50  # due programs at once
_TRIES = 20  # to detach a program that moves meanwhile
_WAITING_PART = 4  # of a worker's slots calls of `programs.run` may hold one
_WORDS = {
    "failed": "The program has failed.",
    "timed_out": "The program has not ended in time.",
    "cancelled": "The program was cancelled.",
}
_KEY = "key "  # before the id of the key that has made a call
_MAY_HAVE_ACTED = frozenset({"succeeded", "unknown", "left", "waiting"})
_NAME = re.compile(r"[^\W\d]\w*")
_FUNCTION = re.compile(r"[a-zA-Z]\w*?__\w+", re.ASCII)


class _Diverged(Exception):
    """Another call was made under the number of this one before; the message says which."""


class ProgramEngine:
    """Takes the steps of programs in the loop of a worker of `app`, of each program one at a time."""

    def __init__(self, app: FleetApp) -> None:
        self._app, self.settings = app, app.settings
        most = app.settings.program_limit
        self.interpreter = Interpreter(Bounds(calls=most("calls"), value_bytes=most("state_bytes")))
        self.places = asyncio.Semaphore(PROCESSES)  # for steps, whose replies may be large
        # As soon as a message of a dead worker comes back, its programs do.
        self.lease_seconds = min(_MOST_LEASE_SECONDS, max(app.settings.lease_seconds / 2, 1.0))
        self._keys = LiveKeys.of(app.settings)  # a worker that cannot ask for keys does not start
        self.functions = dict[str, dict[str, str]]()  # by program: of 10,000 tools they take a while
        self.at_hand = dict[str, StoredProgram]()  # as this worker has stored them, if others have not moved them
        self._turns = WeakValueDictionary[str | None, asyncio.Lock]()
        self._at_work = set[str]()
        self._wanted = set[str]()

    async def go_on(self, program_id: str, *, is_due: bool = False) -> None:
        """Take the steps of a program until it waits or has ended.

        `is_due`: nothing was heard of it for a while, so that calls that the ledger does not know are published again, and
        those past their deadline are ended. Raises the errors of Redis and the steps: it is due again after its lease.
        """
        self._wanted.add(program_id)
        if program_id in self._at_work:
            return
        self._at_work.add(program_id)
        try:
            while program_id in self._wanted:
                self._wanted.discard(program_id)
                async with worker_session(self.settings) as session:
                    await _Course(self, session, program_id, is_due=is_due).follow()
                is_due = False
        finally:
            self._at_work.discard(program_id)
            self._wanted.discard(program_id)

    def kick(self, program_id: str) -> None:
        """Go on with a program in the background."""
        worker_runtime.here().later(self._safely(program_id))

    async def resume(self, program_id: str, *, seconds: float) -> None:
        """Implements `FleetApp.resume_programs`."""
        if program_id:
            await self._safely(program_id)
            return
        clock = asyncio.get_running_loop().time
        until, ids = clock() + seconds, [""] * _BATCH
        async with worker_session(self.settings) as session:
            while len(ids) == _BATCH and clock() < until:
                ids = await session.programs.records.due(count=_BATCH, lease_seconds=self.lease_seconds)
                await asyncio.gather(*(self._safely(each, is_due=True) for each in ids))

    async def wake(self) -> None:
        """Have conversations woken now, not with beat's next tick."""
        await control_soon(self._app, RESUME)

    async def may_call(self, spec: JobSpec) -> bool:
        """Return whether the keys by which a program was made still exist. Raises `FleetUnavailable`."""
        ids = [each.removeprefix(_KEY) for each in spec.asked_by if each.startswith(_KEY)]
        return all([await self._keys.is_live(each) for each in ids])

    async def with_handle(self, spec: JobSpec, ended: EndedRound) -> EndedRound:
        """Return an end that wakes a conversation with the preview of its large value, if that is kept as an artifact."""
        if (keep := self._app.keep_artifacts) is None:
            return ended
        from toolfleet_registry.previews import previewed  # of a fleet that has a store

        now = fleet_clock.now()
        call = PublishedCall(
            call_id=outer_call_of(spec.job_id),
            tool_name=RUN_PROGRAM,
            arguments={},
            user_id=spec.user_id,
            caller=spec.caller,
            effect="once",
            limit_seconds=_KEEP_SECONDS,
            published_at=now,
            deadline_at=now + _KEEP_SECONDS,
            asked_by=spec.asked_by,
        )
        result = await keep(call, ToolResult.ok(RUN_PROGRAM, ended.result))
        return replace(ended, shown=previewed(result).result) if result.artifacts else ended

    def remember(self, program: StoredProgram, size: int) -> None:
        """Keep a program whose state has `size` bytes, if that is small: it is read again only if others have moved it."""
        if size > _SMALL_STATE:
            return
        if len(self.at_hand) >= _MOST_AT_HAND:
            self.at_hand.pop(next(iter(self.at_hand)))
        self.at_hand[program.spec.job_id] = program

    def turn(self, user_id: str | None) -> asyncio.Lock:
        """Return what holds a user's steps apart: one user's programs must not take all of the interpreter's processes."""
        return self._turns.setdefault(user_id, asyncio.Lock())

    async def aclose(self) -> None:
        """Close the keys."""
        await self._keys.aclose()

    async def _safely(self, program_id: str, *, is_due: bool = False) -> None:
        try:
            await self.go_on(program_id, is_due=is_due)
        except Exception as exc:  # noqa: BLE001 - one program's fault is not the others'; it is due again after its lease
            log.warning("program_not_moved", program_id=program_id, error=str(exc) or repr(exc))


class _Course:
    """One worker's way with a program, until it waits or has ended.

    `is_soon`: a call could not be published, for a reason that passes. `is_due`: as of `ProgramEngine.go_on`, until a
    step is taken.
    """

    def __init__(self, engine: ProgramEngine, session: Session, program_id: str, *, is_due: bool) -> None:
        self._engine, self._session, self._id = engine, session, program_id
        self._records, self._steps = session.programs.records, session.steps
        self._is_soon, self._is_due = False, is_due
        # Calls of a step whose results are dropped once it is stored. Others stay until the end: to drop one is a write.
        self._large = set[int]()

    async def follow(self) -> None:
        for _ in range(_MOST_ROUNDS):
            with contextlib.suppress(ProgramMoved):  # then it is read again
                if not await self._go_on():
                    return

    async def _go_on(self) -> bool:
        """Do what is to be done next. Returns whether there is more to do now."""
        program = self._engine.at_hand.pop(self._id, None) or await self._records.read(self._id)
        if program is None or program.place.state in ENDED:
            return False
        place, now, outer_id = program.place, fleet_clock.now(), outer_call_of(self._id)
        is_over = place.is_cancelled or now >= program.spec.deadline_at
        asked, is_one = [*map(program.call_id, place.waits)], len(place.waits) == 1
        (outer,), found, state = await asyncio.gather(
            self._records.ends([outer_id]),
            self._records.ends(asked, with_results=is_one),  # that one has surely ended
            self._state(program, is_last=is_over),
        )
        ends = dict(zip(place.waits, found, strict=True))
        if is_over:
            return not await self._stop(program, ends, state)
        if not place.detached and outer.state == "done":  # without its program: cancelled, or its workers have died
            result, _ = await self._records.result(outer_id)
            change = "is_cancelled" if result is not None and result.error_code == "cancelled" else "detached"
            await self._records.move(program, place.model_copy(update={change: True}), due_at=now)
            return True
        if worker_runtime.here().is_paused(queue_of(PROGRAMS)) or (place.step and state is None):
            return False
        ended = {number: end for number, end in ends.items() if end.state == "done"}
        if state is None or ended:
            is_due, self._is_due = self._is_due, False
            return await self._step(program, ended, state, is_due=is_due)
        return self._is_due and await self._publish_again(program, ends, state)

    async def _step(
        self, program: StoredProgram, ended: Mapping[int, CallEnd], state: ProgramState | None, *, is_due: bool
    ) -> bool:
        """Hand ends of calls over, and take the step that follows. Returns whether there is more to do now.

        `is_due`: others may have begun it, and not stored it.
        """
        interpreter, made = self._engine.interpreter, _made_of(state)
        waiting = {each.number: each for each in state.waiting} if state else {}
        functions = self._functions(program)
        async with self._engine.turn(program.spec.user_id), self._engine.places:
            if is_due:  # counted where it begins: it may have waited for others' steps
                program = await self._counted(program, made)
            if state is None:
                at, replies = program.spec.created_at, dict[int, Reply]()
                taken = interpreter.begin(program.source, program_id=self._id, created_at=at, functions=functions)
            else:
                found = await self._replies(program, ended, waiting, made)
                if isinstance(found, EndedRound):
                    return not await self._end(program, found, made)
                replies = found
                taken = interpreter.resume(b64decode(state.snapshot), replies, functions=functions)
            try:
                step = await taken
            except SnapshotNotRead as exc:
                log.error("program_not_loaded", program_id=self._id, reason=str(exc))  # noqa: TRY400 - it says all
                return await self._leave(program)
        if isinstance(step, Suspended):
            return await self._suspend(program, step, waiting, made) or len(replies) < len(ended)
        return not await self._end(program, _ended_as(step), made)

    async def _counted(self, program: StoredProgram, made: Mapping[int, ProgramCall]) -> StoredProgram:
        """Count a step that others may have begun and not stored. Raises `ProgramMoved`, also if the program ends with it."""
        place, due_at = program.place, fleet_clock.now() + self._engine.lease_seconds
        if place.tries < _MOST_TRIES:
            place = place.model_copy(update={"tries": place.tries + 1})
            if (counted := await self._records.move(program, place, due_at=due_at)) is not None:
                return counted
        else:
            text = f"A step of it was begun {_MOST_TRIES} times, and could not be stored."
            await self._end(program, _failed("internal", text), made)
        raise ProgramMoved

    async def _replies(
        self,
        program: StoredProgram,
        ended: Mapping[int, CallEnd],
        waiting: dict[int, WaitingCall],
        made: dict[int, ProgramCall],
    ) -> dict[int, Reply] | EndedRound:
        """Return what a program gets for calls that have ended, as many as go into a step; or its end by one of them.

        They no longer wait, and are listed with their ends.
        """
        replies, size = dict[int, Reply](), 0
        self._large.clear()
        for number, end in sorted(ended.items()):
            if size >= _MOST_REPLIES_BYTES:
                break
            call = waiting.pop(number)
            result, bytes_read = await self._result(program, number, end)
            is_unknown = self._is_unknown(program, call.tool_name, result, end)
            made[number] = _ended(made[number], result, is_unknown=is_unknown)
            if is_unknown and not call.returns_unknown:
                is_hidden = program.place.hides and result.error_code not in OUR_WORDS
                text = f"The outcome of its call {number}, {call.tool_name}, is unknown"
                return _failed("outcome_unknown", f"{text}." if is_hidden else f"{text}: {result.error}")
            is_large = bytes_read > _MOST_REPLY_BYTES
            self._large |= {number} if bytes_read >= COUNTED_FROM_BYTES or program.place.hides else set()
            reply = partial(_reply, call, result, is_unknown=is_unknown, is_large=is_large)
            replies[call.monty_id] = await asyncio.to_thread(reply) if is_large else reply()
            size += min(bytes_read, _MOST_REPLY_BYTES)
        return replies

    async def _result(self, program: StoredProgram, number: int, end: CallEnd) -> tuple[ToolResult, int]:
        """Return the result of a call that has ended, and its bytes as they are stored."""
        result, size = await self._records.result(program.call_id(number), end)
        return result or fleet_results.outcome_unknown("", "its result is not kept any more."), size

    async def _suspend(
        self,
        program: StoredProgram,
        step: Suspended,
        waiting: Mapping[int, WaitingCall],
        made: Mapping[int, ProgramCall],
    ) -> bool:
        """Store a program that waits, and publish its new calls. Returns whether there is more to do now."""
        place, now, settings = program.place, fleet_clock.now(), self._engine.settings
        calls, hides, due_at = place.calls + len(step.calls), place.hides, now + self._engine.lease_seconds
        soon, server = place.due_at if place.step else None, await self._session.server()
        if calls > (most := settings.program_limit("calls")):
            return not await self._end(program, _failed("module_error", f"It makes more than {most} calls."), made)
        waits = {number: each for number, each in waiting.items() if each.monty_id in step.pending}
        ready, refused, before, made = dict[int, PublishedCall](), dict[str, ToolResult](), made, dict(made)
        for number, called in enumerate(step.calls, place.calls + 1):
            call, call_id = self._waiting_call(program, number, called, server), program.call_id(number)
            found = await self._prepared(program, call)
            if isinstance(found, PublishedCall):
                ready[number] = found
                hides |= found.hides_results
                call = call.model_copy(update={"until": until_of(found)})
            elif found.error_code == "unknown_module":  # it may be there soon
                self._is_soon, call = True, call.model_copy(update={"until": now + _UNKNOWN_SECONDS})
            else:
                refused[call_id] = found
            waits[number] = call
            made[number] = ProgramCall(number=number, tool_name=call.tool_name, call_id=call_id, state="waiting")
        intents = await self._records.intents(program, ready)
        for number, each in ready.items():  # before the step is stored: what is stored is what its numbers stand for
            if self._records.is_foreign(each, intents[number]):
                return not await self._end(program, _diverged(each.tool_name), before)
        size = len(step.snapshot) + sum(size_of(each.arguments) for each in waits.values())
        if size > (most := settings.program_limit("state_bytes")):
            text = f"Its state has {size} bytes while it waits, and may have {most}: keep large values elsewhere."
            return not await self._end(program, _failed("module_error", text), before)
        change = {"step": place.step + 1, "waits": tuple(waits), "calls": calls, "hides": hides, "tries": 0}
        place = place.model_copy(update=change | {"due_at": soon})
        moved = await self._stored(program, place, step.snapshot, waits, made, min(due_at, soon or due_at))
        if moved is None:
            return True
        self._engine.remember(moved, size)
        for call_id, refusal in refused.items():  # in the ledger: what this worker alone knows, others would publish
            await self._steps.refuse(call_id, refusal)
        return await self._publish(moved, [*ready.values()], made) or bool(refused)

    async def _stored(
        self,
        program: StoredProgram,
        place: ProgramPosition,
        snapshot: bytes,
        waits: Mapping[int, WaitingCall],
        made: Mapping[int, ProgramCall],
        due_at: float,
    ) -> StoredProgram | None:
        """Store a program's next step; return it, or `None` if others have moved it."""
        text = b64encode(snapshot).decode()
        state = state_of(program, place.step, (format_of(snapshot), text), waits.values(), made.values())
        moved = await self._records.move(program, place, due_at=due_at, state=state)
        if moved is not None:
            self._records.drop(program, self._large)
        return moved

    async def _publish(
        self,
        program: StoredProgram,
        calls: Sequence[PublishedCall],
        made: Mapping[int, ProgramCall],
        *,
        again: Collection[str] = (),
    ) -> bool:
        """Publish calls whose numbers are stored. Returns whether there is more to do now.

        `again`: ids of those that may have been published before.
        """
        answers = list[bool | BaseException]()
        # All at once, if the first does not show that another one was made in its place.
        for part in (calls[:1], calls[1:]):
            publishing = (self._published(program, call, again=call.call_id in again) for call in part)
            answers += await asyncio.gather(*publishing, return_exceptions=True)
            faults = [each for each in answers if isinstance(each, BaseException)]
            if diverged := next((each for each in faults if isinstance(each, _Diverged)), None):
                return not await self._end(program, _diverged(str(diverged)), made)
            if faults:
                raise faults[0]
        if self._is_soon:
            soon = fleet_clock.now() + _SOON_SECONDS
            await self._records.move(program, program.place.model_copy(update={"due_at": soon}), due_at=soon)
        return any(answers)

    async def _published(self, program: StoredProgram, call: PublishedCall, *, again: bool) -> bool:
        """Publish a call; return whether the ledger has its end. One that may not be published is ended there."""
        try:
            if await self._engine.may_call(program.spec):
                answer = await self._steps.publish(call, program.spec, again=again)
            else:
                text = "Tool call refused: the key by which the program was made is revoked, or has expired."
                answer = ToolResult.refused(call.tool_name, "permission_denied", text)
        except (PublishUnconfirmed, FleetUnavailable) as exc:
            log.warning("program_call_not_published", call_id=call.call_id, reason=str(exc))
            self._is_soon = True
            return False
        if isinstance(answer, JobCallState):
            if answer.call_id != call.call_id:
                raise _Diverged(call.tool_name)
            return True
        if answer is None:
            return False
        if passes(answer) and fleet_clock.now() + (answer.retry_after_seconds or 0) < call.deadline_at:
            self._is_soon = True
        elif answer.error_code != "conflict":
            return await self._steps.refuse(call.call_id, answer, call=call)
        elif not again:  # else it is one with its own first message, which was prepared otherwise
            raise _Diverged(call.tool_name)
        return False

    async def _publish_again(self, program: StoredProgram, ends: Mapping[int, CallEnd], state: ProgramState) -> bool:
        """Publish calls again that may have been lost, and end those that are late. Returns whether there is more to do now.

        What another Redis may have run, and forgotten, is not published again: its end is unknown, unless it is heard of.
        """
        place, now, has_ended, server = program.place, fleet_clock.now(), False, await self._session.server(asks=True)
        ready, again = list[PublishedCall](), set[str]()
        due_at = now + _rest(program)
        intents = await self._records.intents(program, [each.number for each in state.waiting])
        for call in state.waiting:
            if (end := ends[call.number]).state == "people":
                continue
            is_lost = not (end.state or call.data_in(server))
            last_until = published_until(intents[call.number])
            is_new = last_until is None and not (end.state or is_lost)
            until = max(call.until, last_until or 0) + _MARGIN_SECONDS
            if now >= until and not (is_new and place.due_at is None):  # else no worker has lived to try it
                await self._end_late(program, call, is_lost=is_lost, data_id=call.data_in(server))
                has_ended = True
                continue
            due_at = min(due_at, max(until, now + _SOON_SECONDS))
            if end.state == "begun":
                continue
            found = await self._prepared(program, call, until=0 if is_new else until - _MARGIN_SECONDS)
            if isinstance(found, PublishedCall) and not is_lost:
                ready.append(found)
                again |= set[str]() if is_new else {found.call_id}
            elif isinstance(found, PublishedCall) and found.approval is not None:  # nobody is asked for it any more
                await self._steps.end(found, data_id="")
                has_ended = True
            elif isinstance(found, ToolResult) and is_unknown_tool(found):
                self._is_soon |= is_new  # it may be there soon
            elif isinstance(found, ToolResult) and not is_lost:
                # It may be in its queue, from a time when it was allowed.
                has_ended |= await self._steps.refuse(program.call_id(call.number), found)
        hides = place.hides or any(each.hides_results for each in ready)
        place = place.model_copy(update={"due_at": None, "hides": hides})
        moved = await self._records.move(program, place, due_at=min(due_at, program.spec.deadline_at))
        return moved is None or await self._publish(moved, ready, _made_of(state), again=again) or has_ended

    async def _end_late(self, program: StoredProgram, call: WaitingCall, *, is_lost: bool, data_id: str) -> None:
        """End a call whose deadline has passed: nothing begins it any more."""
        found = await self._prepared(program, call, until=call.until)
        if isinstance(found, PublishedCall):
            await self._steps.end(found, data_id=data_id)
            return
        if is_lost:
            found = fleet_results.outcome_unknown(call.tool_name, "nothing was heard of its end.")
        await self._steps.refuse(program.call_id(call.number), found, is_late=True)

    async def _stop(self, program: StoredProgram, ends: Mapping[int, CallEnd], state: ProgramState | None) -> bool:
        """End a cancelled program, or one past its deadline: what no worker has begun is withdrawn before. False if it has moved meanwhile."""
        made, waiting = _made_of(state), {each.number: each for each in state.waiting} if state else {}
        server = await self._session.server(asks=True)

        left = [number for number, end in ends.items() if end.state != "done"]
        withdrawing = (self._withdraw(program, number, waiting.get(number), server) for number in left)
        has_end = dict(zip(left, await asyncio.gather(*withdrawing), strict=True))
        for number, end in ends.items():  # one after the other: results may be large
            call, call_id = waiting.get(number), program.call_id(number)
            name = "" if call is None else call.tool_name  # it is not known of a state that cannot be read here
            mine = made.get(number) or ProgramCall(number=number, tool_name=name, call_id=call_id, state="left")
            if end.state == "done":
                result, _ = await self._result(program, number, end)
                made[number] = _ended(mine, result, is_unknown=self._is_unknown(program, name, result, end))
                continue
            # Else it may have been begun in a Redis that is gone.
            is_withdrawn = has_end[number] and bool(end.state or (call is not None and call.data_in(server)))
            made[number] = mine.model_copy(update={"state": "withdrawn" if is_withdrawn else "left"})
        text = "Its time is over."
        ended = None if program.place.is_cancelled else EndedRound("timed_out", error=text, error_code="timed_out")
        return await self._end(program, ended, made)

    async def _withdraw(self, program: StoredProgram, number: int, call: WaitingCall | None, server: str) -> bool:
        """End a call that no worker has begun: return whether it has an end. `call`: as the state has it, if that can be read."""
        refusal = fleet_results.cancelled("" if call is None else call.tool_name, effect_state="none")
        found = refusal if call is None else await self._prepared(program, call)
        data_id = "" if call is None else call.data_in(server)
        return await self._steps.withdraw(program.call_id(number), found, data_id=data_id)

    async def _end(self, program: StoredProgram, ended: EndedRound | None, made: Mapping[int, ProgramCall]) -> bool:
        """End a program. Returns whether it has: others may have moved it.

        Calls of it that no worker has begun are withdrawn then, not before: others may take a step that waits for them.
        """
        left, waiting = {"state": "left"}, tuple[WaitingCall, ...]()
        if any(each.state == "waiting" for each in made.values()):
            state = await self._state(program, is_last=True)
            waiting = () if state is None else state.waiting
        calls = [each.model_copy(update=left) if each.state == "waiting" else each for each in made.values()]
        if ended is not None and ended.error is not None:
            ended = replace(ended, error=f"{ended.error}\n{_said_of(calls)}")
        elif ended is not None and program.place.wakes(fleet_clock.now()) and not program.place.hides:
            ended = await self._engine.with_handle(program.spec, ended)
        over = await self._records.end(program, ended, calls)
        if over is None:
            return False
        self._records.announce(self._id)
        self._records.forget_calls(over)
        log.info("program_ended", program_id=self._id, state=over.place.state, calls=len(calls))
        if over.place.detached:
            await self._engine.wake()
        server = await self._session.server(asks=True) if waiting else ""
        await asyncio.gather(*(self._withdraw(program, call.number, call, server) for call in waiting))
        return True

    async def _state(self, program: StoredProgram, *, is_last: bool = False) -> ProgramState | None:
        """Return the state of a program; `None` if it cannot be read here: unless it `is_last`, it is left to others."""
        try:
            state = await self._records.state(program)
        except (MessageRefused, NewerMessage, ValueError) as exc:
            log.error("program_refused", program_id=self._id, reason=str(exc).partition("\n")[0])  # noqa: TRY400 - it says all
            if not is_last:
                await self._records.refuse(program)
            return None
        return state

    async def _leave(self, program: StoredProgram) -> bool:
        """Leave a program to workers that can read its snapshot."""
        place = program.place.model_copy(update={"tries": 0})
        await self._records.move(program, place, due_at=fleet_clock.now() + min(_rest(program), _LONGEST_LEFT))
        return False

    async def _prepared(
        self, program: StoredProgram, call: WaitingCall, *, until: float = 0
    ) -> PublishedCall | ToolResult:
        """Return a call as it may be published now, or its refusal. `until`: its deadline, if it was published before."""
        asked, call_id = program.call(call.number, call.tool_name, call.arguments), program.call_id(call.number)
        return await self._steps.prepare(program.spec, asked, call_id, deadline_at=until or None)

    def _waiting_call(self, program: StoredProgram, number: int, called: Called, server: str) -> WaitingCall:
        arguments, returns_unknown = called.arguments, False
        tool = self._tool(program, called.tool_name)
        schema = tool.input_schema if isinstance(tool, ToolDefinition) else None
        if ON_UNKNOWN not in (schema or {}).get("properties", {}) and arguments.get(ON_UNKNOWN) == "return":
            arguments = {name: value for name, value in arguments.items() if name != ON_UNKNOWN}
            returns_unknown = True
        return WaitingCall(
            number=number,
            monty_id=called.monty_id,
            tool_name=called.tool_name,
            arguments=arguments,
            until=0,
            returns_unknown=returns_unknown,
            server=server,
        )

    def _is_unknown(self, program: StoredProgram, tool_name: str, result: ToolResult, end: CallEnd) -> bool:
        """Return whether nobody knows what a call has done, and a repeat may do it again.

        The code does not say that: a module that has failed a call, and one that has died with it, both have `module_error`.
        """
        if result.success or result.effect_state != "unknown":
            return False
        if result.error_code == "module_error" and end.is_answered:
            return False
        tool = self._tool(program, tool_name)
        return isinstance(tool, ToolResult) or effect_of(tool) not in {"read", "idempotent"}

    def _tool(self, program: StoredProgram, tool_name: str) -> ToolDefinition | ToolResult:
        return self._session.preparation.tool_of(ToolCall(tool_name=tool_name), program.spec.caller)

    def _functions(self, program: StoredProgram) -> Functions:
        """Return the tools that names in the source stand for: they are looked up in a thread, where the catalog cannot be asked.

        A name of this form that no tool has is a call, too, and is refused as any call of an unknown tool. One that several
        tools have is none.
        """
        known = self._engine.functions
        if self._id not in known:
            tools = dict[str, list[str]]()
            for each in self._session.tools(program.spec.caller):
                tools.setdefault(function_name(each.name), []).append(each.name)
            found = dict[str, str]()
            for name in filter(_FUNCTION.fullmatch, dict.fromkeys(_NAME.findall(program.source))):
                candidates = tools.get(name, [name.replace("__", ".", 1)])
                if len(candidates) == 1 and len(found) < _MOST_NAMES:
                    found[name] = candidates[0]
            if len(known) >= _MOST_KNOWN:
                known.clear()
            known[self._id] = found
        return known[self._id].get


class ProgramExecutor:
    """The executor of `programs`: makes the record of a program, and waits for its end as long as its call may."""

    def __init__(self, settings: Settings, engine: ProgramEngine) -> None:
        self._settings, self._engine = settings, engine
        # Others detach at once: the programs' own calls need slots, too.
        self._slots = settings.worker_concurrency // _WAITING_PART
        self._waiting = 0

    async def execute(self, call: PublishedCall, *, seconds: float, lease: Lease = UNBOUNDED) -> Attempt:
        """Show a program, or make one and return its end or that it waits. Raises `TimeoutError` if `seconds` are over."""
        if call.tool_name == SHOW_PROGRAM:
            return await self._shown(call, seconds)
        return self._refusal_of(call) or await self._made(call, seconds, lease)

    async def _made(self, call: PublishedCall, seconds: float, lease: Lease) -> Attempt:
        program_id, is_sent = program_id_of(call.call_id), False
        try:
            async with asyncio.timeout(seconds), worker_session(self._settings) as session:
                require_live(lease)
                is_sent = True
                spec, place = self._wanted(call)
                limit = self._settings.program_limit("waiting")
                made = await answered(session.programs.records.create(spec, place, limit=limit))
                if isinstance(made, int):
                    text = f"The program is refused: its user has {made} that have not ended. It may be run when one of them has."
                    return unsuccessful(call, Outcome.PERMANENT, "busy", text)
                self._engine.kick(program_id)
                return await self._waited(call, session.programs, seconds - _END_SECONDS)
        except LeaseOver:
            return too_late(call)
        except FleetUnavailable as exc:
            text = f"Tool execution error: {exc}"
            if is_sent:  # it may have been made
                return unsuccessful(call, Outcome.UNKNOWN, "outcome_unknown", text)
            return unsuccessful(call, Outcome.NOT_SENT, "fleet_unavailable", text)
        except asyncio.CancelledError:  # perhaps its call was cancelled: then the program is, too
            self._engine.kick(program_id)
            raise

    async def reconcile(self, call: PublishedCall, *, seconds: float, lease: Lease = UNBOUNDED) -> Attempt | None:
        """Return the end of the program that a lost call has made, or that it waits; `None` if it has made none."""
        if lease.seconds_left() <= 0:
            return None
        try:
            async with asyncio.timeout(seconds), worker_session(self._settings) as session:
                program = await answered(session.programs.records.get(program_id_of(call.call_id)))
                return None if program is None else await self._detached(call, session.programs)
        except (TimeoutError, FleetUnavailable):
            return None

    async def probe(self, module: str, *, seconds: float) -> Health:
        """Return that it is well: it is in its worker."""
        del module, seconds
        return Health.WELL

    async def aclose(self) -> None:
        """Close the engine: another component owns the records."""
        await self._engine.aclose()

    async def _shown(self, call: PublishedCall, seconds: float) -> Attempt:
        """Return a program of the call's user."""
        try:
            async with asyncio.timeout(seconds), worker_session(self._settings) as session:
                found = await session.programs.get(call.arguments["program"], call.user_id)
        except FleetUnavailable as exc:
            return unsuccessful(call, Outcome.NOT_SENT, "fleet_unavailable", f"Tool execution error: {exc}")
        if found is None or call.user_id is None:
            return unsuccessful(call, Outcome.PERMANENT, "invalid_arguments", "You have no such program.")
        facts = found.model_dump(mode="json", exclude_none=True, exclude={"user_id", "conversation_id"})
        return Attempt(Outcome.SUCCESS, ToolResult.ok(call.tool_name, facts))

    def _refusal_of(self, call: PublishedCall) -> Attempt | None:
        """Return the refusal of a call that makes no program."""
        if call.tool_name != RUN_PROGRAM:
            return unsuccessful(call, Outcome.PERMANENT, "unknown_tool", f"Unknown tool: {call.tool_name}")
        source, most = str(call.arguments.get("source")), self._settings.program_limit("source_bytes")
        size, fault = len(source.encode("utf-8", "surrogatepass")), None
        if call.user_id is None:  # all callers without a user would share their programs
            fault = "A program belongs to a user, and this call has none."
        elif size > most:
            fault = f"The program has {size} bytes, and may have {most}."
        return None if fault is None else unsuccessful(call, Outcome.PERMANENT, "invalid_arguments", fault)

    def _wanted(self, call: PublishedCall) -> tuple[JobSpec, ProgramPosition]:
        """Return the program that a call asks for; a second attempt of that call asks for the same one."""
        asked, now = call.arguments, call.published_at
        talk = Conversation(**{name: asked.get(name) for name in CONVERSATION_FIELDS}, run_id=call.run_id)
        is_heard = talk.conversation_id is not None or self._settings.core_url is not None
        spec = JobSpec(
            job_id=program_id_of(call.call_id),
            caller=call.caller,
            user_id=call.user_id,
            conversation=talk,
            start=ToolCall(tool_name=RUN_PROGRAM, arguments={"source": asked["source"]}),
            on_complete=("resume_conversation",) if is_heard else (),
            created_at=round(now, 3),
            deadline_at=round(now + self._settings.program_limit("seconds"), 3),
            asked_by=call.asked_by,
        )
        due_at = fleet_clock.now() + self._engine.lease_seconds
        return spec, ProgramPosition(state="waiting", step=0, due_at=due_at, call_until=call.deadline_at)

    async def _waited(self, call: PublishedCall, programs: ProgramService, seconds: float) -> Attempt:
        """Return the end of a call's program, or that it waits if that does not come in time."""
        program_id = program_id_of(call.call_id)
        if self._waiting < self._slots:
            self._waiting += 1
            try:
                program = await programs.wait(program_id, seconds=seconds)
            finally:
                self._waiting -= 1
            if program is not None and program.place.state in ENDED:
                return _answer(call, program)
        return await self._detached(call, programs)

    async def _detached(self, call: PublishedCall, programs: ProgramService) -> Attempt:
        """Have a program wake its conversation at its end, unless it has ended; return what its caller is told now."""
        records, program_id = programs.records, program_id_of(call.call_id)
        for _ in range(_TRIES):
            program = await answered(records.get(program_id))
            if program is None:
                break
            if program.place.state not in ENDED and not program.place.detached:
                place = program.place.model_copy(update={"detached": True})
                program = await answered(records.move(program, place))
            if program is not None:
                return _answer(call, program)
        return unsuccessful(call, Outcome.UNKNOWN, "outcome_unknown", f"The program {program_id!r} is not there.")


def _answer(call: PublishedCall, program: StoredProgram) -> Attempt:
    """Return what the caller is told of its program: its end, or that it waits, if its conversation is woken by that."""
    spec, end, tool, hides = program.spec, program.end, call.tool_name, program.place.hides
    if program.place.detached or program.place.state not in ENDED:
        expires_at = datetime.fromtimestamp(spec.deadline_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        waiting = {"program": spec.job_id, "state": "waiting", "expires_at": expires_at}
        return Attempt(Outcome.SUCCESS, ToolResult.ok(tool, waiting))
    if end is None:  # the fleet has not written it
        return unsuccessful(call, Outcome.UNKNOWN, "outcome_unknown", "The program's end cannot be read.")
    if program.place.state == "completed":
        return Attempt(Outcome.SUCCESS, ToolResult.ok(tool, end.result), hides_results=hides)
    code = end.error_code or "cancelled"
    text = f"{_WORDS[program.place.state]} {end.error or ''}".rstrip()
    done = [each for each in end.calls if each.state in _MAY_HAVE_ACTED or each.error_code == "module_error"]
    effect: EffectState = "unknown" if code == "outcome_unknown" else "done" if done else "none"
    # A repeat would bring the same end.
    outcome = Outcome.PERMANENT if effect == "none" else Outcome.FAILED
    return Attempt(outcome, ToolResult.failed(tool, code, text, effect_state=effect), hides_results=hides)


def _reply(call: WaitingCall, result: ToolResult, *, is_unknown: bool, is_large: bool) -> Reply:
    """Return what a program gets for a call. `is_large`: its result may have more bytes than that may."""
    if is_unknown:
        return Returned({"outcome_unknown": True, "call": call.number, "error": result.error})
    if not result.success:
        said = " ".join(filter(None, (result.error, result.hint)))
        return Raised(f"{result.error_code} (effect {result.effect_state}): {said}")
    size = size_of({"value": result.result}) if is_large else 0
    if size <= _MOST_REPLY_BYTES:
        return Returned(result.result)
    if result.artifacts:
        from toolfleet_registry.previews import previewed  # of a fleet that has a store

        return Returned(previewed(result).result)
    return Raised(f"result_too_large (effect done): the result has {size} bytes, and may have {_MOST_REPLY_BYTES}.")


def _ended(call: ProgramCall, result: ToolResult, *, is_unknown: bool) -> ProgramCall:
    state = "unknown" if is_unknown else "succeeded" if result.success else "failed"
    return call.model_copy(update={"state": state, "error_code": result.error_code})


def _rest(program: StoredProgram) -> float:
    """Return the seconds until a program is looked at again of which nothing is heard."""
    return min(max(_FIRST_REST, _AGE_PART * (fleet_clock.now() - program.spec.created_at)), _LONGEST_REST)


def _made_of(state: ProgramState | None) -> dict[int, ProgramCall]:
    return {} if state is None else {each.number: each for each in state.made}


def _ended_as(step: Finished | Broken) -> EndedRound:
    if isinstance(step, Finished):
        return EndedRound("completed", step.value)
    return _failed(step.code, step.text[-_LONGEST_ERROR:])


def _failed(code: ErrorCode, text: str) -> EndedRound:
    return EndedRound("failed", error=text, error_code=code)


def _diverged(tool_name: str) -> EndedRound:
    text = f"A repeated step of it makes another call, of {tool_name}, under a number that stands for one already."
    return _failed("conflict", text)


def _said_of(calls: Sequence[ProgramCall]) -> str:
    """Return a program's calls in words."""
    if not calls:
        return "It has made no call."
    shown = ", ".join(f"{each.number} {each.tool_name} {each.state}" for each in calls[-_MOST_CALLS_SHOWN:])
    return f"Calls made: {shown}." if len(calls) <= _MOST_CALLS_SHOWN else f"Of {len(calls)} calls the last: {shown}."
