"""A tool's schemas hold on the whole way: for what a module is sent, and for what it answers."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from support.fleet import TestBed
from support.module_server import ModuleServer, Request, serve
from support.worker_process import WorkerProcess
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_cli.local.redis_server import redis_server

SECRET = "s3cret-9f"
COUNT = {
    "type": "object",
    "properties": {"place": {"type": "string"}, "nights": {"type": "integer", "default": 3}},
    "required": ["place"],
    "additionalProperties": False,
}
COUNTED = {"type": "object", "properties": {"owls": {"type": "integer"}}, "required": ["owls"]}


async def count(request: Request) -> dict[str, Any]:
    return {"success": True, "result": {"owls": SECRET if request["arguments"]["place"] == "cave" else 7}}


@pytest.fixture(scope="module")
def forest() -> Iterator[ModuleServer]:
    module = ModuleServer("forest")
    module.add("count", count, input_schema=COUNT, output_schema=COUNTED, effect="once")
    module.add("look", count, input_schema=COUNT, output_schema=COUNTED, effect="read")
    module.add("broken", count, input_schema={"type": "object", "properties": {"x": {"$ref": "http://127.0.0.1:1/x"}}})
    with serve(module):
        yield module


@pytest.fixture(scope="module")
def clearing(forest: ModuleServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    more = {"coerce_numbers_modules": frozenset({"forest"})}
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield TestBed(url, (forest,), tmp_path_factory.mktemp("logs"), more)


@pytest.fixture(scope="module")
def ranger(clearing: TestBed) -> Iterator[WorkerProcess]:
    with clearing.worker() as worker:
        yield worker


@pytest.fixture
async def woods(clearing: TestBed, ranger: WorkerProcess, forest: ModuleServer) -> AsyncIterator[ToolFleet]:
    forest.forget()
    async with ToolFleet(settings=clearing.settings) as fleet:
        yield fleet


async def test_a_call_that_does_not_fit_reaches_nobody(woods: ToolFleet, forest: ModuleServer, owner: Caller) -> None:
    """It is refused before it is published, with what to mend, and without what was wrong."""
    result = await woods.call(ToolCall(tool_name="forest.count", arguments={"place": 5, SECRET: SECRET}), owner)

    assert (result.error_code, result.effect_state, result.retryable) == ("invalid_arguments", "none", False)
    assert "arguments.place must be a string, not an integer." in str(result.error)
    assert SECRET not in result.model_dump_json()
    assert forest.requests == []


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        ({"place": "oak"}, {"place": "oak", "nights": 3}),
        ({"place": "oak", "nights": 1}, {"place": "oak", "nights": 1}),
        (
            {"place": "oak", "nights": "12"},
            {"place": "oak", "nights": 12},
        ),  # the module's operator takes numbers as text
    ],
)
async def test_a_module_gets_what_its_schema_says(
    woods: ToolFleet, forest: ModuleServer, owner: Caller, arguments: dict[str, Any], sent: dict[str, Any]
) -> None:
    """With defaults, and with numbers for texts where that is wanted."""
    result = await woods.call(ToolCall(tool_name="forest.count", arguments=arguments), owner)

    assert result.success
    assert result.result == {"owls": 7}
    assert [request["arguments"] for request in forest.requests] == [sent]


@pytest.mark.parametrize(("method", "requests"), [("count", 1), ("look", 2)])
async def test_an_answer_that_does_not_fit_is_no_result(
    woods: ToolFleet, forest: ModuleServer, owner: Caller, ranger: WorkerProcess, method: str, requests: int
) -> None:
    """The effect has happened; only what is harmless is asked for again, once; and nobody repeats what came."""
    result = await woods.call(ToolCall(tool_name=f"forest.{method}", arguments={"place": "cave"}), owner)

    assert (result.error_code, result.effect_state) == ("invalid_response", "done")
    assert result.retryable == (method == "look")
    assert "result.owls must be an integer, not a string." in str(result.error)
    assert len(forest.requests) == requests
    assert SECRET not in result.model_dump_json()
    assert SECRET not in ranger.said()


async def test_a_broken_schema_closes_its_tool_alone(woods: ToolFleet, forest: ModuleServer, owner: Caller) -> None:
    """Nobody sees it in a list, whoever calls it is told why, and the module's other tools are there."""
    result = await woods.call(ToolCall(tool_name="forest.broken", arguments={}), owner)

    assert [tool.name for tool in await woods.tools(owner)] == ["forest.count", "forest.look"]
    assert (result.error_code, result.effect_state) == ("permission_denied", "none")
    assert "its input schema is wrong: it refers to 'http://127.0.0.1:1/x'" in str(result.error)
    assert forest.requests == []
