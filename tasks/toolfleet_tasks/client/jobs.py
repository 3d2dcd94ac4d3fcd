"""Starts and ends jobs (`fleet.jobs`), also from outside (`fleet.hooks`), shows programs (`fleet.programs`), and brings wake-ups (`fleet.wakeups`)."""

import builtins
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any

from pydantic import ValidationError

from toolfleet_registry.contracts import (
    Caller,
    Conversation,
    ErrorCode,
    ToolCall,
    ToolResult,
)
from toolfleet_registry.contracts.jobs import Completion, HookSpec, Job, JobRefused, JobSpec, Poll, Schedule, WakeUp
from toolfleet_registry.contracts.programs import ToolProgram
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.policy.call_faults import resolved
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock
from toolfleet_tasks.client.namespaces import Namespace
from toolfleet_tasks.client.session import Session
from toolfleet_tasks.client.sync_face import SyncFace, blocking
from toolfleet_tasks.dead_letters.kept_wakes import KeptWake, WaitingKind, WantedWakes
from toolfleet_tasks.jobs.service import HookEnd
from toolfleet_tasks.jobs.state_machine import LONGEST_SECONDS, EndedRound
from toolfleet_tasks.messages.ids import job_id_for
from toolfleet_tasks.operations.change_trail import Actor
from toolfleet_tasks.operations.changes import HandledWakes, WakeupChanges
from toolfleet_tasks.wakeups.events import WakeupOutcome
from toolfleet_tasks.wakeups.service import CompletionInbox

_NO_DEADLINE_SECONDS = 7 * 86_400  # of a job without a given one: longer than anything that is still waited for
_LONGEST_NAME = 200
_FAILED: ErrorCode = "module_error"  # as when a poll's result says that the work has failed


class FleetJobs(Namespace):
    """The jobs of a caller's user, long work that is polled until it is over: `fleet.jobs`."""

    async def start(
        self,
        start: ToolCall | None = None,
        poll: Poll | None = None,
        on_complete: Completion | Sequence[Completion] = "resume_conversation",
        conversation: Conversation | None = None,
        deadline: float | None = None,
        *,
        caller: Caller,
        name: str = "",
        message: str | None = None,
        on_failure_message: str | None = None,
        schedule: Schedule | None = None,
        idempotency_key: str | None = None,
        workflow_id: str | None = None,
        hook: HookSpec | None = None,
    ) -> Job:
        """Start long work, poll it, and do `on_complete` once at its end, even if processes stop meanwhile.

        Each call of the job is made with the caller's present rights.

        Args:
            start: The first call, made by a worker at once, or at `schedule.at`.
            poll: The call that is repeated until it says that the work is over. Without `poll` and `hook` the end of
                `start` is the job's end; without `start` too, the job is a reminder.
            on_complete: What is done at the end: wake the conversation, make a call, or several of these.
            conversation: The conversation that is woken, and that the calls belong to.
            deadline: Seconds from now in which all ends; by default 7 days after it begins, or twice the poll's longest
                time, and of a recurring job as long as a job may last.
            caller: The user and the rights of its calls; the job belongs to this user.
            name: A name for people, of at most 200 characters.
            message: What the conversation is told when the job has succeeded.
            on_failure_message: What it is told when the job has failed.
            schedule: When the job begins, or recurs; by default it begins now, once.
            idempotency_key: Names the job for its user: asked for again under its key it is the same job, and another
                one under that key is a `conflict`. By default it is the key of `start`.
            workflow_id: Jobs of one workflow: if one fails, the user's others are cancelled.
            hook: How an outside system says that the work is over: by a signed request to a gateway.

        Returns:
            The job, as it is stored.

        Raises:
            JobRefused: The job could not run, or its end would reach nothing.
            FleetUnavailable: Redis does not answer. The job may exist then.

        """
        session, key = await self._sessions.opened(), idempotency_key or (start.idempotency_key if start else None)
        said = dict[str, Any](message=message, on_failure_message=on_failure_message, workflow_id=workflow_id)
        said |= {"hook": hook, "name": name[:_LONGEST_NAME], "conversation": conversation or Conversation()}
        spec = _spec(
            session.settings,
            deadline,
            job_id=job_id_for(caller.user_id, key),
            caller=caller,
            on_complete=(on_complete,) if isinstance(on_complete, str | ToolCall) else on_complete,
            plan=(start, poll, schedule),
            asked_by=session.preparation.asked_by(caller.user_id, conversation),
            **said,
        )
        return await session.jobs.start(spec, by_key=bool(key))

    async def get(self, job_id: str, caller: Caller) -> Job | None:
        """Read a job of the caller's user.

        Args:
            job_id: The job's id.
            caller: The user of the job.

        Returns:
            The job; `None` if there is none of this user, or if it is no longer kept.

        Raises:
            FleetUnavailable: Redis does not answer.

        """
        return await (await self._sessions.opened()).jobs.get(job_id, caller.user_id)

    async def list(
        self, caller: Caller, *, ended: bool = True, limit: int = 100, workflow_id: str | None = None
    ) -> builtins.list[Job]:
        """List jobs of the caller's user, the newest first.

        Args:
            caller: The user of the jobs.
            ended: Whether those that are over are listed, too.
            limit: How many at most.
            workflow_id: Only those of this workflow; by default all.

        Returns:
            The jobs.

        Raises:
            FleetUnavailable: Redis does not answer.

        """
        service = (await self._sessions.opened()).jobs
        return await service.list(caller.user_id, ended=ended, limit=limit, workflow_id=workflow_id)

    async def cancel(self, job_id: str, caller: Caller) -> Job | None:
        """End a job of the caller's user, and send no wake-up. A call of it that is running is left to end.

        Args:
            job_id: The job's id.
            caller: The user of the job.

        Returns:
            The job as it is now; `None` if there is none of this user.

        Raises:
            FleetUnavailable: Redis does not answer.

        """
        return await (await self._sessions.opened()).jobs.cancel(job_id, caller.user_id)

    async def cancel_workflow(self, workflow_id: str, caller: Caller) -> int:
        """End all jobs of a workflow of the caller's user, as `cancel` does. Those that have ended stay as they are.

        Args:
            workflow_id: The workflow.
            caller: The user of the jobs.

        Returns:
            How many were ended.

        Raises:
            FleetUnavailable: Redis does not answer.

        """
        return await (await self._sessions.opened()).jobs.cancel_workflow(workflow_id, caller.user_id)


