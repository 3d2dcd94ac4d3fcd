"""Judges an agent's call, publishes it, and brings its result: `ToolFleet`."""

import asyncio
import functools
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Self

from toolfleet_registry.contracts import Caller, Conversation, ToolCall, ToolDefinition, ToolResult
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.redis.urls import check_redis_url, fleet_url
from toolfleet_registry.settings import Settings, load_settings
from toolfleet_tasks.aio import end
from toolfleet_tasks.client import parts
from toolfleet_tasks.client.listeners import OnProgress
from toolfleet_tasks.client.sync_face import LoopRunner, SyncFace, blocking, blocking_with_progress

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from toolfleet_registry.formats import Converted
    from toolfleet_registry.policy.limits import Remaining
    from toolfleet_registry.tags import ToolContext
    from toolfleet_tasks.calls.eval_gate import Circumstances, EvalGate
    from toolfleet_tasks.calls.handle import CallHandle
    from toolfleet_tasks.client.canvas import FleetCanvas, SyncFleetCanvas
    from toolfleet_tasks.client.dead_letters import FleetDeadLetters, SyncFleetDeadLetters
    from toolfleet_tasks.client.jobs import (
        FleetHooks,
        FleetJobs,
        FleetPrograms,
        FleetWakeups,
        SyncFleetJobs,
        SyncFleetPrograms,
        SyncFleetWakeups,
    )
    from toolfleet_tasks.client.listeners import OnInput
    from toolfleet_tasks.client.namespaces import (
        FleetApprovals,
        FleetArtifacts,
        FleetBegunCalls,
        FleetModules,
        FleetQueues,
        SyncCallHandle,
        SyncFleetApprovals,
        SyncFleetModules,
        SyncFleetQueues,
    )


def fleet_settings(url: str | None = None, settings: Settings | None = None) -> Settings:
    """Return the settings with a Redis URL: `url`, or their own.

    Raises `SettingsError` if there is none, or if it is invalid.
    """
    settings = settings or load_settings()
    if url is not None:
        try:
            settings = settings.model_copy(update={"redis_url": check_redis_url(url)})
        except ValueError as exc:
            raise SettingsError(f"The Redis URL {exc}.") from exc
    fleet_url(settings.redis_url)
    return settings


