"""Puts together what answers MCP clients, over HTTP or over the streams of a program."""

from dataclasses import dataclass
from typing import Any, Self

import mcp_types as types
from mcp.server.lowlevel import Server
from redis.asyncio import Redis

from toolfleet_gateway.events import EventFeed
from toolfleet_gateway.mcp.calls.abandoned_calls import AbandonedCalls
from toolfleet_gateway.mcp.calls.followed_calls import FollowedCalls
from toolfleet_gateway.mcp.calls.input_rounds import InputRounds
from toolfleet_gateway.mcp.calls.partial_answers import PartialAnswers
from toolfleet_gateway.mcp.calls.repeat_window import RepeatWindow
from toolfleet_gateway.mcp.calls.sealed_state import SealedStates
from toolfleet_gateway.mcp.calls.tool_calls import ToolCalls
from toolfleet_gateway.mcp.changes.resource_watching import ResourceWatching
from toolfleet_gateway.mcp.changes.server_feed import ServerFeed
from toolfleet_gateway.mcp.client_approvals import ClientApprovals
from toolfleet_gateway.mcp.client_request import ViewOf
from toolfleet_gateway.mcp.listing import McpListing
from toolfleet_gateway.mcp.log_levels import LogLevels
from toolfleet_gateway.mcp.meta_tools import MetaTools
from toolfleet_gateway.mcp.module_methods import ModuleMethods
from toolfleet_gateway.mcp.server import build_server
from toolfleet_gateway.mcp.subscriptions import Place, Subscriptions
from toolfleet_gateway.mcp.task_methods import TaskMethods
from toolfleet_gateway.mcp.tool_methods import ToolMethods
from toolfleet_registry.redis.keys import GatewayKeys
from toolfleet_registry.settings import Settings
from toolfleet_registry.watching import ServerChanges, WatchedResources
from toolfleet_tasks.aio.closing import Closing
from toolfleet_tasks.client.fleet import ToolFleet


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
        """The methods of one process. `view_of` says what the client of a request sees, and `place` holds its streams."""
        keys = GatewayKeys(settings.keys)
        abandoned = AbandonedCalls(fleet, redis, keys, settings, closing)
        window = RepeatWindow(fleet, redis, keys, seconds=settings.mcp_repeat_window_seconds)
        approvals = ClientApprovals(fleet)
        rounds = InputRounds(fleet, SealedStates(redis, keys, settings.signing_keys), approvals)
        calls = ToolCalls(fleet, settings, abandoned, window, rounds, approvals)
        listing, followed = McpListing(fleet, settings), FollowedCalls(fleet, settings, approvals)
        log_levels = LogLevels()
        tools = ToolMethods(calls, listing, MetaTools(fleet), followed, log_levels, view_of)
        tasks = TaskMethods(fleet, settings, view_of, PartialAnswers(redis, keys), approvals)
        modules = ModuleMethods(fleet, view_of)
        watching = ResourceWatching(modules, WatchedResources(redis, keys))
        feeds = EventFeed(fleet), ServerFeed(ServerChanges(redis, keys))
        guest_modules = settings.default_guest_modules
        subscriptions = Subscriptions(*feeds, place, view_of, watching, tasks, guest_modules=guest_modules)
        return cls(tools, tasks, modules, abandoned, watching, subscriptions, log_levels)

    def server(self, kinds: frozenset[str]) -> Server[Any]:
        """A server of tools, and of what else a module of these `kinds` has."""
        server = build_server(self.tools, self.tasks, self.subscriptions)
        server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, self.log_levels.set)
        self.modules.add_to(server, kinds)
        return server