class SyncFleetJobs(SyncFace[FleetJobs]):
    """`FleetJobs` with plain methods."""

    start = blocking(FleetJobs.start)
    get = blocking(FleetJobs.get)
    list = blocking(FleetJobs.list)
    cancel = blocking(FleetJobs.cancel)
    cancel_workflow = blocking(FleetJobs.cancel_workflow)


class FleetPrograms(Namespace):
    """The programs of a caller's user, which models run with the tool `programs.run`: `fleet.programs`."""

    async def get(self, program_id: str, caller: Caller) -> ToolProgram | None:
        """Read a program of the caller's user, with its calls.

        Args:
            program_id: The program's id.
            caller: The user of the program.

        Returns:
            The program; `None` if there is none of this user, or if it is no longer kept.

        Raises:
            FleetUnavailable: Redis does not answer.

        """
        return await (await self._sessions.opened()).programs.get(program_id, caller.user_id)

    async def list(self, caller: Caller, *, ended: bool = True, limit: int = 100) -> builtins.list[ToolProgram]:
        """List programs of the caller's user, the newest first.

        Args:
            caller: The user of the programs.
            ended: Whether those that are over are listed, too.
            limit: How many at most.

        Returns:
            The programs, without their calls.

        Raises:
            FleetUnavailable: Redis does not answer.

        """
        return await (await self._sessions.opened()).programs.list(caller.user_id, ended=ended, limit=limit)

    async def cancel(self, program_id: str, caller: Caller) -> ToolProgram | None:
        """Have a program of the caller's user end, without a wake-up. Its calls that have begun are left to end.

        Args:
            program_id: The program's id.
            caller: The user of the program.

        Returns:
            The program as it is now: a worker ends it soon. `None` if there is none of this user.

        Raises:
            FleetUnavailable: Redis does not answer.

        """
        return await (await self._sessions.opened()).programs.cancel(program_id, caller.user_id)


class SyncFleetPrograms(SyncFace[FleetPrograms]):
    """`FleetPrograms` with plain methods."""

    get = blocking(FleetPrograms.get)
    list = blocking(FleetPrograms.list)
    cancel = blocking(FleetPrograms.cancel)


