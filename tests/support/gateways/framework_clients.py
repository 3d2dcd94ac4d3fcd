"""Connects the official SDK's client, FastMCP's and those of agent frameworks to a gateway; frameworks' models follow a script.

Each imports its own packages when it is connected: whoever runs one of them loads no other, and whoever collects tests none.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from importlib import import_module
from types import MappingProxyType
from typing import Any

from support.gateways.gateway_process import NO_TLS
from support.waiting import PATIENCE_SECONDS

Call = Callable[[str, dict[str, Any]], Coroutine[Any, Any, str]]
"""Calls the tool of that name; returns what the model reads, whether the call has failed or not."""


@dataclass
class ConnectedClient:
    """`names` of the tools that it has listed; `heard` gets the messages of progress, of those clients that pass them on."""

    call: Call
    names: list[str] = field(default_factory=list)
    heard: asyncio.Queue[str] = field(default_factory=asyncio.Queue)

    async def hear(self, progress: float, total: float | None, message: str | None) -> None:
        """Keep a message of progress."""
        del progress, total
        await self.heard.put(message or "")


@asynccontextmanager
async def _sdk(url: str, key: str) -> AsyncGenerator[ConnectedClient]:
    import httpx2  # each client by itself
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    async def call(name: str, arguments: dict[str, Any]) -> str:
        return str((await client.call_tool(name, arguments, progress_callback=connected.hear)).content)

    connected = ConnectedClient(call)
    async with (
        httpx2.AsyncClient(headers=_bearing(key), timeout=3 * PATIENCE_SECONDS, trust_env=False, verify=NO_TLS) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        connected.names += [tool.name for tool in (await client.list_tools()).tools]
        yield connected


@asynccontextmanager
async def _fastmcp(url: str, key: str) -> AsyncGenerator[ConnectedClient]:
    from fastmcp import Client
    from fastmcp.client.transports import StreamableHttpTransport

    import_module("fastmcp_tasks")  # makes the client take tasks
    async with Client(StreamableHttpTransport(url, headers=_bearing(key))) as client:

        async def call(name: str, arguments: dict[str, Any]) -> str:
            result = await client.call_tool(name, arguments, progress_handler=connected.hear, raise_on_error=False)
            return str(result.content)

        connected = ConnectedClient(call, [tool.name for tool in await client.list_tools()])
        yield connected


@asynccontextmanager
async def _pydantic_ai(url: str, key: str) -> AsyncGenerator[ConnectedClient]:
    from pydantic_ai import Agent, ModelMessage, ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.mcp import MCPToolset
    from pydantic_ai.models.function import AgentInfo, FunctionModel

    async def call(name: str, arguments: dict[str, Any]) -> str:
        def answer(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
            is_first = len(messages) == 1
            part = ToolCallPart(name, arguments, tool_call_id="c1") if is_first else TextPart("done")
            return ModelResponse(parts=[part])

        ran = await Agent(FunctionModel(answer), toolsets=[toolset]).run("Ask the owl.")
        read = {"tool-return", "retry-prompt"}
        return next(str(p) for m in ran.all_messages() for p in m.parts if p.part_kind in read)

    connected = ConnectedClient(call)
    toolset = MCPToolset[object](url, headers=_bearing(key), progress_handler=connected.hear)
    async with toolset:
        connected.names += [tool.name for tool in await toolset.list_tools()]
        yield connected


@asynccontextmanager
async def _langchain(url: str, key: str) -> AsyncGenerator[ConnectedClient]:
    from fastmcp import Client
    from fastmcp.client.transports import StreamableHttpTransport
    from langchain_core._api import suppress_langchain_beta_warning

    with suppress_langchain_beta_warning():  # the whole of it is in beta
        from langchain.mcp import MCPAdapter

    async def call(name: str, arguments: dict[str, Any]) -> str:
        asked = {"type": "tool_call", "name": name, "args": arguments, "id": "c1"}
        return str((await tools[name].ainvoke(asked)).content)

    connected = ConnectedClient(call)
    async with MCPAdapter(Client(StreamableHttpTransport(url, headers=_bearing(key)))) as adapter:
        tools = {tool.name: tool for tool in await adapter.list_tools()}
        connected.names += tools
        yield connected


@asynccontextmanager
async def _openai_agents(url: str, key: str) -> AsyncGenerator[ConnectedClient]:
    from agents import Agent, RunConfig, Runner
    from agents.mcp import MCPServerStreamableHttp, MCPServerStreamableHttpParams
    from agents.testing import ScriptedModel, assistant_message, function_call

    untraced = RunConfig(tracing_disabled=True)  # traces would be sent to OpenAI

    async def call(name: str, arguments: dict[str, Any]) -> str:
        asked = function_call(name, json.dumps(arguments), call_id="c1")
        model = ScriptedModel([[asked], [assistant_message("done")]])
        ran = await Runner.run(
            Agent[None](name="keeper", model=model, mcp_servers=[server]), "Ask the owl.", run_config=untraced
        )
        return next(str(item.output) for item in ran.new_items if item.type == "tool_call_output_item")

    params = MCPServerStreamableHttpParams(url=url, headers=dict(_bearing(key)))
    async with MCPServerStreamableHttp(params=params, client_session_timeout_seconds=60) as server:
        yield ConnectedClient(call, [tool.name for tool in await server.list_tools()])


CLIENTS: Mapping[str, Callable[[str, str], AbstractAsyncContextManager[ConnectedClient]]] = MappingProxyType(
    {
        "sdk": _sdk,
        "langchain": _langchain,
        "openai_agents": _openai_agents,
        "pydantic_ai": _pydantic_ai,
        "fastmcp": _fastmcp,
    }
)
"""Each connects to the endpoint at a URL with a gateway's key.

The last two import `fastmcp_tasks`: from then on each client of FastMCP in the process takes tasks, also that inside of LangChain's.
"""


def _bearing(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}
