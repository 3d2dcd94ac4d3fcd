"""Groups methods of a fleet in namespaces, each with its asynchronous and its synchronous class: approvals, modules, queues, begun calls."""

import asyncio
import builtins
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

from toolfleet_registry.agents.explanation import ToolExplanation
from toolfleet_registry.catalog.registry_events import RegistryEvents
from toolfleet_registry.contracts import (
    Caller,
    Conversation,
    ModuleStatus,
    ToolCall,
    ToolDefinition,
    ToolResult,
)
from toolfleet_registry.contracts.artifacts import owner_for, owner_of
from toolfleet_registry.contracts.call_context import LogMessage, Progress
from toolfleet_registry.contracts.calls import ApprovalRule
from toolfleet_registry.errors import ApprovalNotTaken, FleetUnavailable, InputNotTaken
from toolfleet_registry.specs import RegistryEvent
from toolfleet_registry.store.registry import ToolRegistry
from toolfleet_tasks.approvals.approvers import Approver
from toolfleet_tasks.approvals.feed import ApprovalEvent
from toolfleet_tasks.approvals.records import ListedApproval, StoredApproval
from toolfleet_tasks.approvals.service import ApprovalService
from toolfleet_tasks.approvals.views import may_see
from toolfleet_tasks.calls.audit_trail import asked_by_here
from toolfleet_tasks.calls.begun_calls import BegunHandle, Owner
from toolfleet_tasks.calls.handle import CallHandle
from toolfleet_tasks.calls.prepare import check_timeout
from toolfleet_tasks.client.session import Sessions
from toolfleet_tasks.client.sync_face import LoopRunner, SyncFace, blocking
from toolfleet_tasks.operations.change_trail import Actor, ChangeKind, ChangeTrail, OperatorChange
from toolfleet_tasks.operations.changes import QueueChanges
from toolfleet_tasks.operations.queue_overview import QueueOverview, QueueOverviews

if TYPE_CHECKING:
    from toolfleet_tasks.artifacts import OpenedArtifact

_READ_SECONDS = 5.0  # for Redis to say what it has: its connection would ask again for as long as it is silent


