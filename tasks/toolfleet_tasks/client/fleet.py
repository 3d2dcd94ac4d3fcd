"""`ToolFleet`: what an agent holds. Judges a call, publishes it, and brings its result."""

import asyncio
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from toolfleet_registry.contracts import Caller, Conversation, ModuleStatus, ToolCall, ToolDefinition, ToolResult
from toolfleet_registry.contracts.dead_letters import DeadLetter
from toolfleet_registry.errors import FleetUnavailable, SettingsError
from toolfleet_registry.formats import Converted, as_spoken, tools_to_openai_format
from toolfleet_registry.policy.limits import Remaining
from toolfleet_registry.policy.reach import as_sent
from toolfleet_registry.redis.urls import check_redis_url
from toolfleet_registry.settings import Settings, load_settings
from toolfleet_registry.tags.tags import ToolContext
from toolfleet_tasks.aio.cancellation import end
from toolfleet_tasks.calls.audit_trail import refused_without_redis
from toolfleet_tasks.calls.eval_gate import NOTHING_MORE, Circumstances, EvalGate
from toolfleet_tasks.calls.handle import CallHandle, Follow
from toolfleet_tasks.calls.idempotency import Joined, handle_of
from toolfleet_tasks.client.loop_runner import SyncToolFleet
from toolfleet_tasks.client.namespaces.canvas import CanvasMethods
from toolfleet_tasks.client.namespaces.dead_letters import LetterMethods
from toolfleet_tasks.client.namespaces.jobs import JobMethods
from toolfleet_tasks.client.namespaces.modules import RegistryMethods
from toolfleet_tasks.client.namespaces.wakeups import WakeMethods
from toolfleet_tasks.client.progress_listener import OnProgress, telling
from toolfleet_tasks.client.replay import replay_of, run_replay
from toolfleet_tasks.client.sessions import Sessions
from toolfleet_tasks.messages import fleet_results


