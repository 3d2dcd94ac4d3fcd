"""`ToolFleet`: what an agent holds. Judges a call, publishes it, and brings its result."""

import asyncio
import math
from collections.abc import Iterable, Sequence
from typing import Any, Self

from toolfleet_registry.contracts import Caller, Conversation, ModuleStatus, ToolCall, ToolDefinition, ToolResult
from toolfleet_registry.errors import FleetUnavailable, SettingsError
from toolfleet_registry.formats import tools_to_openai_format
from toolfleet_registry.settings import Settings, load_settings
from toolfleet_registry.urls import check_redis_url
from toolfleet_tasks import endings
from toolfleet_tasks.handle import CallHandle, Follow, audited
from toolfleet_tasks.logs import log_to_stdlib
from toolfleet_tasks.loops import Sessions
from toolfleet_tasks.session import new_call_id
from toolfleet_tasks.sync import SyncToolFleet


class ToolFleet:
    """The fleet, for asyncio agents: `async with ToolFleet() as fleet: await fleet.call(call, caller)`.

    `url` is the Redis URL; without it that of `settings`, of the environment, of `toolfleet.toml` or of a running
    `toolfleet up` in this folder or above. Entering it raises `SettingsError` if there is none and
    `FleetUnavailable` if Redis does not answer. Once entered it works on any event loop of the process, and of processes
    forked from it: each opens connections of its own with its first call. Leaving it closes them all.
    """

    def __init__(self, url: str | None = None, settings: Settings | None = None) -> None:
        log_to_stdlib()
        settings = settings or load_settings()
        if url is not None:
            settings = settings.model_copy(update={"redis_url": _checked(url)})
        if settings.redis_url is None:
            raise SettingsError(
                "No fleet to talk to: set TOOLFLEET_REDIS_URL, or run `toolfleet up` here or in a folder above."
            )
        self._sessions = Sessions(settings)

    @classmethod
    def sync(cls, url: str | None = None, settings: Settings | None = None) -> SyncToolFleet:
        """The same for programs without an event loop: `with ToolFleet.sync() as fleet: fleet.call(call, caller)`."""
        return SyncToolFleet(lambda: cls(url, settings))

    async def __aenter__(self) -> Self:
        await self._sessions.enter()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._sessions.leave()

    async def tools(self, caller: Caller) -> list[ToolDefinition]:
        """The tools that `caller` may use, sorted by name. From memory: costs no round trip."""
        return (await self._sessions.opened()).tools(caller)

    @staticmethod
    def tools_to_openai_format(tools: Iterable[ToolDefinition]) -> list[dict[str, Any]]:
        """Tools as OpenAI's Chat Completions take them."""
        return tools_to_openai_format(tools)

    async def statuses(self) -> dict[str, ModuleStatus]:
        """What is known of every module, without asking any."""
        return (await self._sessions.opened()).statuses()

    async def refresh(self) -> dict[str, ModuleStatus]:
        """Ask every module now for what it offers."""
        return await (await self._sessions.opened()).refresh()

    async def call(
        self,
        call: ToolCall,
        caller: Caller,
        *,
        conversation: Conversation | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the call's deadline: travels to the worker and the module
    ) -> ToolResult:
        """Run a tool and bring its result, by `timeout` seconds at the latest. Never raises for what happens to the call.

        Where Redis is silent at that moment, up to two seconds later: it is asked whether the call had begun.

        If the awaiting task is cancelled, the call is taken back.
        """
        follow = await self._begin(call, caller, conversation, timeout)
        if isinstance(follow, ToolResult):
            return follow
        try:
            return await follow.ending
        except asyncio.CancelledError:
            follow.give_up()
            raise

    async def call_many(
        self,
        calls: Sequence[ToolCall],
        caller: Caller,
        *,
        conversation: Conversation | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as in `call`
    ) -> list[ToolResult]:
        """Run tools side by side; the results come in the order of `calls`."""
        return await asyncio.gather(
            *(self.call(call, caller, conversation=conversation, timeout=timeout) for call in calls)
        )

    async def submit(
        self,
        call: ToolCall,
        caller: Caller,
        *,
        conversation: Conversation | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as in `call`
    ) -> CallHandle:
        """Publish a call and return at once with a handle on it. A refused call's handle has its result already."""
        follow = await self._begin(call, caller, conversation, timeout)
        if isinstance(follow, Follow):
            return CallHandle(follow.call_id, follow.tool_name, follow.ending, follow)
        ending: asyncio.Future[ToolResult] = asyncio.get_running_loop().create_future()
        ending.set_result(follow)
        return CallHandle(follow.audit.call_id if follow.audit else "", follow.tool_name, ending)

    async def _begin(
        self, call: ToolCall, caller: Caller, conversation: Conversation | None, seconds: float | None
    ) -> Follow | ToolResult:
        if seconds is not None and math.isnan(seconds):
            raise ValueError("timeout must be a number of seconds, not nan")
        session = self._sessions.here()
        if session is None:  # the loop's first call
            clock = asyncio.get_running_loop().time
            began_at = clock()
            try:
                async with asyncio.timeout(seconds):
                    session = await self._sessions.opened()
            except (FleetUnavailable, TimeoutError) as exc:
                reason = str(exc) or "Redis does not answer"
                return audited(new_call_id(), endings.not_published(call.tool_name, reason))
            seconds = None if seconds is None else seconds - (clock() - began_at)
        return await session.begin(call, caller, conversation, seconds)


def _checked(url: str) -> str:
    try:
        return check_redis_url(url)
    except ValueError as exc:
        raise SettingsError(f"The Redis URL {exc}.") from exc
