"""A tool that wants to end its process: that is its call's failure, and nothing else's."""

import asyncio
import inspect
from collections.abc import AsyncIterator
from typing import Any

import pytest

from toolfleet.sdk import Module, ModuleClient
from toolfleet_modules.calls.work import IN_TOOL, guard_tasks

EXITS = {"exit": SystemExit, "interrupt": KeyboardInterrupt}


async def leaving(how: str) -> Any:
    await asyncio.sleep(0)
    raise EXITS[how]("secret")


def make_owls() -> Module:
    owls = Module("owls")

    @owls.tool
    async def leave(how: str) -> Any:
        await leaving(how)

    @owls.tool
    async def leave_a_task(how: str) -> Any:
        await asyncio.gather(leaving(how))

    @owls.tool
    async def leave_a_group(how: str) -> Any:
        async with asyncio.TaskGroup() as group:
            group.create_task(leaving(how))

    @owls.tool
    def leave_a_thread(how: str) -> Any:
        raise EXITS[how]("secret")

    @owls.tool
    async def count() -> int:
        return 5

    return owls


@pytest.fixture
async def owls() -> AsyncIterator[ModuleClient]:
    async with make_owls().client() as client:
        yield client
    asyncio.get_running_loop().set_task_factory(None)


@pytest.mark.parametrize("how", EXITS)
@pytest.mark.parametrize("tool", ["leave", "leave_a_task", "leave_a_group", "leave_a_thread"])
async def test_a_tool_cannot_end_its_module(
    owls: ModuleClient, tool: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """`SystemExit` and `KeyboardInterrupt` are failures of their call, also in a thread and in tasks of the tool's own."""
    result = await owls.call(tool, how=how)
    kind = "ExceptionGroup" if tool == "leave_a_group" else EXITS[how].__name__

    assert result.error == f"owls.{tool} failed inside the module ({kind}); its log says why."
    assert (result.status, result.effect_state) == (200, None)
    assert EXITS[how].__name__ in caplog.text
    assert (await owls.call("count")).result == 5


async def test_a_guarded_task_is_as_it_was() -> None:
    """One that is cancelled before it starts leaves no coroutine unawaited; its name and its frames are its own."""
    loop = asyncio.get_running_loop()
    guard_tasks(loop)
    token = IN_TOOL.set(True)
    try:
        cancelled, task = asyncio.create_task(leaving("exit")), asyncio.create_task(asyncio.sleep(0, "slept"))
        cancelled.cancel()
        coro: Any = task.get_coro()
        assert (coro.__qualname__, inspect.getcoroutinestate(coro)) == ("sleep", inspect.CORO_CREATED)
        assert await task == "slept"
        with pytest.raises(asyncio.CancelledError):
            await cancelled
    finally:
        IN_TOOL.reset(token)
        loop.set_task_factory(None)