class FleetHooks(Namespace):
    """The hooks of jobs, for gateways, which verify the sender: `fleet.hooks`."""

    async def of_job(self, job_id: str) -> HookSpec | None:
        """Read the hook of any user's job.

        Args:
            job_id: The job's id.

        Returns:
            The hook; `None` if there is no such job, or if it has no hook.

        Raises:
            FleetUnavailable: Redis does not answer.

        """
        return await (await self._sessions.opened()).jobs.hooks.of_job(job_id)

    async def complete(self, job_id: str, delivery: str, result: Any) -> HookEnd | None:
        """End a job as completed, once.

        Args:
            job_id: The job's id.
            delivery: The id of the request: a repeated one changes nothing.
            result: What the outside system has sent; it becomes the job's result.

        Returns:
            What the request has come to; `None` if there is no such job with a hook.

        Raises:
            FleetUnavailable: Redis does not answer.

        """
        return await self._end(job_id, delivery, EndedRound("completed", result))

    async def fail(self, job_id: str, delivery: str, error: str) -> HookEnd | None:
        """End a job as failed, once.

        Args:
            job_id: The job's id.
            delivery: The id of the request: a repeated one changes nothing.
            error: The outside system's message.

        Returns:
            What the request has come to; `None` if there is no such job with a hook.

        Raises:
            FleetUnavailable: Redis does not answer.

        """
        text = f"The job has failed: its hook says: {error}"
        return await self._end(job_id, delivery, EndedRound("failed", error=text, error_code=_FAILED))

    async def _end(self, job_id: str, delivery: str, said: EndedRound) -> HookEnd | None:
        return await (await self._sessions.opened()).jobs.hooks.end(job_id, delivery, said)


