"""The turn that a call waits for is found by its agent, which lets no call wait for the one that makes it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis

from support.local_tools.own_functions import OwnFunctions
from support.module_server import ModuleServer, serve
from support.owls import echo
from support.published_call import published
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet.sdk import Module
from toolfleet_registry.contracts import PublishedCall, ToolResult, Turn
from toolfleet_registry.local.local_function import local_tool
from toolfleet_registry.policy.turns import turn_of
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.settings import Settings
from toolfleet_tasks.approvals.service import ApprovalService
from toolfleet_tasks.calls.prepare import CallPreparation
from toolfleet_tasks.messages.json_text import dump
from toolfleet_workers.executors.local import LocalExecutor

ADA = Caller(user_id="ada", permission="owner")
BOB = Caller(user_id="bob", permission="owner")
SCHEMA = {"type": "object", "properties": {"nest": {"type": "string", "default": "oak"}}}


class Builder:
    """An agent's preparation of calls, for functions that make calls while they run."""

    def __init__(self, preparation: CallPreparation) -> None:
        self.preparation = preparation
        self.loop = asyncio.get_running_loop()

    async def prepared(self, tool_name: str, caller: Caller = ADA, **arguments: Any) -> PublishedCall | ToolResult:
        return await self.preparation.prepare(ToolCall(tool_name=tool_name, arguments=arguments), caller, None, 30)

    async def turn(self, tool_name: str, caller: Caller = ADA, **arguments: Any) -> Turn | None:
        """The turn of a call that may be made."""
        found = await self.prepared(tool_name, caller, **arguments)
        assert isinstance(found, PublishedCall)
        return found.turn

    async def code(self, nest: str) -> str | None:
        """The reason why a function may not call this, or `None`."""
        found = await self.prepared("owls.paint", nest=nest)
        return found.error_code if isinstance(found, ToolResult) else None

    def code_in_thread(self, nest: str) -> str | None:
        """The same, for a plain function."""
        return asyncio.run_coroutine_threadsafe(self.code(nest), self.loop).result()


@pytest.fixture
async def agent(redis: Redis, redis_url: str) -> AsyncIterator[Builder]:
    module = ModuleServer("owls")
    module.add("build", echo, input_schema=SCHEMA, concurrency_key="nest")
    module.add("paint", echo, input_schema=SCHEMA, concurrency_key="nest", concurrency_limit=2)
    module.add("own", echo, input_schema=SCHEMA, concurrency_key="nest", concurrency_per_user=True)
    module.add("asked", echo, input_schema=SCHEMA, concurrency_key="nest", approval=True)
    module.add("plain", echo, input_schema=SCHEMA)
    module.add("typo", echo, input_schema=SCHEMA, concurrency_key="nets")
    module.add("none", echo, input_schema=SCHEMA, concurrency_key="nest", concurrency_limit=0)
    with serve(module) as served:
        settings = Settings(redis_url=redis_url, module_services={"owls": served.url})
        async with ToolFleet(settings=settings) as fleet:
            await fleet.modules.refresh()
            yield Builder((await fleet._sessions.opened()).preparation)


async def test_a_call_says_what_it_waits_for(agent: Builder) -> None:
    """By its arguments with their defaults, as a worker that has only the definition finds it, and whichever user makes it."""
    seen = agent.preparation._catalog.find("owls.build")
    assert seen is not None
    built = await agent.turn("owls.build", nest="oak")

    assert built == await agent.turn("owls.build", BOB) == turn_of(seen.definition, {"nest": "oak"}, None)
    assert await agent.turn("owls.paint", nest="oak") == Turn(line=str(built and built.line), limit=2)
    assert await agent.turn("owls.own") != await agent.turn("owls.own", BOB)


async def test_a_call_of_a_tool_without_a_key_is_as_before(agent: Builder) -> None:
    """Not a byte of its message says that there are turns, and any worker of before reads it."""
    prepared = await agent.prepared("owls.plain", nest="oak")

    assert isinstance(prepared, PublishedCall)
    assert (prepared.turn, "turn" in dump(prepared), '"v":' in dump(prepared)) == (None, False, False)


async def test_a_key_that_would_hold_no_call_back_closes_its_tool(agent: Builder) -> None:
    """With the reason, for whoever may know of the tool."""
    refused = [await agent.prepared(f"owls.{name}") for name in ("typo", "none")]

    assert [each.error_code for each in refused if isinstance(each, ToolResult)] == ["permission_denied"] * 2
    assert "its concurrency_key names 'nets', which is no argument of it" in str(refused[0])
    assert "concurrency_limit" in str(refused[1])


async def test_an_edited_call_waits_by_its_new_arguments(agent: Builder) -> None:
    """A person may approve a call with another value than it was asked for."""
    call, rules = await agent.prepared("owls.asked", nest="oak"), agent.preparation.approval_rules("owls.asked", ADA)
    seen, service = agent.preparation._catalog.find("owls.asked"), object.__new__(ApprovalService)
    service._preparation = agent.preparation
    assert isinstance(call, PublishedCall)
    assert seen is not None

    edited = await service._edited(call, {"nest": "elm"}, seen.definition, rules)
    assert (call.turn, edited.turn) == (
        await agent.turn("owls.build", nest="oak"),
        await agent.turn("owls.build", nest="elm"),
    )


async def test_a_call_of_a_modules_function_does_not_wait_for_it(agent: Builder) -> None:
    """In its task, in one that it makes, and in a thread; for another value, and once the function has returned, it is a call as any other."""
    module, later = Module("owls"), asyncio.Event()
    tasks = list[asyncio.Task[str | None]]()

    @module.tool(concurrency_key="nest")
    async def build(nest: str) -> list[str | None]:
        async def after() -> str | None:
            await later.wait()
            return await agent.code(nest)

        tasks.append(asyncio.create_task(after()))
        return [await agent.code(nest), await asyncio.create_task(agent.code(nest)), await agent.code("elm")]

    def build_in_thread(nest: str) -> list[str | None]:
        return [agent.code_in_thread(nest), agent.code_in_thread("elm")]

    for name in ("paint", "own"):
        module.add(build_in_thread, name=name, concurrency_key="nest")

    async with module.client() as client:
        assert (await client.call("build", nest="oak")).result == ["conflict", "conflict", None]
        later.set()
        assert await tasks[0] is None
        assert (await client.call("paint", nest="oak")).result == ["conflict", None]
        # In effect, this one waits for one user's calls only.
        assert (await client.call("own", nest="oak")).result == [None, None]


async def test_a_call_of_a_workers_function_does_not_wait_for_it(agent: Builder, redis: Redis) -> None:
    """It is refused before it is published, in words that name both tools' one value, and has its audit line."""
    found = list[PublishedCall | ToolResult]()

    @local_tool(name="build", concurrency_key="nest")
    async def build(nest: str) -> None:
        found.append(await agent.prepared("owls.paint", nest=nest))

    executor = LocalExecutor(OwnFunctions(build), max_result_bytes=1000)
    call = published("owls.build", arguments={"nest": "oak"}, user_id="bob")
    executor._functions.functions["owls.build"] = executor._functions.functions["local.build"]  # type: ignore[attr-defined]
    await executor.execute(call, seconds=30)
    await executor.aclose()

    (refused,) = found
    assert isinstance(refused, ToolResult)
    assert (refused.error_code, refused.effect_state, refused.retryable) == ("conflict", "none", False)
    assert "the call of 'owls.build' that makes it" in str(refused.error)
    assert await redis.xlen(Keys().audit) == 1