class Namespace:
    """A group of a fleet's methods, which use the session of the running loop."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions


class FleetArtifacts(Namespace):
    """The large results that are kept, for gateways: `fleet.artifacts`."""

    @property
    def are_kept(self) -> bool:
        """Whether the fleet has a store: models see previews then."""
        return self._sessions.settings.artifact_store is not None

    async def open(self, artifact_id: str, caller: Caller) -> "OpenedArtifact | None":
        """Open an artifact of the caller's user; without a user id, of the credential that the running request came with.

        Args:
            artifact_id: The handle.
            caller: Who reads; it must be able to use the tool that has produced the artifact.

        Returns:
            The artifact; `None` if there is none, or if it is not the caller's.

        Raises:
            FleetUnavailable: Redis does not answer.
            ArtifactStoreAway: The store does not answer.
            ArtifactMissing: The store has lost it.
            PersonalDataBlocked: The caller's profile blocks what is in it.

        """
        session = await self._sessions.opened()
        if session.settings.artifact_store is None:
            return None
        return await session.open_artifact(artifact_id, owner_for(caller.user_id, asked_by_here(None)), caller)

    async def open_for_approval(self, artifact_id: str, approval_id: str, viewer: Approver) -> "OpenedArtifact | None":
        """Open an artifact among the arguments of a call that waits for an approval.

        Args:
            artifact_id: The handle, as the call's arguments have it.
            approval_id: The call's id.
            viewer: Who reads: one who may decide about the call, or has asked for it.

        Returns:
            The artifact as the tool will get it; `None` if the call has no such argument, or is not for this viewer.

        Raises:
            FleetUnavailable: Redis does not answer.
            ArtifactStoreAway: The store does not answer.
            ArtifactMissing: The store has lost it.
            PersonalDataBlocked: The caller's profile blocks what is in it.

        """
        session = await self._sessions.opened()
        try:
            async with _answering():
                found = await session.approvals.show(approval_id)
        except ApprovalNotTaken:
            return None
        is_named = any(each.id == artifact_id for each in found.call.artifacts)
        is_open = session.settings.artifact_store is not None and found.state == "waiting"
        if not (is_open and is_named and may_see(found, viewer)):
            return None
        return await session.open_artifact(artifact_id, owner_of(found.call), found.call.caller)

    async def delete(self, artifact_id: str, caller: Caller) -> bool:
        """Delete an artifact of the caller's.

        Args:
            artifact_id: The handle.
            caller: Whose it is, as of `open`.

        Returns:
            Whether there was one.

        Raises:
            FleetUnavailable: Redis does not answer.

        """
        session, owner = await self._sessions.opened(), owner_for(caller.user_id, asked_by_here(None))
        if session.settings.artifact_store is None or owner is None:
            return False
        return bool(await session.artifacts.forget(owner, [artifact_id]))


class FleetApprovals(Namespace):
    """The calls that people have to approve: `fleet.approvals`. Their ids are those of the calls.

    Each method raises `FleetUnavailable` if Redis does not answer. What people decide has its line in the audit.
    """

    async def keep_asked(self, user_id: str | None, idempotency_key: str, found: StoredApproval) -> None:
        """Store the call of a user's key: a step repeated after that call has ended finds its end, and asks no approver again.

        Args:
            user_id: The user; `None` for callers without an id.
            idempotency_key: The key of the step.
            found: The approval of the call.

        Raises:
            FleetUnavailable: Redis does not answer within 5 s.

        """
        session = await self._sessions.opened()
        async with _answering():
            await session.approvals.records.keep_asked(user_id, idempotency_key, found.request)

    async def asked(self, user_id: str | None, idempotency_key: str) -> str | None:
        """Read the call that `keep_asked` has stored for a key.

        Args:
            user_id: The user; `None` for callers without an id.
            idempotency_key: The key of the step.

        Returns:
            The call's id; `None` if there is none.

        Raises:
            FleetUnavailable: Redis does not answer within 5 s.

        """
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
        """List approvals: those that wait, the next to expire first; or those that are settled, the last first.

        Args:
            settled: Whether those are listed that no longer wait.
            limit: How many at most.
            offset: How many of the first are left out.
            viewer: Only those that this person may decide about, or has asked for; by default all.
            conversation_id: Only those that were asked in this conversation; by default all.

        Returns:
            The approvals. Arguments of more than 16 KiB are left out: `show` has them.

        Raises:
            FleetUnavailable: Redis does not answer within 5 s.

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
        """Count the approvals that are not settled.

        Returns:
            How many wait.

        Raises:
            FleetUnavailable: Redis does not answer within 5 s.

        """
        session = await self._sessions.opened()
        async with _answering():
            return await session.approvals.records.count()

    async def show(self, approval_id: str) -> StoredApproval:
        """Read one approval.

        Args:
            approval_id: The id of its call.

        Returns:
            The approval, with all of its arguments.

        Raises:
            ApprovalNotTaken: There is none.
            FleetUnavailable: Redis does not answer within 5 s.

        """
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
        """Approve a call, which begins with the last approval that it needs.

        Args:
            approval_id: The id of the call.
            approver: Who decides.
            arguments: Replace the call's arguments of these names. After such a change earlier approvals count no more.
                By default nothing is replaced.
            reason: Why, in the approver's words.
            seen: The `binding` of the request that the approver was shown. The decision is not taken if it is another
                one now (`changed`), nor without it if a quorum is above 1 or the call was edited (`unseen`).

        Returns:
            The approval as it is now.

        Raises:
            ApprovalNotTaken: The decision was not taken; `reason` says why.
            ValueError: The tool does not take these arguments.
            FleetUnavailable: Redis does not answer.

        """
        async with self._change("call_approved", approval_id, approver) as (service, change):
            found = await service.approve(approval_id, approver, arguments=arguments, reason=reason, seen=seen)
            change.facts |= {"call_tool": found.request.tool_name, "state": found.state, "edited": int(bool(arguments))}
            return found

    async def reject(
        self, approval_id: str, approver: Approver, *, reason: str = "", seen: str | None = None
    ) -> StoredApproval:
        """Reject a call, which ends with that.

        Args:
            approval_id: The id of the call.
            approver: Who decides.
            reason: Why, in the approver's words; the call's agent is told.
            seen: As of `approve`.

        Returns:
            The approval as it is now.

        Raises:
            ApprovalNotTaken: The decision was not taken; `reason` says why.
            FleetUnavailable: Redis does not answer.

        """
        async with self._change("call_rejected", approval_id, approver) as (service, change):
            found = await service.reject(approval_id, approver, reason=reason, seen=seen)
            change.facts["call_tool"] = found.request.tool_name
            return found

    async def events(self, after: str | None = None) -> AsyncGenerator[ApprovalEvent]:
        """Follow the events of all approvals. While Redis is away it waits.

        Args:
            after: The id of the last event that was read; by default only events from now on come.

        Yields:
            The events. The first one is `following`, or `events_lost` if unread events are gone.

        """
        session = await self._sessions.opened()
        async with aclosing(session.approval_feed.follow(after)) as events:
            async for event in events:
                yield event

    async def steps(self, approval_id: str, is_over: Callable[[], bool]) -> AsyncGenerator[ListedApproval]:
        """Follow one approval: as it is, and after each step, until people have decided.

        Args:
            approval_id: The id of the call.
            is_over: Ends the following when it returns true.

        Yields:
            The approval; nothing if there is none.

        """
        session = await self._sessions.opened()
        async with aclosing(session.approval_feed.of(approval_id, is_over)) as steps:
            async for step in steps:
                yield step

    async def rules(self, tool_name: str, caller: Caller) -> tuple[ApprovalRule, ...]:
        """Tell by which rules a call of the caller would need an approval now. From memory.

        Args:
            tool_name: The tool.
            caller: The user and the rights of the call.

        Returns:
            The rules; empty if the call needs no approval.

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


class FleetModules(Namespace):
    """The modules of a fleet, and the tools that they register: `fleet.modules`."""

    async def statuses(self) -> dict[str, ModuleStatus]:
        """Read the known status of every module, without asking any.

        Returns:
            The statuses, by module.

        Raises:
            FleetUnavailable: Redis does not answer.

        """
        return await (await self._sessions.opened()).statuses()

    async def refresh(self) -> dict[str, ModuleStatus]:
        """Ask every module now for what it offers.

        Returns:
            The statuses, by module.

        Raises:
            FleetUnavailable: Redis does not answer.

        """
        return await (await self._sessions.opened()).refresh()

    async def explain(
        self, tool_name: str, caller: Caller, *, conversation: Conversation | None = None
    ) -> ToolExplanation:
        """Explain why a caller may call a tool, or may not: each rule that applies, in order, and where it is set. Counts nothing.

        Args:
            tool_name: The tool.
            caller: The user and the rights of the call.
            conversation: The run and thread of the call, of which it is told how much of their profile's limits is
                used; by default none.

        Returns:
            The rules, and whether the call is allowed. If Redis does not answer, limits count as passed.

        """
        return await (await self._sessions.opened()).explain(tool_name, caller, conversation)

    def events(self, after: str | None = None) -> RegistryEvents:
        """Follow changes of the fleet's tools: `async for event in fleet.modules.events()`.

        Tools are registered, changed, enabled, disabled, removed, rolled back, drifted and withheld. Events come in
        order, each once, about a second later.

        Args:
            after: The id of the last event that was read; '' for all of the last 10,000; by default only those from now
                on come.

        Returns:
            An iterator of the events. It raises `RegistryEventsLost` if some are gone, and `FleetUnavailable` if the
            registry has been away for 60 s; it can be followed further after either. It raises `RuntimeError` when the
            fleet is left.

        Raises:
            ValueError: `after` is not an id.

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