class ToolFleet:
    """The fleet, for asyncio agents: `async with ToolFleet() as fleet: await fleet.call(call, caller)`.

    Once entered it works on any event loop of the process, and in processes forked from it: each loop opens connections
    of its own with its first call, and leaving the fleet closes them all. Every method raises `RuntimeError` while the
    fleet is not open, and `FleetUnavailable` if a loop's first use finds that Redis does not answer; `call` and
    `submit` give a result that says so instead.

    Functions other than calls are in its namespaces: `jobs`, `approvals`, `dead_letters`, `wakeups`, `modules`,
    `queues` and `canvas`.

    Args:
        url: The URL of Redis. Without it that of `settings` counts, of the environment, of `toolfleet.toml`, or of a
            running `toolfleet up` in this folder or above.
        settings: All settings; by default they are read from the environment and `toolfleet.toml`.
        gate: Is asked before each call of a tool that requires it; without a gate such calls are refused or pass, as
            the settings say.
        metrics: Where this process counts what it does with calls, for Prometheus: a port, or a registry of
            `prometheus_client`. By default it does not.
        is_shared: Whether calls of many users go through it, as through a gateway: then other requests to Redis have a
            connection of their own.

    Raises:
        SettingsError: There is no Redis URL, or it is invalid.

    """

    def __init__(
        self,
        url: str | None = None,
        settings: Settings | None = None,
        *,
        gate: "EvalGate | None" = None,
        metrics: "int | CollectorRegistry | None" = None,
        is_shared: bool = False,
    ) -> None:
        settings = fleet_settings(url, settings)
        self._metrics = None if metrics is None else parts.AgentMetrics(settings, metrics)
        self._settings = settings
        self._sessions = parts.Sessions(settings, gate, is_shared=is_shared)
        self._canvas_app = parts.CanvasApp(settings)

    # Most agents use none of these: each is imported when it is asked for.

    @cached_property
    def jobs(self) -> "FleetJobs":
        """Jobs: work that is done later, repeatedly or for long."""
        return parts.FleetJobs(self._sessions)

    @cached_property
    def programs(self) -> "FleetPrograms":
        """Programs: Python that a model has written, and that calls tools."""
        return parts.FleetPrograms(self._sessions)

    @cached_property
    def approvals(self) -> "FleetApprovals":
        """Calls that wait for people, and people's decisions."""
        return parts.FleetApprovals(self._sessions)

    @cached_property
    def hooks(self) -> "FleetHooks":
        """The hooks of jobs, for gateways."""
        return parts.FleetHooks(self._sessions)

    @cached_property
    def begun_calls(self) -> "FleetBegunCalls":
        """Calls that any process may continue, for gateways."""
        return parts.FleetBegunCalls(self._sessions)

    @cached_property
    def artifacts(self) -> "FleetArtifacts":
        """Large results that are kept, for gateways."""
        return parts.FleetArtifacts(self._sessions)

    @cached_property
    def dead_letters(self) -> "FleetDeadLetters":
        """Calls that came to no known end."""
        return parts.FleetDeadLetters(self._sessions)

    @cached_property
    def wakeups(self) -> "FleetWakeups":
        """Wake-ups of conversations at the end of their jobs."""
        return parts.FleetWakeups(self._sessions)

    @cached_property
    def modules(self) -> "FleetModules":
        """The modules, and what operators decide about tools."""
        return parts.FleetModules(self._sessions)

    @cached_property
    def queues(self) -> "FleetQueues":
        """The queues: how many calls wait, and for what."""
        return parts.FleetQueues(self._sessions)

    @cached_property
    def canvas(self) -> "FleetCanvas":
        """Calls as signatures of Celery's canvas."""
        return parts.FleetCanvas(self._sessions, self._canvas_app)

    @classmethod
    def sync(
        cls,
        url: str | None = None,
        settings: Settings | None = None,
        *,
        gate: "EvalGate | None" = None,
        metrics: "int | CollectorRegistry | None" = None,
    ) -> "SyncToolFleet":
        """Make a fleet for programs without an event loop: `with ToolFleet.sync() as fleet: fleet.call(call, caller)`.

        Args:
            url: As of `ToolFleet`.
            settings: As of `ToolFleet`.
            gate: As of `ToolFleet`; it is called on the fleet's own loop, in a thread.
            metrics: As of `ToolFleet`.

        Returns:
            A fleet with methods that wait for their results; it is not open yet.

        Raises:
            SettingsError: There is no Redis URL, or it is invalid.

        """
        return SyncToolFleet(cls(url, settings, gate=gate, metrics=metrics))

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def open(self) -> Self:
        """Open the fleet without `async with`, in a notebook or where a framework starts.

        Close it at the end with `close`, as often as it was opened and entered.

        Returns:
            The fleet itself.

        Raises:
            FleetUnavailable: Redis does not answer.
            SettingsError: The settings cannot be applied here, such as a profile that names a class that is missing.

        """
        await self._sessions.enter()
        try:
            if self._metrics is not None:
                await self._metrics.start()
        except BaseException:
            await self._sessions.leave()
            raise
        return self

    async def close(self) -> None:
        """Close what `open` has opened. Calls that are under way end with a result that says so; a closed fleet stays closed."""
        await self._sessions.leave()
        if self._metrics is not None:
            await self._metrics.close()
        self._canvas_app.close()

    async def tools(self, caller: Caller) -> list[ToolDefinition]:
        """List the tools that a caller may use. From memory: it costs no round trip.

        Args:
            caller: Who asks: permission, modules and agent decide what is listed.

        Returns:
            The tools, sorted by name.

        """
        return (await self._sessions.opened()).tools(caller)

    async def search(
        self, text: str, caller: Caller, *, tags: Sequence[str] = (), limit: int = 20
    ) -> list[ToolDefinition]:
        """Search the tools that a caller may use. From memory, in a thread.

        Args:
            text: Words, or the beginnings of words, of which a tool must have one. With an empty text all tools with
                the tags are found, by name.
            caller: Who asks, as of `tools`.
            tags: Tags that a tool must have, all of them.
            limit: How many tools at most.

        Returns:
            The tools, the best first.

        """
        return await (await self._sessions.opened()).search(text, caller, tags=tags, limit=limit)

    @staticmethod
    def tools_to_openai_format(tools: Iterable[ToolDefinition]) -> "Converted":
        """Convert tools for OpenAI's Chat Completions.

        Args:
            tools: What `tools` or `search` has returned.

        Returns:
            The value for `tools`, and notes about what was changed for the format.

        """
        return parts.tools_to_openai_format(tools)

    async def remaining(self, caller: Caller, *, conversation: Conversation | None = None) -> "Remaining":
        """Read what a caller's user has left today. All callers without a user id are one user.

        Args:
            caller: The user, and the agent, if a profile limits it.
            conversation: The run and thread of which the limits are told, too; by default none.

        Returns:
            The use of each cost class with a budget, of each limited tool, and of the run and thread.

        Raises:
            FleetUnavailable: Redis does not answer within 5 s.

        """
        return await (await self._sessions.opened()).remaining(caller, conversation)

    async def call(
        self,
        call: ToolCall,
        caller: Caller,
        *,
        conversation: Conversation | None = None,
        context: "ToolContext | None" = None,
        timeout: float | None = None,
        waits_for_worker: bool = False,
        waits_for_approval: float = 0,
        on_progress: OnProgress | None = None,
        on_input: "OnInput | None" = None,
    ) -> ToolResult:
        """Run a tool and return its result.

        It never raises for what happens to the call: a refusal, a failure and an unknown outcome are results. If Redis
        is silent when the time is over, the result comes up to two seconds later: Redis is asked whether the call was
        started.

        A caller with `calls_per_caller` calls under way waits for a turn. With an idempotency key that this user has
        used before, the result is that of the first call, which is waited for. If the awaiting task is cancelled, the
        call is cancelled; one that waits for another call's result only stops waiting.

        Args:
            call: The tool and its arguments.
            caller: The user and the rights that the call is made with.
            conversation: Where the call belongs; its ids are written into arguments that ask for them, and into the
                audit.
            context: What the gate is asked with, and what functions of the fleet's own get that take it. It is separate
                from the arguments, so that no model writes it.
            timeout: Seconds until the call has ended, its waiting included; by default time for two full attempts.
            waits_for_worker: Whether it waits in the queue for a worker, within its time. By default its result is
                `busy` once the tool's module has had no worker for `unserved_seconds`.
            waits_for_approval: Seconds to wait for people, if the call needs an approval, and then for its end: its
                time begins with their decision. By default the result is `approval_required`, with the id in
                `audit.call_id`, while the call waits in the fleet.
            on_progress: A function, async or plain, that gets each `Progress` that the tool reports, in order. Its
                exceptions are logged, and the result comes all the same.
            on_input: An async function that answers the questions of the tool's module, within the call's time: it gets
                a `PendingInput`, and returns one object for each key of its requests. If it raises, or returns `None`,
                the call is cancelled.

        Returns:
            The call's one result; `success` says whether the tool has done its work.

        Raises:
            ValueError: The timeout is not a number.

        """
        around = parts.Circumstances(context) if context is not None else parts.NOTHING_MORE
        call = call if on_input is None else call.model_copy(update={"takes_input": True})
        asked = call, caller, conversation, timeout
        until_end = on_progress is None and on_input is None
        follow = await self._sessions.begin(
            *asked, waits=True, waits_for_worker=waits_for_worker, around=around, until_end=until_end
        )
        if not isinstance(follow, ToolResult) and follow.may_wait:
            follow = await parts.decided(follow, waits_for_approval)
        if isinstance(follow, ToolResult):
            result = follow
        elif until_end:
            result = await parts.end_of(follow)
        else:
            async with parts.listening(parts.handle_of(follow), on_progress, on_input):
                result = await parts.end_of(follow)
        return parts.as_spoken(result, call.spoken) if call.spoken.format else result

    async def call_around(
        self,
        call: ToolCall,
        caller: Caller,
        around: "Circumstances",
        *,
        conversation: Conversation | None = None,
        timeout: float | None = None,
    ) -> ToolResult:
        """Make a call as `call` does, with more circumstances than a context: `TagRegistry` has terms of its own.

        Args:
            call: The tool and its arguments.
            caller: The user and the rights of the call.
            around: The context, the tag and its terms, and the gate to ask.
            conversation: As of `call`.
            timeout: As of `call`.

        Returns:
            The call's one result.

        Raises:
            ValueError: The timeout is not a number.

        """
        asked = call, caller, conversation, timeout
        follow = await self._sessions.begin(*asked, waits=True, around=around, until_end=True)
        if not isinstance(follow, ToolResult) and follow.may_wait:
            follow = await parts.decided(follow, 0)
        return await parts.end_of(follow)

    async def call_many(
        self,
        calls: Sequence[ToolCall],
        caller: Caller,
        *,
        conversation: Conversation | None = None,
        timeout: float | None = None,
        waits_for_worker: bool = False,
    ) -> list[ToolResult]:
        """Run tools concurrently. If the awaiting task is cancelled, those that have not ended are cancelled.

        Args:
            calls: The tools and their arguments.
            caller: The user and the rights that they are made with.
            conversation: As of `call`, for all of them.
            timeout: As of `call`, for each of them.
            waits_for_worker: As of `call`, for each of them.

        Returns:
            The results, in the order of `calls`.

        Raises:
            ValueError: The timeout is not a number.

        """
        run = functools.partial(
            self.call, caller=caller, conversation=conversation, timeout=timeout, waits_for_worker=waits_for_worker
        )
        running = [asyncio.ensure_future(run(call)) for call in calls]
        try:
            return await asyncio.gather(*running)
        except BaseException:  # `gather` leaves the others alone when one of them raises
            await end(running)
            raise

    async def submit(
        self,
        call: ToolCall,
        caller: Caller,
        *,
        conversation: Conversation | None = None,
        context: "ToolContext | None" = None,
        timeout: float | None = None,
        waits_for_worker: bool = False,
        waits_for_turn: bool = False,
    ) -> "CallHandle":
        """Publish a call and return its handle, without waiting for its end. A refused call's handle has its result already.

        With an idempotency key that this user has used before, the handle is one on that call, with its id; cancelling
        it does not cancel the call for its first caller.

        Args:
            call: The tool and its arguments.
            caller: The user and the rights that the call is made with.
            conversation: As of `call`.
            context: As of `call`.
            timeout: As of `call`: seconds until the call has ended.
            waits_for_worker: As of `call`. By default this returns once a worker serves the tool's module, or the call
                is `busy`.
            waits_for_turn: Whether a call beyond `calls_per_caller` waits for its turn; this returns when it is
                published. By default its result is `busy`.

        Returns:
            The handle, from which the call's state, progress and result are read.

        Raises:
            ValueError: The timeout is not a number.

        """
        around = parts.Circumstances(context) if context is not None else parts.NOTHING_MORE
        asked = call, caller, conversation, timeout
        follow = await self._sessions.begin(
            *asked, waits=waits_for_turn, waits_for_worker=waits_for_worker, around=around
        )
        return parts.handle_of(follow, call.spoken)