class ToolFleet(JobMethods, LetterMethods, WakeMethods, CanvasMethods, RegistryMethods):
    """The fleet, for asyncio agents: `async with ToolFleet() as fleet: await fleet.call(call, caller)`.

    `url` is the Redis URL; without it that of `settings`, of the environment, of `toolfleet.toml` or of a running
    `toolfleet up` in this folder or above. `gate` is asked before each call of a tool that requires it. Entering it raises `SettingsError` if there is none and
    `FleetUnavailable` if Redis does not answer. Once entered it works on any event loop of the process, and of processes
    forked from it: each opens connections of its own with its first call. Leaving it closes them all.
    """

    def __init__(
        self, url: str | None = None, settings: Settings | None = None, *, gate: EvalGate | None = None
    ) -> None:
        settings = settings or load_settings()
        if url is not None:
            settings = settings.model_copy(update={"redis_url": _checked(url)})
        if settings.redis_url is None:
            raise SettingsError(
                "No fleet to talk to: set TOOLFLEET_REDIS_URL, or run `toolfleet up` here or in a folder above."
            )
        self._settings = settings
        self._sessions = Sessions(settings, gate)

    @classmethod
    def sync(
        cls, url: str | None = None, settings: Settings | None = None, *, gate: EvalGate | None = None
    ) -> SyncToolFleet:
        """The same for programs without an event loop: `with ToolFleet.sync() as fleet: fleet.call(call, caller)`."""
        return SyncToolFleet(lambda: cls(url, settings, gate=gate))

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def open(self) -> Self:
        """Open the fleet without `async with`, in a notebook or where a framework starts. Raises what entering it does.

        `close` it at the end: as often as it was opened and entered.
        """
        await self._sessions.enter()
        return self

    async def close(self) -> None:
        """Close what `open` has opened. Calls that are under way end with a result that says so; a closed fleet stays closed."""
        await self._sessions.leave()
        self._leave_canvas()

    async def tools(self, caller: Caller) -> list[ToolDefinition]:
        """The tools that `caller` may use, sorted by name. From memory: costs no round trip."""
        return (await self._sessions.opened()).tools(caller)

    async def search(
        self, text: str, caller: Caller, *, tags: Sequence[str] = (), limit: int = 20
    ) -> list[ToolDefinition]:
        """At most `limit` of the tools that `caller` may use: those with a word of `text` and all `tags`, the best first.

        A word may be the beginning of one. With an empty `text` those with the tags, by name. From memory, in a thread.
        """
        return await (await self._sessions.opened()).search(text, caller, tags=tags, limit=limit)

    @staticmethod
    def tools_to_openai_format(tools: Iterable[ToolDefinition]) -> Converted:
        """Tools as OpenAI's Chat Completions take them."""
        return tools_to_openai_format(tools)

    async def statuses(self) -> dict[str, ModuleStatus]:
        """What is known of every module, without asking any."""
        return await (await self._sessions.opened()).statuses()

    async def refresh(self) -> dict[str, ModuleStatus]:
        """Ask every module now for what it offers."""
        return await (await self._sessions.opened()).refresh()

    async def remaining(self, caller: Caller) -> Remaining:
        """What the caller's user has left today of each cost class with a budget, and of each limited tool.

        All callers without a user id are one user. Raises `FleetUnavailable` when Redis does not answer within 5 s.
        """
        return await (await self._sessions.opened()).remaining(caller)

    async def call(  # noqa: PLR0913 - what an agent may say of a call
        self,
        call: ToolCall,
        caller: Caller,
        *,
        conversation: Conversation | None = None,
        context: ToolContext | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the call's deadline: travels to the worker and the module
        waits_for_worker: bool = False,
        on_progress: OnProgress | None = None,
    ) -> ToolResult:
        """Run a tool and bring its result, by `timeout` seconds at the latest. Never raises for what happens to the call.

        Where Redis is silent at that moment, up to two seconds later: it is asked whether the call had begun.

        While its caller has as many calls under way as `calls_per_caller` allows, it waits for its turn, within its time.
        With an idempotency key that this user has used before it brings that call's result, or waits for it. `context` is
        for the gate, and for functions of the fleet's own that take it: beside the arguments, where no model writes.
        `on_progress`, async or plain, gets each `Progress` that the tool reports, in order; whatever it raises
        is logged, and the result comes all the same.

        Where no worker serves the tool's module it waits for one, and is `busy` once there has been none for
        `unserved_seconds`; one that `waits_for_worker` waits in the queue, within its time.

        If the awaiting task is cancelled, the call is taken back; one that waits for another's result only waits no more.
        """
        around = Circumstances(context) if context is not None else NOTHING_MORE
        asked = call, caller, conversation, timeout
        follow = await self._begin(*asked, waits=True, waits_for_worker=waits_for_worker, around=around)
        if on_progress is None or isinstance(follow, ToolResult):
            return as_spoken(await _ended(follow), call.spoken)
        async with telling(handle_of(follow).progress(), on_progress):
            return as_spoken(await _ended(follow), call.spoken)

    async def call_around(
        self,
        call: ToolCall,
        caller: Caller,
        around: Circumstances,
        *,
        conversation: Conversation | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as in `call`
    ) -> ToolResult:
        """As `call`, with more around it than a context: `TagRegistry` has terms of its own."""
        return await _ended(await self._begin(call, caller, conversation, timeout, waits=True, around=around))

    async def call_many(
        self,
        calls: Sequence[ToolCall],
        caller: Caller,
        *,
        conversation: Conversation | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as in `call`
        waits_for_worker: bool = False,
    ) -> list[ToolResult]:
        """Run tools side by side; the results come in the order of `calls`.

        If the awaiting task is cancelled, those that have not ended are taken back.
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
        context: ToolContext | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as in `call`
        waits_for_worker: bool = False,
    ) -> CallHandle:
        """Publish a call and return at once with a handle on it. A refused call's handle has its result already.

        Where no worker serves the tool's module it returns once one has come, or the call is `busy`, as in `call`.
        Beyond `calls_per_caller` it does not wait: its result is `busy`. With an idempotency key that this user has used
        before the handle is one on that call, with its id; cancelling it leaves the call to whoever made it first.
        """
        around = Circumstances(context) if context is not None else NOTHING_MORE
        asked = call, caller, conversation, timeout
        follow = await self._begin(*asked, waits=False, waits_for_worker=waits_for_worker, around=around)
        if not isinstance(follow, ToolResult):
            return handle_of(follow, call.spoken)
        ending: asyncio.Future[ToolResult] = asyncio.get_running_loop().create_future()
        ending.set_result(follow)
        return CallHandle(follow.audit.call_id, follow.tool_name, ending, spoken=call.spoken)

    async def replay(
        self,
        call_id: str,
        caller: Caller | None = None,
        *,
        arguments: Mapping[str, Any] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as in `call`
    ) -> ToolResult:
        """Run a dead letter's call once more, as a new call that names it, judged anew; by default for its old caller.

        `arguments` replace the letter's, each as a whole; those that it does not have any more must be among them. The
        letter is dropped when the replay succeeds, or is a dead letter itself; only one replay of it runs at a time.
        Raises `NoSuchDeadLetter`.
        """
        _check_seconds(timeout)
        session = await self._sessions.opened()
        letter = await session.dead.show(call_id)
        old = letter.caller if isinstance(letter, DeadLetter) else Caller()
        asked_by = caller or as_sent(old, self._settings.default_guest_modules)

        def ended(result: ToolResult) -> ToolResult:
            if result.audit.call_id:  # the new call's own
                return result
            return session.trail.refused(ToolCall(tool_name=result.tool_name), asked_by, result, {})

        again = replay_of(letter, arguments or {}, asked_by)
        if isinstance(again, ToolResult):
            return ended(again)
        seconds = session.drafts.seconds_for(again.call, again.caller, again.conversation, timeout)

        async def run() -> ToolResult:
            asked = again.call, again.caller, again.conversation
            around = again.around
            return await _ended(await session.begin(*asked, seconds, waits=True, replay_of=call_id, around=around))

        return ended(await run_replay(session.dead, call_id, seconds=seconds, run=run))

    async def _begin(  # noqa: PLR0913 - what an agent may say of a call
        self,
        call: ToolCall,
        caller: Caller,
        conversation: Conversation | None,
        seconds: float | None,
        *,
        waits: bool,
        waits_for_worker: bool = False,
        around: Circumstances = NOTHING_MORE,
    ) -> Follow | Joined | ToolResult:
        _check_seconds(seconds)
        session = self._sessions.here()
        if session is None:  # the loop's first call
            clock = asyncio.get_running_loop().time
            began_at = clock()
            try:
                async with asyncio.timeout(seconds):
                    session = await self._sessions.opened()
            except (FleetUnavailable, TimeoutError) as exc:
                reason = str(exc) or "Redis does not answer"
                result = fleet_results.fleet_unavailable(call.tool_name, reason)
                return refused_without_redis(self._settings, call, caller, result)
            seconds = None if seconds is None else seconds - (clock() - began_at)
        asked = call, caller, conversation, seconds
        return await session.begin(*asked, waits=waits, waits_for_worker=waits_for_worker, around=around)


async def _ended(follow: Follow | Joined | ToolResult) -> ToolResult:
    """The call's result; if whoever waits for it is cancelled, the call is taken back."""
    if isinstance(follow, ToolResult):
        return follow
    try:
        return await follow.ending
    except asyncio.CancelledError:
        follow.give_up()
        raise


def _check_seconds(seconds: float | None) -> None:
    if seconds is not None and math.isnan(seconds):
        raise ValueError("timeout must be a number of seconds, not nan")


def _checked(url: str) -> str:
    try:
        return check_redis_url(url)
    except ValueError as exc:
        raise SettingsError(f"The Redis URL {exc}.") from exc
