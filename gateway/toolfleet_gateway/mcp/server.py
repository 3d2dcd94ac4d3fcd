"""Builds the protocol's server of a process out of the official SDK and all methods, for HTTP and for standard streams."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final, Self

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.inbound import X_MCP_HEADER_KEY, decode_header_value
from redis.asyncio import Redis

from toolfleet_gateway.auth.identity import Identity
from toolfleet_gateway.events import EventFeed
from toolfleet_gateway.http.streams import End
from toolfleet_gateway.mcp.calls import AbandonedCalls, RepeatWindow, ToolCalls
from toolfleet_gateway.mcp.client_request import LogLevels, ViewOf
from toolfleet_gateway.mcp.module_methods import ModuleMethods
from toolfleet_gateway.mcp.results import EXTENSION, ClientApprovals
from toolfleet_gateway.mcp.subscriptions import Place, ResourceWatching, ServerFeed, Subscriptions
from toolfleet_gateway.mcp.tasks import (
    InputRounds,
    PartialAnswers,
    SealedStates,
    TaskIdParams,
    TaskMethods,
    TaskUpdateParams,
)
from toolfleet_gateway.mcp.tools import FollowedCalls, McpListing, MetaTools, ToolMethods
from toolfleet_gateway.mcp.view import McpView
from toolfleet_registry.functions.passed_methods import APPS
from toolfleet_registry.redis.keys import GatewayKeys
from toolfleet_registry.settings import Settings
from toolfleet_registry.watching import ServerChanges, WatchedResources
from toolfleet_tasks.aio import Closing
from toolfleet_tasks.client.fleet import ToolFleet

_NAME: Final = b"mcp-name"
_MOST_KNOWN = 20_000  # tools
_called: ContextVar[Mapping[str, Any] | None] = ContextVar("toolfleet_mcp_called_schema", default=None)

SERVER_INFO: Final = {"name": "toolfleet", "version": version("toolfleet"), "title": "Toolfleet"}
"""The facts about the server in each result."""

_INSTRUCTIONS = (
    "Tools of a fleet. A failed call says whether its effect has happened (effect_state) and whether it may be repeated "
    "(retryable): do not repeat one that may have happened and is not retryable."
)

_REDIS_SECONDS = 2.0
_LAST_SECONDS = 2.0  # for the cancellation of unwanted calls


class HeaderArguments:
    """The known schemas of one gateway's tools."""

    def __init__(self, fleet: ToolFleet) -> None:
        self._fleet = fleet
        self._known: dict[str, tuple[Mapping[str, Any], bool]] = {}

    async def are_in(self, view: McpView, shown: str) -> bool:
        """Return whether a tool has such arguments. From memory."""
        schema = await self._schema(view, shown)
        if schema is None:
            return False
        name = view.meant(shown, []) or ""
        known = self._known.get(name)
        if known is None or known[0] is not schema:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            known = self._known[name] = (schema, X_MCP_HEADER_KEY in str(schema))
        return known[1]

    async def remember(self, view: McpView, headers: list[tuple[bytes, bytes]]) -> None:
        """Have the SDK find the schema of the tool that a request names, in this task: it would list all tools else."""
        name = next((value.decode("latin-1") for key, value in headers if key == _NAME), "")
        _called.set(await self._schema(view, decode_header_value(name) or ""))

    async def _schema(self, view: McpView, shown: str) -> Mapping[str, Any] | None:
        name = view.meant(shown, [])
        tool = None if name is None else await self._fleet.begun_calls.tool(name, view.who.caller)
        return None if tool is None else tool.input_schema


def _called_schema(_: str) -> Mapping[str, Any] | None:
    """Return the schema of the tool that this task's request calls, as the SDK asks for it."""
    return _called.get()


