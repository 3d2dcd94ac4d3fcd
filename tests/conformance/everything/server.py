"""Assembles the server of tools, prompts and resources."""

from itertools import count
from typing import Any

import mcp_types as types
from mcp.server.caching import CacheHint
from mcp.server.lowlevel import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, SubscriptionBus
from mcp.shared.subscriptions import PromptsListChanged, ToolsListChanged

from conformance.everything.asking_tools import add_asking_tools
from conformance.everything.content_tools import add_content_tools
from conformance.everything.long_tools import add_long_tools
from conformance.everything.prompts import Prompts, complete
from conformance.everything.resources import Resources
from conformance.everything.round_tools import add_round_tools
from conformance.everything.tools import Answer, Call, Context, Tools, said

_NAME = "everything"
_LISTS_LAST_MS = 1000


def everything() -> Server[Any]:
    """The server, for any transport and both eras."""
    bus = InMemorySubscriptionBus()
    tools, prompts, resources = Tools(bus), Prompts(), Resources()
    for add in (add_content_tools, add_asking_tools, add_round_tools, add_long_tools):
        add(tools)
    _add_changing_tools(tools, prompts)
    server = _server(tools, prompts, resources, bus)
    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, _set_level)
    server.middleware.append(RequestStateBoundary(RequestStateSecurity.ephemeral(), default_audience=_NAME))
    return server


def _server(tools: Tools, prompts: Prompts, resources: Resources, bus: SubscriptionBus) -> Server[Any]:
    hint = CacheHint(ttl_ms=_LISTS_LAST_MS)
    return Server(
        _NAME,
        version="1",
        cache_hints={
            "tools/list": hint,
            "prompts/list": hint,
            "resources/list": hint,
            "resources/templates/list": hint,
            "resources/read": hint,
            "server/discover": hint,
        },
        get_tool_input_schema=tools.schema_of,
        on_list_tools=tools.list,
        on_call_tool=tools.call,
        on_list_prompts=prompts.list,
        on_get_prompt=prompts.get,
        on_completion=complete,
        on_list_resources=resources.list,
        on_list_resource_templates=resources.list_templates,
        on_read_resource=resources.read,
        on_subscribe_resource=resources.subscribe,
        on_unsubscribe_resource=resources.unsubscribe,
        on_subscriptions_listen=ListenHandler(bus),
    )


def _add_changing_tools(tools: Tools, prompts: Prompts) -> None:
    """Offer two that change what is offered, and one that changes."""
    changes = count(1)

    async def changing(call: Call) -> Answer:
        return said("It is the same in all its forms.")

    async def change_tools(call: Call) -> Answer:
        tools.add("test_changing_tool", changing, f"Has changed {next(changes)} times.")
        await tools.bus.publish(ToolsListChanged())
        return said("The tools have changed.")

    async def change_prompts(call: Call) -> Answer:
        prompts.change()
        await tools.bus.publish(PromptsListChanged())
        return said("The prompts have changed.")

    tools.add("test_changing_tool", changing, "Has never changed.")
    tools.add("test_trigger_tool_change", change_tools, "Changes what tools there are.")
    tools.add("test_trigger_prompt_change", change_prompts, "Changes what prompts there are.")


async def _set_level(context: Context, params: types.SetLevelRequestParams) -> types.EmptyResult:
    """Take any level: whatever is said is said at `info`."""
    return types.EmptyResult()
