"""Judges an agent's call, publishes it, and brings its result: `ToolFleet`."""

import asyncio
import functools
from collections.abc import Iterable, Sequence
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
    from toolfleet_tasks.client.listeners import OnInput
    from toolfleet_tasks.client.namespaces import SyncCallHandle


def fleet_settings(url: str | None = None, settings: Settings | None = None) -> Settings:
    """Return the settings with a Redis URL: `url`, or their own. Raises `SettingsError` where there is none, or no such one."""
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

    `url` is the Redis URL; without it that of `settings`, of the environment, of `toolfleet.toml` or of a running
    `toolfleet up` in this folder or above. `gate` is asked before each call of a tool that requires it. Entering it
    raises `SettingsError` if there is none and `FleetUnavailable` if Redis does not answer. Once entered it works on
    any event loop of the process, and of processes forked from it: each opens connections of its own with its first
    call. Leaving it closes them all.

    `metrics` has this process count what it does with calls, for Prometheus: on a port, or in a registry of
    `prometheus_client`.

    `is_shared`: many users' calls go through it, as through a gateway, and other requests to Redis have a connection of
    their own.

    Functions other than calls are in its namespaces: `jobs`, `approvals`, `dead_letters`, `wakeups`, `modules`,
    `queues` and `canvas`.
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
        self._metrics = parts.AgentMetrics(settings, metrics)
        self._settings = settings
        self._sessions = parts.Sessions(settings, gate, is_shared=is_shared)
        self._canvas_app = parts.CanvasApp(settings)
        self.jobs = parts.FleetJobs(self._sessions)
        self.approvals = parts.FleetApprovals(self._sessions)
        self.hooks = parts.FleetHooks(self._sessions)
        self.begun_calls = parts.FleetBegunCalls(self._sessions)
        self.dead_letters = parts.FleetDeadLetters(self._sessions)
        self.wakeups = parts.FleetWakeups(self._sessions)
        self.modules = parts.FleetModules(self._sessions)
        self.queues = parts.FleetQueues(self._sessions)
        self.canvas = parts.FleetCanvas(self._sessions, self._canvas_app)

    @classmethod
    def sync(
        cls,
        url: str | None = None,
        settings: Settings | None = None,
        *,
        gate: "EvalGate | None" = None,
        metrics: "int | CollectorRegistry | None" = None,
    ) -> "SyncToolFleet":
        """The same for programs without an event loop: `with ToolFleet.sync() as fleet: fleet.call(call, caller)`."""
        return SyncToolFleet(cls(url, settings, gate=gate, metrics=metrics))

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def open(self) -> Self:
        """Open the fleet without `async with`, in a notebook or where a framework starts. Raises what entering it does.

        `close` it at the end: as often as it was opened and entered.
        """
        await self._sessions.enter()
        try:
            await self._metrics.start()
        except BaseException:
            await self._sessions.leave()
            raise
        return self

    async def close(self) -> None:
        """Close what `open` has opened. Calls that are under way end with a result that says so; a closed fleet stays closed."""
        await self._sessions.leave()
        await self._metrics.close()
        self._canvas_app.close()

    async def tools(self, caller: Caller) -> list[ToolDefinition]:
        """The tools that `caller` may use, sorted by name. From memory: costs no round trip."""
        return (await self._sessions.opened()).tools(caller)

    async def search(
        self, text: str, caller: Caller, *, tags: Sequence[str] = (), limit: int = 20
    ) -> list[ToolDefinition]:
        """Return at most `limit` of the tools that `caller` may use: those with a word of `text` and all `tags`, the best first.

        A word may be the beginning of one. With an empty `text` those with the tags, by name. From memory, in a thread.
        """
        return await (await self._sessions.opened()).search(text, caller, tags=tags, limit=limit)

    @staticmethod
    def tools_to_openai_format(tools: Iterable[ToolDefinition]) -> "Converted":
        """Tools as OpenAI's Chat Completions take them."""
        return parts.tools_to_openai_format(tools)

    async def remaining(self, caller: Caller, *, conversation: Conversation | None = None) -> "Remaining":
        """Return what the caller's user has left today: of each cost class with a budget, of each limited tool, and of the run and thread that `conversation` names.

        All callers without a user id are one user. Raises `FleetUnavailable` when Redis does not answer within 5 s.
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
        """Run a tool and return its result, by `timeout` seconds at the latest.

        Never raises for what happens to the call.

        If Redis is silent at that moment, up to two seconds later: it is asked whether the call was started. While its
        caller has as many calls under way as `calls_per_caller` allows, it waits for its turn, within its time. With an
        idempotency key that this user has used before it returns that call's result, or waits for it. `context` is for
        the gate, and for functions of the fleet's own that take it: separate from the arguments, so that no model
        writes it. `on_progress`, async or plain, gets each `Progress` that the tool reports, in order; its exceptions
        are logged, and the result comes all the same. `on_input` answers the questions of the tool's module, within the
        call's time; if it raises, or returns `None`, the call is cancelled.

        If no worker serves the tool's module it waits for one, and is `busy` once there has been none for
        `unserved_seconds`; one that `waits_for_worker` waits in the queue, within its time.

        A call that needs an approval is `approval_required`, with its id in `audit.call_id`, and waits for it in the
        fleet; one that `waits_for_approval` waits so many seconds for that here, and then for its end: its time begins
        with the decision.

        If the awaiting task is cancelled, the call is cancelled; one that waits for another's result only stops
        waiting.
        """
        around = parts.Circumstances(context) if context is not None else parts.NOTHING_MORE
        call = call if on_input is None else call.model_copy(update={"takes_input": True})
        asked = call, caller, conversation, timeout
        follow = await self._sessions.begin(*asked, waits=True, waits_for_worker=waits_for_worker, around=around)
        follow = await parts.decided(follow, waits_for_approval)
        if (on_progress is None and on_input is None) or isinstance(follow, ToolResult):
            return parts.as_spoken(await parts.end_of(follow), call.spoken)
        async with parts.listening(parts.handle_of(follow), on_progress, on_input):
            return parts.as_spoken(await parts.end_of(follow), call.spoken)

    async def call_around(
        self,
        call: ToolCall,
        caller: Caller,
        around: "Circumstances",
        *,
        conversation: Conversation | None = None,
        timeout: float | None = None,
    ) -> ToolResult:
        """Make a call as `call` does, with more circumstances than a context: `TagRegistry` has terms of its own."""
        follow = await self._sessions.begin(call, caller, conversation, timeout, waits=True, around=around)
        return await parts.end_of(await parts.decided(follow, 0))

    async def call_many(
        self,
        calls: Sequence[ToolCall],
        caller: Caller,
        *,
        conversation: Conversation | None = None,
        timeout: float | None = None,
        waits_for_worker: bool = False,
    ) -> list[ToolResult]:
        """Run tools concurrently; the results come in the order of `calls`.

        If the awaiting task is cancelled, those that have not ended are cancelled.
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
        """Publish a call and return its handle at once. A refused call's handle has its result already.

        If no worker serves the tool's module it returns once one has come, or the call is `busy`, as in `call`. Beyond
        `calls_per_caller` its result is `busy`; one that `waits_for_turn` waits as in `call`, and the handle comes when
        it is published. With an idempotency key that this user has used before the handle is one on that call, with its
        id; cancelling it does not cancel the call for its first caller.
        """
        around = parts.Circumstances(context) if context is not None else parts.NOTHING_MORE
        asked = call, caller, conversation, timeout
        follow = await self._sessions.begin(
            *asked, waits=waits_for_turn, waits_for_worker=waits_for_worker, around=around
        )
        return parts.handle_of(follow, call.spoken)


class SyncToolFleet(SyncFace[ToolFleet]):
    """`ToolFleet` with plain methods: `with ToolFleet.sync() as fleet: fleet.call(call, caller)`.

    Safe from many threads, and in processes that are forked while it is open; a handle stays with its process.
    """

    def __init__(self, fleet: ToolFleet) -> None:
        super().__init__(fleet, runner := LoopRunner())
        self.jobs = parts.SyncFleetJobs(fleet.jobs, runner)
        self.approvals = parts.SyncFleetApprovals(fleet.approvals, runner)
        self.dead_letters = parts.SyncFleetDeadLetters(fleet.dead_letters, runner)
        self.wakeups = parts.SyncFleetWakeups(fleet.wakeups, runner)
        self.modules = parts.SyncFleetModules(fleet.modules, runner)
        self.queues = parts.SyncFleetQueues(fleet.queues, runner)
        self.canvas = parts.SyncFleetCanvas(fleet.canvas, runner)

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def open(self) -> Self:
        """Open the fleet without `with`, in a shell or where a framework starts; `close` it at the end. Raises what `with` does."""
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
