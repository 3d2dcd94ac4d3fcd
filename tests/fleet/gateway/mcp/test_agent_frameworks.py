"""Agent frameworks use a gateway by their own clients of MCP; those with packages of their own are in `tests/clients`."""

import json
from collections.abc import Iterator

import pytest
from agents import Agent, Runner, set_tracing_disabled
from agents.mcp import MCPServerStreamableHttp
from agents.testing import ScriptedModel, assistant_message, function_call

from support.gateways.gateway_process import Gateway
from support.module_server import ModuleServer


@pytest.fixture(autouse=True)
def _untraced() -> Iterator[None]:
    """Traces would be sent to OpenAI."""
    set_tracing_disabled(disabled=True)
    yield
    set_tracing_disabled(disabled=False)


async def test_an_agent_of_openais_sdk_lists_and_calls(one: Gateway, owls: ModuleServer) -> None:
    """Its model is offered the fleet's tools, and reads what the one that it calls has answered."""
    owls.forget()
    asked = function_call("owls.echo", json.dumps({"text": "hoo"}), call_id="c1")
    model = ScriptedModel([[asked], [assistant_message("done")]])
    params = {"url": f"{one.url}/mcp", "headers": {"Authorization": f"Bearer {one.key}"}}
    async with MCPServerStreamableHttp(params=params) as server:  # type: ignore[arg-type] # its own kind of dictionary
        agent = Agent[None](name="keeper", model=model, mcp_servers=[server])
        ran = await Runner.run(agent, "Ask the owl.")

    (output,) = [item.output for item in ran.new_items if item.type == "tool_call_output_item"]
    assert ("hoo" in str(output), ran.final_output, len(owls.calls("echo"))) == (True, "done", 1)
    assert "owls.nap" in {tool.name for tool in model.calls[0].tools}
