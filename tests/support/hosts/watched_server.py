"""An MCP server whose resources can be watched, as a program: `watched_server.py stdio|http [--old] [--port N]`. It notes in `$NOTES`.

`lay` changes the egg of an address, `sing` its prompts, `build` its list of resources, and `die` ends it.
"""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import PromptsListChanged, ResourcesListChanged, ResourceUpdated, ServerEvent

from support.hosts.nest_server import Noting, main, make_older, said

SERVER = Path(__file__)
TEXT = {"type": "object", "properties": {"uri": {"type": "string"}}}
FORBIDDEN = "eggs://forbidden"

Tell = Callable[[Any], Awaitable[None]]


class Watched(Noting):
    """Its sessions, and which resources each has asked for."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        super().__init__(environment)
        self.bus = InMemorySubscriptionBus()
        self.sessions: dict[str, list[Any]] = {}
        self.laid: dict[str, int] = {}

    async def list_tools(self, ctx: Any, params: Any) -> types.ListToolsResult:
        names = ("lay", "sing", "build", "die")
        return types.ListToolsResult(tools=[types.Tool(name=name, input_schema=TEXT) for name in names])

    async def call_tool(self, ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        uri = str((params.arguments or {}).get("uri", "eggs://one"))
        if params.name == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if params.name == "lay":
            self.laid[uri] = self.laid.get(uri, 0) + 1
            await self.tell(ResourceUpdated(uri), lambda session: session.send_resource_updated(uri), uri)
        elif params.name == "sing":
            await self.tell(PromptsListChanged(), lambda session: session.send_prompt_list_changed())
        else:
            await self.tell(ResourcesListChanged(), lambda session: session.send_resource_list_changed())
        self.note(f"{params.name} {uri}")
        return types.CallToolResult(content=said("done"))

    async def tell(self, event: ServerEvent, old: Tell, uri: str | None = None) -> None:
        await self.bus.publish(event)
        for session in self.sessions.get(uri, []) if uri else self.sessions.get("", []):
            await old(session)

    async def subscribe(self, ctx: Any, params: types.SubscribeRequestParams) -> types.EmptyResult:
        self.note(f"subscribe {params.uri}")
        if str(params.uri) == FORBIDDEN:
            raise MCPError(-32602, "it is forbidden to watch it")
        self.sessions.setdefault(str(params.uri), []).append(ctx.session)
        return types.EmptyResult()

    async def unsubscribe(self, ctx: Any, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        self.note(f"unsubscribe {params.uri}")
        self.sessions.pop(str(params.uri), None)
        return types.EmptyResult()

    async def resources(self, ctx: Any, params: Any) -> types.ListResourcesResult:
        self.sessions.setdefault("", []).append(ctx.session)
        return types.ListResourcesResult(resources=[types.Resource(uri="eggs://one", name="one")])

    async def resource(self, ctx: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        text = str(self.laid.get(str(params.uri), 0))
        return types.ReadResourceResult(contents=[types.TextResourceContents(uri=params.uri, text=text)])

    async def prompts(self, ctx: Any, params: Any) -> types.ListPromptsResult:
        return types.ListPromptsResult(prompts=[types.Prompt(name="greet")])

    async def prompt(self, ctx: Any, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        message = types.PromptMessage(role="user", content=types.TextContent(type="text", text="Hoot"))
        return types.GetPromptResult(messages=[message])


def server_of(watched: Watched, *, is_old: bool) -> Server[Any]:
    """Newer servers know no `resources/subscribe`, and say all the same that they have it."""
    server: Server[Any] = Server(
        "watched",
        version="1",
        on_list_tools=watched.list_tools,
        on_call_tool=watched.call_tool,
        on_list_resources=watched.resources,
        on_read_resource=watched.resource,
        on_list_prompts=watched.prompts,
        on_get_prompt=watched.prompt,
        on_subscribe_resource=watched.subscribe if is_old else None,
        on_unsubscribe_resource=watched.unsubscribe if is_old else None,
        on_subscriptions_listen=None if is_old else ListenHandler(watched.bus),
    )
    if is_old:
        make_older(server)
    return server


if __name__ == "__main__":
    options = NotificationOptions(tools_changed=True, prompts_changed=True, resources_changed=True)
    asyncio.run(main(lambda is_old: server_of(Watched(), is_old=is_old), options))
