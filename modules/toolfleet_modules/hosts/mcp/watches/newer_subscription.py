"""Watches a server's resources and lists by `subscriptions/listen`: another stream for each set of resources."""

import asyncio

import mcp_types as types
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost, listen
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import PromptsListChanged, ResourcesListChanged, ResourceUpdated, ServerEvent

from toolfleet_modules.hosts.mcp.mcp_session import McpSession
from toolfleet_modules.hosts.mcp.watches.subscription import OnChange, Refusals
from toolfleet_registry.functions.server_change import ServerChange
from toolfleet_registry.time import machine_clock

_SECONDS = 10.0  # for a server to begin a stream
_PAUSE_SECONDS = 2.0  # until a stream that ended is asked for again

Begun = asyncio.Future[types.SubscriptionFilter]


class NewerSubscription:
    """Of one session. `on_change` is told of all that may have changed where a stream has ended."""

    def __init__(self, connection: McpSession, on_change: OnChange) -> None:
        self._connection = connection
        self._on_change = on_change
        self._uris: frozenset[str] | None = None
        self._refused: Refusals = {}
        self._stream: asyncio.Task[None] | None = None
        self._not_before = 0.0

    async def become(self, uris: frozenset[str], again: frozenset[str]) -> Refusals:
        """As `ServerSubscription` says. The new stream begins before the old one ends: nothing is missed between."""
        is_gone = self._stream is None or self._stream.done()
        if self._uris == uris and not again & self._refused.keys() and not is_gone:
            return self._refused
        if is_gone and not again and machine_clock.monotonic() < self._not_before:
            return self._refused
        was_lost = is_gone and self._stream is not None
        before, begun = self._stream, asyncio.get_running_loop().create_future()
        self._stream = asyncio.create_task(self._listen(uris, begun), name="toolfleet-mcp-watch")
        self._not_before = machine_clock.monotonic() + _PAUSE_SECONDS
        self._uris = uris
        try:
            async with asyncio.timeout(_SECONDS):
                honored = set((await begun).resource_subscriptions or ())
            refusal = MCPError(types.INVALID_PARAMS, "The server does not let this resource be watched.")
            self._refused = dict.fromkeys(uris - honored, refusal)
        except (MCPError, TimeoutError) as exc:
            await _ended(self._stream)
            refusal = MCPError(types.REQUEST_TIMEOUT, "The server did not answer.")
            self._refused = dict.fromkeys(uris, exc if isinstance(exc, MCPError) else refusal)
        if before is not None:
            await _ended(before)
        if was_lost:
            self._tell_all(uris)
        return self._refused

    async def end(self) -> None:
        """Hear of nothing more."""
        if self._stream is not None:
            await _ended(self._stream)

    def _tell_all(self, uris: frozenset[str]) -> None:
        for change in (ServerChange("prompts"), ServerChange("resources")):
            self._on_change(change)
        for uri in uris:
            self._on_change(ServerChange("resource", uri))

    async def _listen(self, uris: frozenset[str], begun: Begun) -> None:
        has = self._connection.capabilities
        try:
            async with listen(
                self._connection.session,
                prompts_list_changed=has.prompts is not None,
                resources_list_changed=has.resources is not None,
                resource_subscriptions=sorted(uris),
            ) as stream:
                if not begun.done():
                    begun.set_result(stream.honored)
                async for event in stream:
                    self._hear(event)
        except (MCPError, SubscriptionLost, TimeoutError, RuntimeError, ListenNotSupportedError) as exc:
            if not begun.done():
                why = (
                    exc if isinstance(exc, MCPError) else MCPError(types.INTERNAL_ERROR, "The server tells of nothing.")
                )
                begun.set_exception(why)
        finally:
            begun.cancel()

    def _hear(self, event: ServerEvent) -> None:
        match event:
            case PromptsListChanged():
                self._on_change(ServerChange("prompts"))
            case ResourcesListChanged():
                self._on_change(ServerChange("resources"))
            case ResourceUpdated():
                self._on_change(ServerChange("resource", str(event.uri)))
            case _:
                pass


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