class SyncToolFleet(SyncFace[ToolFleet]):
    """`ToolFleet` with plain methods: `with ToolFleet.sync() as fleet: fleet.call(call, caller)`.

    It has the methods of `ToolFleet`, which document them: each waits for the result. It is safe from many threads, and
    in processes that are forked while it is open; a handle stays with its process.
    """

    def __init__(self, fleet: ToolFleet) -> None:
        super().__init__(fleet, LoopRunner())

    @cached_property
    def jobs(self) -> "SyncFleetJobs":
        """Jobs; see `ToolFleet.jobs`."""
        return parts.SyncFleetJobs(self._face.jobs, self._runner)

    @cached_property
    def programs(self) -> "SyncFleetPrograms":
        """Programs; see `ToolFleet.programs`."""
        return parts.SyncFleetPrograms(self._face.programs, self._runner)

    @cached_property
    def approvals(self) -> "SyncFleetApprovals":
        """Calls that wait for people; see `ToolFleet.approvals`."""
        return parts.SyncFleetApprovals(self._face.approvals, self._runner)

    @cached_property
    def dead_letters(self) -> "SyncFleetDeadLetters":
        """Calls without a known end; see `ToolFleet.dead_letters`."""
        return parts.SyncFleetDeadLetters(self._face.dead_letters, self._runner)

    @cached_property
    def wakeups(self) -> "SyncFleetWakeups":
        """Wake-ups of conversations; see `ToolFleet.wakeups`."""
        return parts.SyncFleetWakeups(self._face.wakeups, self._runner)

    @cached_property
    def modules(self) -> "SyncFleetModules":
        """The modules; see `ToolFleet.modules`."""
        return parts.SyncFleetModules(self._face.modules, self._runner)

    @cached_property
    def queues(self) -> "SyncFleetQueues":
        """The queues; see `ToolFleet.queues`."""
        return parts.SyncFleetQueues(self._face.queues, self._runner)

    @cached_property
    def canvas(self) -> "SyncFleetCanvas":
        """Signatures for Celery's canvas; see `ToolFleet.canvas`."""
        return parts.SyncFleetCanvas(self._face.canvas, self._runner)

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def open(self) -> Self:
        """Open the fleet without `with`, in a shell or where a framework starts. `close` it at the end.

        Returns:
            The fleet itself.

        Raises:
            FleetUnavailable: Redis does not answer.
            SettingsError: The settings cannot be applied here.

        """
        if not self._runner.is_started:
            self._runner.start()
            try:
                self._runner.wait(self._face.open())
            except BaseException:
                self._runner.stop()
                raise
        return self

    def close(self) -> None:
        """Close what `open` has opened. Calls that are under way end with a result that says so; a closed fleet stays closed."""
        if self._runner.is_started:
            try:
                self._runner.wait(self._face.close())
            finally:
                self._runner.stop()

    tools = blocking(ToolFleet.tools)
    search = blocking(ToolFleet.search)
    tools_to_openai_format = staticmethod(ToolFleet.tools_to_openai_format)
    remaining = blocking(ToolFleet.remaining)
    call = blocking_with_progress(ToolFleet.call)
    call_many = blocking(ToolFleet.call_many)

    def submit(
        self,
        call: ToolCall,
        caller: Caller,
        *,
        conversation: Conversation | None = None,
        context: "ToolContext | None" = None,
        timeout: float | None = None,
        waits_for_worker: bool = False,
        waits_for_turn: bool = False,
    ) -> "SyncCallHandle":
        """Implements `ToolFleet.submit`."""
        submit = functools.partial(self._face.submit, conversation=conversation, context=context, timeout=timeout)
        work = submit(call, caller, waits_for_worker=waits_for_worker, waits_for_turn=waits_for_turn)
        return parts.SyncCallHandle(self._runner.wait(work), self._runner)
