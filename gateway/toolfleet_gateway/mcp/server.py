"""Builds the protocol's server of a gateway out of the official SDK and the methods that the fleet answers."""

from importlib.metadata import version
from typing import Any, Final

import mcp_types as types
from mcp.server.lowlevel import Server

from toolfleet_gateway.mcp.calls.call_tasks import EXTENSION
from toolfleet_gateway.mcp.header_arguments import called_schema
from toolfleet_gateway.mcp.subscriptions import Subscriptions
from toolfleet_gateway.mcp.task_methods import TaskIdParams, TaskMethods, TaskUpdateParams
from toolfleet_gateway.mcp.tool_methods import ToolMethods
from toolfleet_registry.functions.passed_methods import APPS

SERVER_INFO: Final = {"name": "toolfleet", "version": version("toolfleet"), "title": "Toolfleet"}
"""What each result says of its server."""

_INSTRUCTIONS = (
    "Tools of a fleet. A failed call says whether its effect has happened (effect_state) and whether it may be repeated "
    "(retryable): do not repeat one that may have happened and is not retryable."
)


def build_server(tools: ToolMethods, tasks: TaskMethods, subscriptions: Subscriptions | None) -> Server[Any]:
    """The server; without `subscriptions` it tells of no changes."""
    server: Server[Any] = Server(
        SERVER_INFO["name"],
        version=SERVER_INFO["version"],
        title=SERVER_INFO["title"],
        instructions=_INSTRUCTIONS,
        get_tool_input_schema=called_schema,
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