def _build_server(tools: ToolMethods, tasks: TaskMethods, subscriptions: Subscriptions | None) -> Server[Any]:
    """Return the server; without `subscriptions` it announces no changes."""
    server: Server[Any] = Server(
        SERVER_INFO["name"],
        version=SERVER_INFO["version"],
        title=SERVER_INFO["title"],
        instructions=_INSTRUCTIONS,
        get_tool_input_schema=_called_schema,
    )
    server.add_request_handler("tools/list", types.PaginatedRequestParams, tools.list)
    server.add_request_handler("tools/call", types.CallToolRequestParams, tools.call)
    if subscriptions is not None:
        server.add_request_handler("subscriptions/listen", types.SubscriptionsListenRequestParams, subscriptions.listen)
    server.extensions.update({EXTENSION: {}, APPS: {}})
    server.add_request_handler("tasks/get", TaskIdParams, tasks.get)
    server.add_request_handler("tasks/update", TaskUpdateParams, tasks.update)
    server.add_request_handler("tasks/cancel", TaskIdParams, tasks.cancel)
    return server


@dataclass(frozen=True, slots=True)
class McpMethods:
    """The methods of the MCP server. `abandoned` is closed at the end."""

    tools: ToolMethods
    tasks: TaskMethods
    modules: ModuleMethods
    abandoned: AbandonedCalls
    watching: ResourceWatching
    subscriptions: Subscriptions
    log_levels: LogLevels

    @classmethod
    def of(
        cls, fleet: ToolFleet, settings: Settings, redis: Redis, closing: Closing, place: Place, view_of: ViewOf
    ) -> Self:
        """Return the methods of one process. `view_of` says what the client of a request sees, and `place` holds its streams."""
        keys = GatewayKeys(settings.keys)
        abandoned = AbandonedCalls(fleet, redis, keys, closing)
        window = RepeatWindow(fleet, redis, keys, seconds=settings.mcp_repeat_window_seconds)
        approvals = ClientApprovals(fleet)
        rounds = InputRounds(fleet, SealedStates(redis, keys, settings.signing_keys), approvals)
        calls = ToolCalls(fleet, settings, abandoned, window, rounds, approvals)
        previews = settings.artifact_store is not None
        listing, followed = McpListing(fleet, previews=previews), FollowedCalls(fleet, approvals)
        log_levels = LogLevels()
        tools = ToolMethods(calls, listing, MetaTools(fleet, previews=previews), followed, log_levels, view_of)
        tasks = TaskMethods(fleet, view_of, PartialAnswers(redis, keys), approvals)
        modules = ModuleMethods(fleet, view_of, has_artifacts=previews)
        watching = ResourceWatching(modules, WatchedResources(redis, keys))
        feeds = EventFeed(fleet), ServerFeed(ServerChanges(redis, keys))
        guest_modules = settings.default_guest_modules
        subscriptions = Subscriptions(*feeds, place, view_of, watching, tasks, guest_modules=guest_modules)
        return cls(tools, tasks, modules, abandoned, watching, subscriptions, log_levels)

    def server(self, kinds: frozenset[str]) -> Server[Any]:
        """Return a server of tools, and of the other methods that modules of these `kinds` have."""
        server = _build_server(self.tools, self.tasks, self.subscriptions)
        server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, self.log_levels.set)
        self.modules.add_to(server, kinds)
        return server


async def serve_stdio(settings: Settings, view: McpView) -> None:
    """Serve until the client closes its end. Raises as `ToolFleet` does when it is entered."""
    async with (
        ToolFleet(settings=settings) as fleet,
        settings.redis_client(timeout_seconds=_REDIS_SECONDS) as redis,
    ):
        methods = McpMethods.of(fleet, settings, redis, Closing(), _place, lambda _: view)
        server = methods.server(await methods.modules.kinds(view))
        async with stdio_server() as (reads, writes):
            await server.run(reads, writes, server.create_initialization_options(extensions={}))
        await methods.abandoned.settle(_LAST_SECONDS)


@asynccontextmanager
async def _place(_: Identity) -> AsyncGenerator["asyncio.Future[End]"]:
    """Return a place without a limit for a stream of changes, which lasts as long as the process."""
    yield asyncio.get_running_loop().create_future()
