"""How far a running call is, while workers die and Redis is silent."""

import asyncio
from collections.abc import Callable

import pytest

from bed.fleet import Bed, until
from support.local_tools.talkers import Talker
from support.module_server import ModuleServer
from toolfleet import Caller, CallHandle, Progress, ToolCall

STEPS = [(0.25, "reading"), (None, "thinking"), (0.5, "counting"), (0.75, "writing")]
TALK = ToolCall(tool_name="owls.talk")


@pytest.fixture
def talker() -> Talker:
    return Talker(STEPS)


@pytest.fixture
def owls(talker: Talker) -> ModuleServer:
    module = ModuleServer("owls")
    module.add("talk", talker, effect="read", timeout_seconds=1200)
    return module


async def all_of(handle: CallHandle, heard: list[Progress]) -> None:
    """Note all that the call says until it ends."""
    async for progress in handle.progress():
        heard.append(progress)  # noqa: PERF401 - the test looks at it meanwhile


async def test_after_a_lost_worker_the_next_one_is_heard(
    bed: Bed, owls: ModuleServer, talker: Talker, owner: Caller
) -> None:
    """The call is repeated by another worker; who follows it hears of both, and of the one end."""
    await bed.serve(owls)
    fleet, heard = await bed.agent(), list[Progress]()
    first = await bed.worker()
    handle = await fleet.submit(TALK, owner, timeout=600)
    following = asyncio.create_task(all_of(handle, heard))
    await until(lambda: heard, "the first worker is heard")
    first.kill()
    await bed.worker()
    await until(lambda: talker.calls == 2, "the second worker has it")
    for _, message in STEPS[1:]:
        talker.go_on()  # its first step is no news: the first worker has said the same
        await until(lambda: heard[-1].message == message, "the second worker is heard")  # noqa: B023 - awaited
    talker.go_on()
    await following

    assert [(each.fraction, each.message) for each in heard] == STEPS
    assert (await handle.result()).success


async def test_without_redis_progress_is_dropped_and_the_result_comes(
    bed: Bed, owls: ModuleServer, talker: Talker, owner: Caller, said: Callable[[], str]
) -> None:
    """What was said while it was away is lost, what is said later is heard, and the end is the call's."""
    await bed.serve(owls)
    await bed.worker()
    fleet, heard = await bed.agent(), list[Progress]()
    handle = await fleet.submit(TALK, owner, timeout=600)
    following = asyncio.create_task(all_of(handle, heard))
    await until(lambda: heard, "it is heard")
    bed.redis.freeze()
    assert await handle.status() == "unknown"
    talker.go_on()
    await until(lambda: "progress_dropped" in said(), "something was dropped")
    talker.go_on()
    bed.redis.thaw()
    await asyncio.sleep(10)
    talker.go_on()
    await until(lambda: heard[-1].message == "writing", "what is said later is heard")
    talker.go_on()
    await following

    assert (await handle.result()).success
