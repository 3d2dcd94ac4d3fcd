"""Groups the methods of a fleet in namespaces, `fleet.jobs` and others, each with its asynchronous and its synchronous class."""

import asyncio
import builtins
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Any

from pydantic import ValidationError

from toolfleet_registry.agents.explanation import ToolExplanation
from toolfleet_registry.catalog.registry_events import RegistryEvents
from toolfleet_registry.contracts import (
    Caller,
    Conversation,
    ErrorCode,
    ModuleStatus,
    ToolCall,
    ToolDefinition,
    ToolResult,
)
from toolfleet_registry.contracts.call_context import LogMessage, Progress
from toolfleet_registry.contracts.calls import ApprovalRule
from toolfleet_registry.contracts.jobs import Completion, HookSpec, Job, JobRefused, JobSpec, Poll, Schedule, WakeUp
from toolfleet_registry.errors import FleetUnavailable, InputNotTaken, SettingsError
from toolfleet_registry.policy.call_faults import resolved
from toolfleet_registry.settings import Settings
from toolfleet_registry.specs import RegistryEvent
from toolfleet_registry.store.registry import ToolRegistry
from toolfleet_registry.system import fleet_clock
from toolfleet_tasks.approvals.approvers import Approver
from toolfleet_tasks.approvals.feed import ApprovalEvent
from toolfleet_tasks.approvals.records import ListedApproval, StoredApproval
from toolfleet_tasks.approvals.service import ApprovalService
from toolfleet_tasks.approvals.views import may_see
from toolfleet_tasks.calls.audit_trail import asked_by_here
from toolfleet_tasks.calls.begun_calls import BegunHandle, Owner
from toolfleet_tasks.calls.handle import CallHandle
from toolfleet_tasks.calls.prepare import check_timeout
from toolfleet_tasks.client.session import Session, Sessions
from toolfleet_tasks.client.sync_face import LoopRunner, SyncFace, blocking
from toolfleet_tasks.dead_letters.kept_wakes import KeptWake, WaitingKind, WantedWakes
from toolfleet_tasks.jobs.service import HookEnd
from toolfleet_tasks.jobs.state_machine import LONGEST_SECONDS, EndedRound
from toolfleet_tasks.messages.ids import job_id_for
from toolfleet_tasks.operations.change_trail import Actor, ChangeKind, ChangeTrail, OperatorChange
from toolfleet_tasks.operations.changes import HandledWakes, QueueChanges, WakeupChanges
from toolfleet_tasks.operations.queue_overview import QueueOverview, QueueOverviews
from toolfleet_tasks.wakeups.events import WakeupOutcome
from toolfleet_tasks.wakeups.inbox import CompletionInbox

_NO_DEADLINE_SECONDS = 7 * 86_400  # of a job without a given one: longer than anything that is still waited for
_LONGEST_NAME = 200
_FAILED: ErrorCode = "module_error"  # as when a poll's result says that the work has failed
_READ_SECONDS = 5.0  # for Redis to say what it has: its connection would ask again for as long as it is silent


class _Namespace:
    """A group of a fleet's methods, which use the session of the running loop."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions


class FleetJobs(_Namespace):
    """The jobs of a caller's user: long work that is polled until it is over."""

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
        """Start long work, poll it, and do `on_complete` once at its end, whatever stops meanwhile.

        `start` is its first call, made at once (or at `schedule.at`) by a worker; then `poll` until it says that the
        work is over, or until `hook`'s signed request reaches a gateway; without these it is a reminder. All ends in
        `deadline` seconds, and each call is made with the caller's present rights. If it fails, the other jobs of its
        user's `workflow_id` are cancelled. `idempotency_key`, or that of `start`, names the job: for its user it is the
        same then, and another one a `conflict`.

        Raises `JobRefused` if it could not run or its end would reach no one; `FleetUnavailable` when Redis does not
        answer: it may exist then, and asked for again under its key it is one.
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
            **said,
        )
        return await session.jobs.start(spec, by_key=bool(key))

    async def get(self, job_id: str, caller: Caller) -> Job | None:
        """Return a job of the caller's user; `None` if there is none, or not any more. Raises `FleetUnavailable`."""
        return await (await self._sessions.opened()).jobs.get(job_id, caller.user_id)

    async def list(
        self, caller: Caller, *, ended: bool = True, limit: int = 100, workflow_id: str | None = None
    ) -> builtins.list[Job]:
        """List at most `limit` jobs of the caller's user, the newest first; with `ended` those that are over, too; or of one workflow."""
        service = (await self._sessions.opened()).jobs
        return await service.list(caller.user_id, ended=ended, limit=limit, workflow_id=workflow_id)

    async def cancel(self, job_id: str, caller: Caller) -> Job | None:
        """End a job of the caller's user, and send no wake-up. A call of it that runs is left to end. `None`: no such job."""
        return await (await self._sessions.opened()).jobs.cancel(job_id, caller.user_id)

    async def cancel_workflow(self, workflow_id: str, caller: Caller) -> int:
        """End all jobs of a workflow of the caller's user, as `cancel`. Returns how many; those that have ended stay as they are."""
        return await (await self._sessions.opened()).jobs.cancel_workflow(workflow_id, caller.user_id)


