"""What an agent knows of a conversation reaches the functions that take it, and no model can write it. Over each transport, signed and not."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from support.fleet import SIGNING_KEY, TestBed, local_tools_offered
from support.local_tools.context_tools import bare_tag, beside_tag, hidden_tag
from support.module_server import ModuleServer
from support.worker_process import TESTS
from toolfleet import Caller, ToolCall, ToolFleet, ToolResult
from toolfleet.tags import TagRegistry, ToolContext, ToolDef
from toolfleet_cli.local.redis_server import redis_server

ADA = Caller(user_id="@ada", permission="owner", allowed_modules="*")
KNOWN = ToolContext("", "Where are the owls?", "@eve", 7, "Owls live in barns.", 0.5)
FORGED: dict[str, Any] = {
    "user_message": "x",
    "user": "@eve",
    "chat_id": 999,
    "kb_context": "x",
    "confidence": 1,
    "groups": {"raw_arg": "x"},
}
MODES: dict[str, dict[str, object]] = {
    "signed": {"signing_key": SIGNING_KEY},
    "not signed": {},
}


@pytest.fixture(scope="module", params=MODES)
def bed(
    owls: ModuleServer, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[TestBed]:
    more = {"local_tools": "support.local_tools.context_tools:tools", **MODES[request.param]}
    with redis_server(tmp_path_factory.mktemp("redis")) as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(TESTS))
        bed = TestBed(url, (owls,), tmp_path_factory.mktemp("logs"), more)
        with bed.worker():
            asyncio.run(local_tools_offered(bed))
            yield bed


@pytest.fixture
async def fleet(bed: TestBed) -> AsyncIterator[ToolFleet]:
    async with ToolFleet(settings=bed.settings) as fleet:
        yield fleet


def told(result: ToolResult) -> dict[str, Any]:
    """The context that a tool was told."""
    assert result.success, result
    context: dict[str, Any] = json.loads(result.result["message"])
    return context


def registry_of(fleet: ToolFleet, *listed: ToolDef) -> TagRegistry:
    registry = TagRegistry(fleet)
    for tool in listed:
        registry.register(tool)
    return registry


async def test_a_model_writes_a_tags_groups_and_nothing_else(fleet: ToolFleet) -> None:
    """What the agent knows comes from it alone; who asks is the call's caller, whatever the context says."""
    listed = {tool.name: tool for tool in await fleet.tools(ADA)}
    schemas = {name: (listed[f"local.{name}"].input_schema or {})["properties"] for name in ("told", "bare", "beside")}
    assert {name: [*properties] for name, properties in schemas.items()} == {
        "told": ["raw_arg"],
        "bare": ["category", "content"],
        "beside": ["category", "content"],
    }

    result = await fleet.call(ToolCall(tool_name="local.told", arguments={"raw_arg": "owls"}), ADA, context=KNOWN)
    assert told(result) == {**KNOWN.model_dump(), "raw_arg": "owls", "user": "@ada", "groups": {"raw_arg": "owls"}}

    arguments = {"category": "factual", "content": "owls see"}
    result = await fleet.call(ToolCall(tool_name="local.bare", arguments=arguments), ADA, context=KNOWN)
    assert told(result) == {**KNOWN.model_dump(), "raw_arg": "factual owls see", "user": "@ada", "groups": arguments}


async def test_a_context_among_the_arguments_is_refused(fleet: ToolFleet) -> None:
    """Before the call is published."""
    for name, value in FORGED.items():
        forged = ToolCall(tool_name="local.told", arguments={"raw_arg": "owls", name: value})
        result = await fleet.call(forged, ADA, context=KNOWN)
        assert (result.error_code, result.effect_state) == ("invalid_arguments", "none"), name
        assert name in (result.error or "")


async def test_a_tag_is_told_what_stood_after_it(fleet: ToolFleet) -> None:
    """As it was written, with its groups and all that the agent knows."""
    registry = registry_of(fleet, bare_tag, beside_tag)
    written = KNOWN.model_copy(update={"raw_arg": "factual  owls see", "user": "@ada"})

    result = await registry.execute("bare", written)
    groups = {"category": "factual", "content": "owls see"}
    assert json.loads(result.message or "") == {**written.model_dump(), "groups": groups}
    assert (await registry.execute("beside", written)).message == "factual/owls see/7"


@pytest.mark.usefixtures("same_day")
async def test_a_tag_that_is_not_listed_is_executed_and_shown_to_nobody(fleet: ToolFleet) -> None:
    """Its limits are told: that is for the agent's program."""
    assert "local.hidden" not in {tool.name for tool in await fleet.tools(ADA)}
    assert "local.hidden" not in {tool.name for tool in await fleet.search("hidden", ADA)}
    near = await fleet.call(ToolCall(tool_name="local.hiden"), ADA)
    assert "hidden" not in (near.hint or "")

    result = await registry_of(fleet, hidden_tag).execute("hidden", ToolContext("owls", user="@ada"))
    assert result.success
    assert (await fleet.remaining(ADA)).tools["local.hidden"].used == 1


async def test_a_module_is_not_told(fleet: ToolFleet, owls: ModuleServer) -> None:
    """The context is for the agent's gate and the fleet's own functions."""
    owls.forget()
    result = await fleet.call(ToolCall(tool_name="owls.echo", arguments={"text": "hu"}), ADA, context=KNOWN)

    assert result.success
    assert [request["arguments"] for request in owls.requests] == [{"text": "hu"}]
    assert "barns" not in json.dumps(owls.requests)


async def test_a_context_has_the_bound_of_arguments(fleet: ToolFleet, bed: TestBed) -> None:
    """Both together; where only the gate would read it, it has none, for it goes nowhere."""
    large = KNOWN.model_copy(update={"kb_context": "x" * bed.settings.max_arguments_bytes})
    result = await fleet.call(ToolCall(tool_name="local.told", arguments={"raw_arg": "owls"}), ADA, context=large)

    assert (result.error_code, result.effect_state) == ("invalid_arguments", "none")
    assert (result.error or "").startswith("Arguments and context have")
    assert (await fleet.call(ToolCall(tool_name="owls.echo"), ADA, context=large)).success