class FleetQueues(Namespace):
    """The queues of a fleet's modules: `fleet.queues`. Each is named by its module (`crm`), and all of a lane by `lane:slow`.

    Each change has its line in the audit, with who has made it and why. Each method raises `FleetUnavailable` if Redis
    does not answer within 5 s.
    """

    async def list(self) -> builtins.list[QueueOverview]:
        """List all queues, by name.

        Returns:
            How each queue is.

        Raises:
            FleetUnavailable: Redis does not answer within 5 s.

        """
        async with QueueOverviews.of((await self._sessions.opened()).settings) as overviews:
            return [*await overviews.read()]

    async def pause(self, name: str, *, reason: str = "", by: str | None = None) -> None:
        """Pause a queue: within a second workers start no more of its calls. Running ones go on, and waiting ones wait.

        Calls that wait keep their deadlines.

        Args:
            name: The queue, or `lane:<lane>`.
            reason: Why, for the audit and for operators who see the queue.
            by: Who does it, for the audit; by default this machine's user.

        Raises:
            NoSuchQueue: There is no queue of this name.
            FleetUnavailable: Redis does not answer within 5 s.

        """
        async with await self._changes(by) as changes:
            await changes.pause(name, reason)

    async def drain(
        self, name: str, *, reason: str = "", by: str | None = None, wait_seconds: float = 0
    ) -> builtins.list[QueueOverview]:
        """Drain a queue: it takes no new calls, and those that wait are run.

        Args:
            name: The queue, or `lane:<lane>`.
            reason: Why, for the audit and for operators who see the queue.
            by: Who does it, for the audit; by default this machine's user.
            wait_seconds: How long to wait until nothing is left; by default not at all.

        Returns:
            How the queue is when nothing is left, or after `wait_seconds`; of a lane each of its queues.

        Raises:
            NoSuchQueue: There is no queue of this name.
            FleetUnavailable: Redis does not answer within 5 s.

        """
        async with await self._changes(by) as changes:
            await changes.drain(name, reason)
        async with QueueOverviews.of((await self._sessions.opened()).settings) as overviews:
            return [*await overviews.wait_until_empty(name, seconds=wait_seconds)]

    async def resume(self, name: str, *, reason: str = "", by: str | None = None) -> None:
        """End a pause or a drain of a queue.

        Args:
            name: The queue, or `lane:<lane>`.
            reason: Why, for the audit.
            by: Who does it, for the audit; by default this machine's user.

        Raises:
            NoSuchQueue: There is no queue of this name.
            FleetUnavailable: Redis does not answer within 5 s.

        """
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