class SyncFleetJobs(SyncFace[FleetJobs]):
    """`FleetJobs` with plain methods."""

    start = blocking(FleetJobs.start)
    get = blocking(FleetJobs.get)
    list = blocking(FleetJobs.list)
    cancel = blocking(FleetJobs.cancel)
    cancel_workflow = blocking(FleetJobs.cancel_workflow)


class FleetHooks(_Namespace):
    """The hooks of jobs, for gateways, which verify the sender. Raises `FleetUnavailable`."""

    async def of_job(self, job_id: str) -> HookSpec | None:
        """Return the hook of any user's job; `None` for one without a hook, or that there is not."""
        return await (await self._sessions.opened()).jobs.hooks.of_job(job_id)

    async def complete(self, job_id: str, delivery: str, result: Any) -> HookEnd | None:
        """End a job as completed, once; `delivery` is the request's id. `None`: there is no such job with a hook."""
        return await self._end(job_id, delivery, EndedRound("completed", result))

    async def fail(self, job_id: str, delivery: str, error: str) -> HookEnd | None:
        """End the job as `complete` does, as failed: `error` is the outside system's message."""
        text = f"The job has failed: its hook says: {error}"
        return await self._end(job_id, delivery, EndedRound("failed", error=text, error_code=_FAILED))

    async def _end(self, job_id: str, delivery: str, said: EndedRound) -> HookEnd | None:
        return await (await self._sessions.opened()).jobs.hooks.end(job_id, delivery, said)