class FleetWakeups(Namespace):
    """The wake-ups of a fleet, each of which tells a conversation how a job has ended: `fleet.wakeups`.

    Each method but `completions` raises `FleetUnavailable` if Redis does not answer within 5 s.
    """

    async def completions(
        self, conversation_id: str, *, consumer: str | None = None, on_lost: Callable[[int], object] | None = None
    ) -> AsyncGenerator[WakeUp]:
        """Follow the wake-ups of a conversation, if no `core_url` is set: `async for wake in fleet.wakeups.completions(id)`.

        It waits for more without a limit, and ends when the fleet is left. Several readers share the wake-ups. Each
        comes at least once, with the same `wake_id` if it comes again: it is confirmed when the next one is asked for.
        A wake-up during which a loop was left, or died, is given to another reader, at most 35 s after the first
        reader's last sign of life.

        Args:
            conversation_id: The conversation.
            consumer: Names a reader that gets an unconfirmed wake-up at once when it is restarted under its name. No
                two readers may have one name at the same time. By default the reader has no name.
            on_lost: Is called with the number of unread wake-ups that are gone: about the last 1,000 of each user are
                kept. The log has them, too (`completions_lost`).

        Yields:
            The wake-ups, oldest first.

        Raises:
            SettingsError: A `core_url` is set here. If one is set in workers, the log has `completions_go_to_core`.

        """
        reader = (await self._reading()).wakes.reader(conversation_id, consumer, on_lost)
        async with aclosing(reader.read()) as wakes:
            async for wake in wakes:
                yield wake

    async def inbox(self, conversation_id: str, caller: Caller) -> CompletionInbox:
        """Open the wake-ups of a conversation for a reader that comes and goes, as over HTTP.

        Args:
            conversation_id: The conversation.
            caller: The user of the jobs.

        Returns:
            The inbox: wake-ups are read from it, and stay until each is confirmed.

        Raises:
            SettingsError: A `core_url` is set here.
            FleetUnavailable: Redis does not answer on a loop's first use.

        """
        return (await self._reading()).wakes.inbox(conversation_id, caller.user_id)

    async def _reading(self) -> Session:
        session = await self._sessions.opened()
        if session.settings.core_url is not None:
            raise SettingsError(
                "This fleet wakes an agent's core (TOOLFLEET_CORE_URL): completions would bring nothing."
            )
        return session

    async def waiting(self, limit: int = 50, offset: int = 0) -> list[KeptWake]:
        """List wake-ups that wait to be accepted, those that are tried next first.

        Args:
            limit: How many at most, up to 1,000.
            offset: How many of the first are left out.

        Returns:
            The wake-ups.

        Raises:
            FleetUnavailable: Redis does not answer within 5 s.

        """
        return await (await self._sessions.opened()).dead.events.waiting(limit, offset)

    async def of_conversation(self, conversation_id: str, most: int = 50) -> list[KeptWake]:
        """List wake-ups that wait for a conversation.

        Args:
            conversation_id: The conversation.
            most: How many are looked at, up to 1,000: of those that are tried next, and of the latest that the
                conversation's readers have not confirmed.

        Returns:
            The conversation's among them.

        Raises:
            FleetUnavailable: Redis does not answer within 5 s.

        """
        return await (await self._sessions.opened()).dead.events.of_conversation(conversation_id, most)

    async def dead(self, limit: int = 50, offset: int = 0) -> list[KeptWake]:
        """List wake-ups that were never accepted, the latest first.

        Args:
            limit: How many at most, up to 1,000.
            offset: How many of the first are left out.

        Returns:
            The wake-ups.

        Raises:
            FleetUnavailable: Redis does not answer within 5 s.

        """
        return await (await self._sessions.opened()).dead.events.dead(limit, offset)

    async def show(self, wake_id: str) -> KeptWake | None:
        """Read a wake-up that waits or is dead.

        Args:
            wake_id: The wake-up's id.

        Returns:
            The wake-up; `None` if it was accepted or dropped, as `outcomes` of its job says, or never existed.

        Raises:
            FleetUnavailable: Redis does not answer within 5 s.

        """
        return await (await self._sessions.opened()).dead.events.show(wake_id)

    async def replay(self, wake_id: str) -> bool:
        """Try a dead wake-up again, under the same id, or a waiting one now.

        Args:
            wake_id: The wake-up's id.

        Returns:
            Whether it was there.

        Raises:
            NotReplayable: A dead wake-up cannot be read, or is a call whose arguments were not kept.
            FleetUnavailable: Redis does not answer within 5 s.

        """
        return await (await self._sessions.opened()).dead.events.replay(wake_id)

    async def drop(self, *wake_ids: str, by: str | None = None) -> tuple[str, ...]:
        """Forget waiting or dead wake-ups.

        A waiting one is tried no more, but an attempt that is under way just now may still be accepted. Its job records
        that it was dropped, and the audit names the operator.

        Args:
            *wake_ids: Their ids.
            by: Who drops them, for the audit; by default this machine's user.

        Returns:
            The ids of those that were there.

        Raises:
            FleetUnavailable: Redis does not answer within 5 s.

        """
        events = (await self._sessions.opened()).dead.events
        dropped = set(await events.drop(wake_ids))
        wanted = list(dict.fromkeys(wake_ids))
        waiting = [each for each in wanted if each not in dropped and await events.show(each) is not None]
        if waiting:
            async with await self._changes(by) as changes:
                dropped |= {each for each in waiting if await changes.drop(each) is not None}
        return tuple(each for each in wanted if each in dropped)

    async def drop_all(self) -> int:
        """Forget all dead wake-ups.

        Returns:
            How many there were.

        Raises:
            FleetUnavailable: Redis does not answer within 5 s.

        """
        return await (await self._sessions.opened()).dead.events.drop_all()

    async def drop_waiting(
        self, kind: WaitingKind | None = None, *, about: str = "", error: str = "", by: str | None = None
    ) -> int:
        """Forget all wake-ups that wait now and pass a filter, each as `drop` does. Those that come meanwhile stay.

        Args:
            kind: Only those of this kind; by default all.
            about: Only those with this text in their id or subject, in any case.
            error: Only those with this text in their last error, in any case.
            by: Who drops them, for the audit; by default this machine's user.

        Returns:
            How many were dropped.

        Raises:
            FleetUnavailable: Redis does not answer within 5 s.

        """
        async with await self._changes(by) as changes:
            wanted = WantedWakes(kind, about, error, fleet_clock.now())
            return await _through(lambda behind: changes.drop_found(wanted, behind=behind))

    async def replay_waiting(
        self, kind: WaitingKind | None = None, *, about: str = "", error: str = "", by: str | None = None
    ) -> int:
        """Try all wake-ups that wait now and pass a filter at once.

        Args:
            kind: Only those of this kind; by default all.
            about: Only those with this text in their id or subject, in any case.
            error: Only those with this text in their last error, in any case.
            by: Who has them tried, for the audit; by default this machine's user.

        Returns:
            How many were not due already.

        Raises:
            FleetUnavailable: Redis does not answer within 5 s.

        """
        async with await self._changes(by) as changes:
            wanted = WantedWakes(kind, about, error, fleet_clock.now())
            return await _through(lambda behind: changes.replay_found(wanted, behind=behind))

    async def outcomes(self, job_id: str) -> tuple[WakeupOutcome, ...]:
        """Read how a job's wake-ups have ended: who accepted, read, gave up or dropped each, and when.

        Args:
            job_id: The job's id.

        Returns:
            The latest twenty or so, oldest first, for as long as the job is kept; empty for a job that is not.

        Raises:
            FleetUnavailable: Redis does not answer within 5 s.

        """
        found = await (await self._sessions.opened()).dead.events.outcomes([job_id])
        return tuple(found.get(job_id, ()))

    async def _changes(self, by: str | None) -> AbstractAsyncContextManager[WakeupChanges]:
        return WakeupChanges.of((await self._sessions.opened()).settings, Actor.at_command_line(by))