class FleetBegunCalls(Namespace):
    """Calls that a stateless process, such as a gateway, starts for its clients, and that any process can continue."""

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
        """Start a call as `ToolFleet.submit` does: once this returns, any process can `attach` the call.

        Args:
            call: The tool and its arguments.
            caller: The user and the rights that the call is made with.
            owner: The client's user, who alone can continue the call.
            conversation: As of `ToolFleet.call`.
            timeout: As of `ToolFleet.call`: seconds until the call has ended.
            waits_for_turn: As of `ToolFleet.submit`.

        Returns:
            The call's handle.

        Raises:
            FleetUnavailable: Redis does not answer; at once if it is known to be away.
            ValueError: The timeout is not a number.

        """
        check_timeout(timeout)
        session = self._sessions.here() or await self._sessions.opened()
        await session.begun.check_reachable()  # a client over HTTP comes again: an agent waits
        return BegunHandle(await session.begin(call, caller, conversation, timeout, waits=waits_for_turn, owner=owner))

    async def tool(self, name: str, caller: Caller) -> ToolDefinition | None:
        """Find a tool that the caller may call, listed or not. From memory.

        Args:
            name: The tool's name.
            caller: Who asks.

        Returns:
            The tool; `None` if there is none.

        """
        session = self._sessions.here() or await self._sessions.opened()
        return session.tool(name, caller)

    async def reaches(self, name: str, caller: Caller) -> bool:
        """Tell whether the caller may know that a tool exists, even one that is closed to all. From memory.

        Args:
            name: The tool's name.
            caller: Who asks.

        Returns:
            Whether the caller may know it.

        """
        return (self._sessions.here() or await self._sessions.opened()).reaches(name, caller)

    async def absence(self, name: str, caller: Caller) -> ToolResult:
        """Build the refusal of a tool that looks to the caller like one that does not exist. From memory.

        Args:
            name: The tool's name.
            caller: Who asks.

        Returns:
            The refusal.

        """
        return (self._sessions.here() or await self._sessions.opened()).absence(name, caller)

    async def attach(self, call_id: str, owner: Owner) -> BegunHandle | None:
        """Follow a call that any process has started for the owner. Leave it with the handle's `leave`: the call continues.

        Args:
            call_id: The call's id.
            owner: The client's user.

        Returns:
            The call's handle; `None` if it is unknown, or another owner's.

        Raises:
            FleetUnavailable: Redis does not answer.

        """
        begun = (await self._sessions.opened()).begun
        record = await begun.find(call_id, owner)
        return None if record is None else BegunHandle(await begun.attach(record), is_guest=record.is_guest)

    async def keep_deferred(self, owner: Owner, idempotency_key: str, call_id: str, *, seconds: float) -> None:
        """Store which call the owner's key has stood for, longer than the key stands for it.

        Args:
            owner: The client's user.
            idempotency_key: The key.
            call_id: The call's id.
            seconds: How long it is kept; a week is added.

        Raises:
            FleetUnavailable: Redis does not answer.

        """
        await (await self._sessions.opened()).begun.keep_deferred(owner, idempotency_key, call_id, seconds)

    async def answer(
        self,
        call_id: str,
        owner: Owner,
        number: int | None,
        responses: Mapping[str, Any],
    ) -> bool:
        """Answer a question of a call of the owner's.

        Args:
            call_id: The call's id.
            owner: The client's user.
            number: The number of the question; `None` for the present one.
            responses: One object for each key of the question's requests.

        Returns:
            True if the answer was taken, False if the question has the same answer already.

        Raises:
            InputNotTaken: There is no such call of the owner's, or it does not ask this.
            ValueError: The answer is invalid.
            FleetUnavailable: Redis does not answer. The answer may have been taken; the same one may be given again.

        """
        session = await self._sessions.opened()
        if await session.begun.find(call_id, owner) is None:
            raise InputNotTaken(call_id, "unknown")
        return await session.answers.answer(call_id, number, responses)

    async def hidden_answers(self, call_id: str, responses: Mapping[str, Any]) -> dict[str, Any]:
        """Hide in answers what the profile of the call's agent hides, so that they may be kept.

        Args:
            call_id: The call's id.
            responses: The answers, by the keys of the question's requests.

        Returns:
            The answers without what is hidden.

        Raises:
            ValueError: The profile blocks them.
            InputNotTaken: The call does not ask this.
            FleetUnavailable: Redis does not answer.

        """
        return await (await self._sessions.opened()).answers.hidden(call_id, responses)

    def shown_ids(self, caller: Caller) -> Mapping[str, str]:
        """Tell how logs name the caller's user.

        Args:
            caller: The caller.

        Returns:
            The name, by `user_id`; empty where the profile of its agent hides no personal data.

        """
        session = self._sessions.here()
        return {} if session is None else session.preparation.facts_of(caller, caller.user_id, None)

    async def ping(self) -> bool:
        """Ask Redis for a sign of life.

        Returns:
            Whether it answers now.

        """
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


@asynccontextmanager
async def _answering() -> AsyncGenerator[None]:
    try:
        async with asyncio.timeout(_READ_SECONDS):
            yield
    except OSError as exc:  # a lost connection and the time that is over are both
        raise FleetUnavailable("Redis does not say what waits for people: ask again.") from exc