class FleetWakeups(_Namespace):
    """The wake-ups of a fleet: each says to a conversation how a job has ended.

    Each method but `completions` raises `FleetUnavailable` when Redis does not answer within 5 s.
    """

    async def completions(
        self, conversation_id: str, *, consumer: str | None = None, on_lost: Callable[[int], object] | None = None
    ) -> AsyncGenerator[WakeUp]:
        """Yield the wake-ups of a conversation, if no `core_url` is set: `async for wake in fleet.wakeups.completions(id)`.

        Waits for more, for ever, and ends when the fleet is left. Several readers share them. Each comes at least once,
        with the same `wake_id` when it comes again: it is confirmed when the next one is asked for. A wake-up during
        which a loop was left, or died, is given to another reader, after at most 35 s without a sign of the first.
        `consumer` names a reader that, restarted under its name, gets that at once; no two may have one name at the
        same time. Of each user about the last 1,000 are kept: `on_lost` is told how many unread others there were, as
        is the log (`completions_lost`). Raises `SettingsError` if a `core_url` is set here; if one is set in workers,
        the log has `completions_go_to_core`.
        """
        reader = (await self._reading()).wakes.reader(conversation_id, consumer, on_lost)
        async with aclosing(reader.read()) as wakes:
            async for wake in wakes:
                yield wake

    async def inbox(self, conversation_id: str, caller: Caller) -> CompletionInbox:
        """Return the wake-ups of the conversation that are of jobs of the caller's user: they are read, and stay until each is confirmed.

        For programs whose own readers come and go, as over HTTP. Raises as `completions`.
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
        """List at most `limit` (up to 1,000) of those that wait to be accepted, those tried next first."""
        return await (await self._sessions.opened()).dead.events.waiting(limit, offset)

    async def of_conversation(self, conversation_id: str, most: int = 50) -> list[KeptWake]:
        """List those that wait for a conversation: of the `most` (up to 1,000) that are tried next, and of the latest `most` that its readers have not confirmed."""
        return await (await self._sessions.opened()).dead.events.of_conversation(conversation_id, most)

    async def dead(self, limit: int = 50, offset: int = 0) -> list[KeptWake]:
        """List at most `limit` (up to 1,000) wake-ups that were never accepted, the latest first."""
        return await (await self._sessions.opened()).dead.events.dead(limit, offset)

    async def show(self, wake_id: str) -> KeptWake | None:
        """Return the wake-up of this id, whether it waits or is dead; `None` if it was accepted or dropped, as `outcomes` of its job says, or never was."""
        return await (await self._sessions.opened()).dead.events.show(wake_id)

    async def replay(self, wake_id: str) -> bool:
        """Try a dead wake-up again, under the same id, or a waiting one now. Returns whether it was there.

        Raises `NotReplayable` for a dead one that cannot be read, and for a call whose arguments were not kept.
        """
        return await (await self._sessions.opened()).dead.events.replay(wake_id)

    async def drop(self, *wake_ids: str, by: str | None = None) -> tuple[str, ...]:
        """Forget these waiting or dead wake-ups. Returns the ids of those that were there.

        A waiting one is tried no more, but for an attempt that is under way just now, and may still be accepted. Its
        job records that it was dropped, and the audit by whom (`by`; `None`: this machine's user).
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
        """Forget all dead wake-ups. Returns how many there were."""
        return await (await self._sessions.opened()).dead.events.drop_all()

    async def drop_waiting(
        self, kind: WaitingKind | None = None, *, about: str = "", error: str = "", by: str | None = None
    ) -> int:
        """Forget all that wait now, of a kind, with some words in their id or subject, or in their last error. Returns how many.

        Those that come meanwhile stay. What holds for each, and `by`, is as of `drop`.
        """
        async with await self._changes(by) as changes:
            wanted = WantedWakes(kind, about, error, fleet_clock.now())
            return await _through(lambda behind: changes.drop_found(wanted, behind=behind))

    async def replay_waiting(
        self, kind: WaitingKind | None = None, *, about: str = "", error: str = "", by: str | None = None
    ) -> int:
        """Have all that wait now tried at once, chosen as by `drop_waiting`. Returns how many were not due already."""
        async with await self._changes(by) as changes:
            wanted = WantedWakes(kind, about, error, fleet_clock.now())
            return await _through(lambda behind: changes.replay_found(wanted, behind=behind))

    async def outcomes(self, job_id: str) -> tuple[WakeupOutcome, ...]:
        """Return what became of a job's wake-ups, oldest first: who accepted, read, gave up or dropped each, and when.

        The latest twenty or so, for as long as the job is kept.
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


class FleetApprovals(_Namespace):
    """The calls that people have to approve. Their ids are those of the calls.

    Each method raises `FleetUnavailable` when Redis does not answer. What people decide has its line in the audit.
    """

    async def keep_asked(self, user_id: str | None, idempotency_key: str, found: StoredApproval) -> None:
        """Store the call of a user's key: a step repeated after that call has ended finds its end, and asks no approver again."""
        session = await self._sessions.opened()
        async with _answering():
            await session.approvals.records.keep_asked(user_id, idempotency_key, found.request)

    async def asked(self, user_id: str | None, idempotency_key: str) -> str | None:
        """The id of that call; `None` for none."""
        session = await self._sessions.opened()
        async with _answering():
            return await session.approvals.records.asked(user_id, idempotency_key)

    async def list(
        self,
        *,
        settled: bool = False,
        limit: int = 50,
        offset: int = 0,
        viewer: Approver | None = None,
        conversation_id: str | None = None,
    ) -> builtins.list[ListedApproval]:
        """List at most `limit` of those that wait, the next to expire first; or of the last that were `settled`, the last first.

        With a `viewer` only those that they may decide, or have asked for. Arguments of more than 16 KiB are left out: `show` has them.
        """
        session = await self._sessions.opened()
        async with _answering():
            return await session.approvals.records.page(
                settled=settled,
                limit=limit,
                offset=offset,
                viewer=viewer,
                conversation_id=conversation_id,
                keep=lambda each: viewer is None or may_see(each, viewer),
            )

    async def count(self) -> int:
        """Count those that are not settled."""
        session = await self._sessions.opened()
        async with _answering():
            return await session.approvals.records.count()

    async def show(self, approval_id: str) -> StoredApproval:
        """Return one of them. Raises `ApprovalNotTaken` for none."""
        session = await self._sessions.opened()
        async with _answering():
            return await session.approvals.show(approval_id)

    async def approve(
        self,
        approval_id: str,
        approver: Approver,
        *,
        arguments: Mapping[str, Any] | None = None,
        reason: str = "",
        seen: str | None = None,
    ) -> StoredApproval:
        """Approve a call, which begins with the last approval that it needs; perhaps with other `arguments`, by their names.

        After such a change what others have approved counts no more. `seen`: the `binding` of the request that the approver was
        shown; if it is another one now, the decision is not taken (`changed`), nor is one without it where a quorum is above 1, or
        once the call was edited (`unseen`). Raises `ApprovalNotTaken`, and `ValueError` for arguments that
        the tool does not take.
        """
        async with self._change("call_approved", approval_id, approver) as (service, change):
            found = await service.approve(approval_id, approver, arguments=arguments, reason=reason, seen=seen)
            change.facts |= {"call_tool": found.request.tool_name, "state": found.state, "edited": int(bool(arguments))}
            return found

    async def reject(
        self, approval_id: str, approver: Approver, *, reason: str = "", seen: str | None = None
    ) -> StoredApproval:
        """Reject a call, which ends with that; its agent is told the `reason`. `seen` as of `approve`. Raises `ApprovalNotTaken`."""
        async with self._change("call_rejected", approval_id, approver) as (service, change):
            found = await service.reject(approval_id, approver, reason=reason, seen=seen)
            change.facts["call_tool"] = found.request.tool_name
            return found

    async def events(self, after: str | None = None) -> AsyncGenerator[ApprovalEvent]:
        """Yield the events of all approvals, from now on or since the event of the id `after`.

        The first one is `following`, or `events_lost` if unread events are gone. While Redis is away it waits.
        """
        session = await self._sessions.opened()
        async with aclosing(session.approval_feed.follow(after)) as events:
            async for event in events:
                yield event

    async def steps(self, approval_id: str, is_over: Callable[[], bool]) -> AsyncGenerator[ListedApproval]:
        """Follow one approval: as it is, and after each step, until people have decided or `is_over`. Of none there is nothing."""
        session = await self._sessions.opened()
        async with aclosing(session.approval_feed.of(approval_id, is_over)) as steps:
            async for step in steps:
                yield step

    async def rules(self, tool_name: str, caller: Caller) -> tuple[ApprovalRule, ...]:
        """Return the rules by which such a call of the caller needs an approval now; empty if it needs none.

        From memory.
        """
        return (await self._sessions.opened()).preparation.approval_rules(tool_name, caller)

    @asynccontextmanager
    async def _change(
        self, kind: ChangeKind, approval_id: str, approver: Approver
    ) -> AsyncGenerator[tuple[ApprovalService, OperatorChange]]:
        """Write the decision's line into the audit, which has neither arguments nor reasons."""
        session = await self._sessions.opened()
        actor = Actor(approver.user_id, approver.by)
        async with ChangeTrail.of(session.settings, actor) as trail, trail.change(kind, approval_id) as change:
            yield session.approvals, change


class SyncFleetApprovals(SyncFace[FleetApprovals]):
    """`FleetApprovals` with plain methods."""

    list = blocking(FleetApprovals.list)
    count = blocking(FleetApprovals.count)
    show = blocking(FleetApprovals.show)
    approve = blocking(FleetApprovals.approve)
    reject = blocking(FleetApprovals.reject)
    rules = blocking(FleetApprovals.rules)
    asked = blocking(FleetApprovals.asked)
    keep_asked = blocking(FleetApprovals.keep_asked)

    def events(self, after: str | None = None) -> Generator[ApprovalEvent]:
        """Implements `FleetApprovals.events`."""
        return self._each(self._face.events(after))

    def steps(self, approval_id: str, is_over: Callable[[], bool]) -> Generator[ListedApproval]:
        """Implements `FleetApprovals.steps`."""
        return self._each(self._face.steps(approval_id, is_over))


class FleetModules(_Namespace):
    """The modules of a fleet, and the tools that they register."""

    async def statuses(self) -> dict[str, ModuleStatus]:
        """Return the known status of every module, by its name, without asking any."""
        return await (await self._sessions.opened()).statuses()

    async def refresh(self) -> dict[str, ModuleStatus]:
        """Ask every module now for what it offers."""
        return await (await self._sessions.opened()).refresh()

    async def explain(
        self, tool_name: str, caller: Caller, *, conversation: Conversation | None = None
    ) -> ToolExplanation:
        """Say why the caller may call a tool, or may not: each rule that has a say, in order, and where it stands. Counts nothing.

        `conversation`: of which run and conversation the call would be: how much these have used of their profile's limits.
        """
        return await (await self._sessions.opened()).explain(tool_name, caller, conversation)

    def events(self, after: str | None = None) -> RegistryEvents:
        """Follow what happens to the fleet's tools: `async for event in fleet.modules.events()`.

        Registered, changed, enabled, disabled, removed, rolled back, drifted and withheld, in order, each once, about a second
        later. `after` is the id of the last event that was heard of; '' for all of the last 10,000; `None` for those from now
        on. `RegistryEvents` says what it raises: `RegistryEventsLost` where some are gone, and `FleetUnavailable` when the
        registry has been away for 60 s; either may be followed on with. Raises `ValueError` if `after` is no id, and
        `RuntimeError` when the fleet is left.
        """
        return RegistryEvents(self._registry, after)

    @asynccontextmanager
    async def _registry(self) -> AsyncGenerator[ToolRegistry]:
        session = await self._sessions.opened()
        async with session.held.registry() as registry:
            yield registry


class SyncFleetModules(SyncFace[FleetModules]):
    """`FleetModules` with plain methods."""

    statuses = blocking(FleetModules.statuses)
    refresh = blocking(FleetModules.refresh)
    explain = blocking(FleetModules.explain)

    def events(self, after: str | None = None) -> Generator[RegistryEvent]:
        """Yield events as `FleetModules.events` does: `for event in fleet.modules.events()`.

        After an error it has ended: continue by `after`.
        """
        return self._each(self._face.events(after))


class FleetQueues(_Namespace):
    """The queues of a fleet's modules. Each is named by its module (`crm`), and all of a lane by `lane:slow`.

    Each change has its line in the audit, with who has made it (`by`; `None`: this machine's user) and why. Each method raises
    `NoSuchQueue` for a name that there is not, and `FleetUnavailable` when Redis does not answer within 5 s.
    """

    async def list(self) -> builtins.list[QueueOverview]:
        """Return how each queue is, by name."""
        async with QueueOverviews.of((await self._sessions.opened()).settings) as overviews:
            return [*await overviews.read()]

    async def pause(self, name: str, *, reason: str = "", by: str | None = None) -> None:
        """Have workers begin nothing more of a queue, within a second: what runs goes on, and calls wait within their deadlines."""
        async with await self._changes(by) as changes:
            await changes.pause(name, reason)

    async def drain(
        self, name: str, *, reason: str = "", by: str | None = None, wait_seconds: float = 0
    ) -> builtins.list[QueueOverview]:
        """Have a queue take no new calls, while those that wait are run. Returns how it is when nothing is left, or after `wait_seconds`."""
        async with await self._changes(by) as changes:
            await changes.drain(name, reason)
        async with QueueOverviews.of((await self._sessions.opened()).settings) as overviews:
            return [*await overviews.wait_until_empty(name, seconds=wait_seconds)]

    async def resume(self, name: str, *, reason: str = "", by: str | None = None) -> None:
        """End both."""
        async with await self._changes(by) as changes:
            await changes.resume(name, reason)

    async def _changes(self, by: str | None) -> AbstractAsyncContextManager[QueueChanges]:
        settings = (await self._sessions.opened()).settings
        return QueueChanges.of(settings, by=Actor.at_command_line(by))


class SyncFleetQueues(SyncFace[FleetQueues]):
    """`FleetQueues` with plain methods."""

    list = blocking(FleetQueues.list)
    pause = blocking(FleetQueues.pause)
    drain = blocking(FleetQueues.drain)
    resume = blocking(FleetQueues.resume)


class FleetBegunCalls(_Namespace):
    """Calls that a stateless process, such as a gateway, starts for its clients. `owner`: the client's user."""

    async def begin(
        self,
        call: ToolCall,
        caller: Caller,
        owner: Owner,
        *,
        conversation: Conversation | None = None,
        timeout: float | None = None,
        waits_for_turn: bool = False,
    ) -> BegunHandle:
        """Start a call as `ToolFleet.submit` does, for an `owner`: once this returns, any process can `attach` the call.

        Raises `FleetUnavailable`, at once if Redis is known to be away, and `ValueError` for a `timeout` that is no
        number.
        """
        check_timeout(timeout)
        session = self._sessions.here() or await self._sessions.opened()
        await session.begun.check_reachable()  # a client over HTTP comes again: an agent waits
        return BegunHandle(await session.begin(call, caller, conversation, timeout, waits=waits_for_turn, owner=owner))

    async def tool(self, name: str, caller: Caller) -> ToolDefinition | None:
        """The tool of this name that the caller may call, listed or not; `None` if there is none. From memory."""
        session = self._sessions.here() or await self._sessions.opened()
        return session.tool(name, caller)

    async def reaches(self, name: str, caller: Caller) -> bool:
        """Return whether the caller may know that the tool exists, also one that is closed to all. From memory."""
        return (self._sessions.here() or await self._sessions.opened()).reaches(name, caller)

    async def absence(self, name: str, caller: Caller) -> ToolResult:
        """The refusal of a tool that looks to the caller like one that does not exist. From memory."""
        return (self._sessions.here() or await self._sessions.opened()).absence(name, caller)

    async def attach(self, call_id: str, owner: Owner) -> BegunHandle | None:
        """Follow a call that some process has started for the owner; `None` for one that is unknown, or another's.

        `leave` it: the call continues. Raises `FleetUnavailable`.
        """
        begun = (await self._sessions.opened()).begun
        record = await begun.find(call_id, owner)
        return None if record is None else BegunHandle(await begun.attach(record), is_guest=record.is_guest)

    async def keep_deferred(self, owner: Owner, idempotency_key: str, call_id: str, *, seconds: float) -> None:
        """Keep which call the owner's key has stood for, `seconds` and a week: longer than the key stands for it.

        Raises `FleetUnavailable`.
        """
        await (await self._sessions.opened()).begun.keep_deferred(owner, idempotency_key, call_id, seconds)

    async def answer(
        self,
        call_id: str,
        owner: Owner,
        number: int | None,
        responses: Mapping[str, Any],
    ) -> bool:
        """Answer question `number` of a call of the owner's, or its present one, by one object for each key of its requests.

        False if it has the same answer already. Raises `InputNotTaken`, `ValueError` for an invalid answer, and
        `FleetUnavailable`: then it may have been taken, and the same answer may be given again.
        """
        session = await self._sessions.opened()
        if await session.begun.find(call_id, owner) is None:
            raise InputNotTaken(call_id, "unknown")
        return await session.answers.answer(call_id, number, responses)

    async def hidden_answers(self, call_id: str, responses: Mapping[str, Any]) -> dict[str, Any]:
        """Return some answers to what a call asks as they may be kept: without what its agent's profile hides.

        Raises `ValueError` where the profile blocks them, `InputNotTaken` and `FleetUnavailable`.
        """
        return await (await self._sessions.opened()).answers.hidden(call_id, responses)

    def shown_ids(self, caller: Caller) -> Mapping[str, str]:
        """Return how logs name the caller's user, by `user_id`; nothing where its agent's profile hides no personal data."""
        session = self._sessions.here()
        return {} if session is None else session.preparation.facts_of(caller, caller.user_id, None)

    async def ping(self) -> bool:
        """Return whether Redis answers now."""
        try:
            return await (await self._sessions.opened()).begun.ping()
        except FleetUnavailable:
            return False


class SyncCallHandle(SyncFace[CallHandle]):
    """`CallHandle` with plain methods."""

    def __init__(self, handle: CallHandle, runner: LoopRunner) -> None:
        super().__init__(handle, runner)
        self.id = handle.id

    result = blocking(CallHandle.result)
    cancel = blocking(CallHandle.cancel)
    status = blocking(CallHandle.status)
    next_stop = blocking(CallHandle.next_stop)
    answer = blocking(CallHandle.answer)

    def progress(self) -> Generator[Progress]:
        """Yield progress as `CallHandle.progress` does: `for progress in handle.progress()` ends with the call."""
        return self._each(self._face.progress())

    def log(self) -> Generator[LogMessage]:
        """Yield messages as `CallHandle.log` does: `for message in handle.log()` ends with the call."""
        return self._each(self._face.log())


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
    fields["asked_by"] = asked_by_here(caller.user_id)
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


@asynccontextmanager
async def _answering() -> AsyncGenerator[None]:
    try:
        async with asyncio.timeout(_READ_SECONDS):
            yield
    except OSError as exc:  # a lost connection and the time that is over are both
        raise FleetUnavailable("Redis does not say what waits for people: ask again.") from exc