class SyncFleetWakeups(SyncFace[FleetWakeups]):
    """`FleetWakeups` with plain methods."""

    def completions(
        self, conversation_id: str, *, consumer: str | None = None, on_lost: Callable[[int], object] | None = None
    ) -> Generator[WakeUp]:
        """Yield wake-ups as `FleetWakeups.completions` does: `for wake in fleet.wakeups.completions(id)`."""
        return self._each(self._face.completions(conversation_id, consumer=consumer, on_lost=on_lost))

    waiting = blocking(FleetWakeups.waiting)
    of_conversation = blocking(FleetWakeups.of_conversation)
    dead = blocking(FleetWakeups.dead)
    show = blocking(FleetWakeups.show)
    replay = blocking(FleetWakeups.replay)
    drop = blocking(FleetWakeups.drop)
    drop_all = blocking(FleetWakeups.drop_all)
    drop_waiting = blocking(FleetWakeups.drop_waiting)
    replay_waiting = blocking(FleetWakeups.replay_waiting)
    outcomes = blocking(FleetWakeups.outcomes)


def _spec(
    settings: Settings,
    deadline: float | None,
    *,
    caller: Caller,
    plan: tuple[ToolCall | None, Poll | None, Schedule | None],
    **fields: Any,
) -> JobSpec:
    """Build the specification. Raises `JobRefused` for a value of a wrong type: the first fault, and where."""
    (start, poll, schedule), now = plan, fleet_clock.now()
    schedule = None if schedule is None else schedule.counted_from(now)
    seconds = _default_seconds(poll, schedule, LONGEST_SECONDS) if deadline is None else deadline
    fields |= {"created_at": now, "deadline_at": now + seconds, "start": start, "poll": poll, "schedule": schedule}
    try:
        return JobSpec(caller=resolved(caller, settings.default_guest_modules), user_id=caller.user_id, **fields)
    except ValidationError as exc:
        fault = exc.errors(include_url=False, include_context=False, include_input=False)[0]
        text = f"The job is refused: {'.'.join(map(str, fault['loc']))}: {fault['msg']}."
        raise JobRefused(ToolResult.refused("", "invalid_arguments", text)) from None


def _default_seconds(poll: Poll | None, schedule: Schedule | None, longest: float) -> float:
    """A recurring job lasts as long as a job may; one that begins later has its time from then on."""
    if schedule is not None and schedule.cron is not None:
        return longest
    ahead = max((schedule.at or 0) - fleet_clock.now(), 0) if schedule is not None else 0
    return min(ahead + max(_NO_DEADLINE_SECONDS, 2 * poll.max_seconds if poll is not None else 0), longest)


async def _through(step: Callable[[str | None], Awaitable[HandledWakes]]) -> int:
    """Run all steps, one after the other, and return how many they have handled."""
    handled = await step(None)
    count = handled.done
    while handled.next is not None:
        handled = await step(handled.next)
        count += handled.done
    return count
