"""Runs one real MCP client against a gateway, with a model that follows a script: `run.py CLIENT URL KEY ACT` prints JSON.

Acts: `call` lists the tools and calls `owls.echo`, then `owls.nap` for two seconds; `leave` calls `owls.nap` for a minute until it is
interrupted; `twice` calls `owls.echo`, waits for a line on standard input, and calls it again in the same session.
"""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

Call = Callable[[str, dict[str, Any]], Awaitable[Any]]


class Connected:
    """A client that has connected: it lists names, and calls a tool; `told` counts what it was told of progress."""

    def __init__(self, names: list[str], call: Call) -> None:
        self.names = names
        self.call = call
        self.told = 0


@asynccontextmanager
async def fastmcp(url: str, key: str) -> AsyncIterator[Connected]:
    import fastmcp_tasks  # noqa: F401, PLC0415 - makes the client take tasks
    from fastmcp import Client  # noqa: PLC0415 - each client by itself
    from fastmcp.client.transports import StreamableHttpTransport  # noqa: PLC0415 - as above

    transport = StreamableHttpTransport(url, headers={"Authorization": f"Bearer {key}"})
    async with Client(transport) as client:

        async def call(name: str, arguments: dict[str, Any]) -> Any:
            async def hear(*_: Any) -> None:
                connected.told += 1

            result = await client.call_tool(name, arguments, progress_handler=hear)
            return result.structured_content or result.content[0].text

        connected = Connected([tool.name for tool in await client.list_tools()], call)
        yield connected


@asynccontextmanager
async def pydantic_ai(url: str, key: str) -> AsyncIterator[Connected]:
    from pydantic_ai import Agent, ModelResponse, TextPart, ToolCallPart  # noqa: PLC0415 - as above
    from pydantic_ai.mcp import MCPToolset  # noqa: PLC0415 - as above
    from pydantic_ai.models.function import FunctionModel  # noqa: PLC0415 - as above

    async def hear(*_: Any) -> None:
        connected.told += 1

    toolset: Any = MCPToolset(url, headers={"Authorization": f"Bearer {key}"}, progress_handler=hear)
    async with toolset:

        async def call(name: str, arguments: dict[str, Any]) -> Any:
            def answer(messages: list[Any], _: Any) -> ModelResponse:
                is_first = len(messages) == 1
                part = ToolCallPart(name, arguments, tool_call_id="c1") if is_first else TextPart("done")
                return ModelResponse(parts=[part])

            ran = await Agent(FunctionModel(answer), toolsets=[toolset]).run("Ask the owl.")
            return next(p.content for m in ran.all_messages() for p in m.parts if p.part_kind == "tool-return")

        connected = Connected([tool.name for tool in await toolset.list_tools()], call)
        yield connected


@asynccontextmanager
async def langchain(url: str, key: str) -> AsyncIterator[Connected]:
    from fastmcp import Client  # noqa: PLC0415 - as above
    from fastmcp.client.transports import StreamableHttpTransport  # noqa: PLC0415 - as above
    from langchain.mcp import MCPAdapter  # noqa: PLC0415 - as above

    client = Client(StreamableHttpTransport(url, headers={"Authorization": f"Bearer {key}"}))
    async with MCPAdapter(client) as adapter:
        tools = {tool.name: tool for tool in await adapter.list_tools()}

        async def call(name: str, arguments: dict[str, Any]) -> Any:
            message = await tools[name].ainvoke({"type": "tool_call", "name": name, "args": arguments, "id": "c1"})
            return message.content

        yield Connected(list(tools), call)


@asynccontextmanager
async def openai_agents(url: str, key: str) -> AsyncIterator[Connected]:
    from agents import Agent, Runner, set_tracing_disabled  # noqa: PLC0415 - as above
    from agents.mcp import MCPServerStreamableHttp  # noqa: PLC0415 - as above
    from agents.testing import ScriptedModel, assistant_message, function_call  # noqa: PLC0415 - as above

    set_tracing_disabled(disabled=True)
    params: Any = {"url": url, "headers": {"Authorization": f"Bearer {key}"}}
    async with MCPServerStreamableHttp(params=params, client_session_timeout_seconds=60) as server:

        async def call(name: str, arguments: dict[str, Any]) -> Any:
            asked = function_call(name, json.dumps(arguments), call_id="c1")
            model = ScriptedModel([[asked], [assistant_message("done")]])
            agent = Agent(name="keeper", model=model, mcp_servers=[server])
            ran = await Runner.run(agent, "Ask the owl.")
            return next(item.output for item in ran.new_items if item.type == "tool_call_output_item")

        yield Connected([tool.name for tool in await server.list_tools()], call)


CLIENTS = {"fastmcp": fastmcp, "pydantic_ai": pydantic_ai, "langchain": langchain, "openai_agents": openai_agents}


async def act(connected: Connected, what: str) -> dict[str, Any]:
    if what == "leave":
        await connected.call("owls.nap", {"seconds": 60})
    said = [str(await connected.call("owls.echo", {"text": "hoo"}))]
    if what == "twice":
        print("called", flush=True)  # noqa: T201 - for the test
        await asyncio.to_thread(sys.stdin.readline)
        said.append(str(await connected.call("owls.echo", {"text": "hoo again"})))
    else:
        said.append(str(await connected.call("owls.nap", {"seconds": 2})))
    return {"names": connected.names, "said": said, "told": connected.told}


async def main(client: str, url: str, key: str, what: str) -> None:
    async with CLIENTS[client](url, key) as connected:
        print(json.dumps(await act(connected, what)))  # noqa: T201 - for the test


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(*sys.argv[1:5]))
