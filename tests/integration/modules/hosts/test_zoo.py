"""Hostile MCP servers: every call has its end, nothing is left, and the module lives on."""

import asyncio
import os
import random
import signal

import psutil
import pytest

from support.hosts.zoo.animal import CALL, HANDSHAKE, LIST, START
from support.hosts.zoo.cages import caged
from support.waiting import wait_until

pytestmark = pytest.mark.asyncio

# Those of which each shows another part: the handshake, lists, calls, streams, and what is left behind.
SHORT = [
    "dies at start",
    "hangs in the handshake",
    "floods stderr",
    "prints a banner",
    "ignores signals and the end of its input",
    "gives schemas that are none",
    "dies in a call",
    "stops itself in a call",
    "answers twice",
    "answers only for another id",
    "leaks children in other sessions",
    "answers with unknown content",
    "asks for input",
]
SERVED_NEVER = {
    "dies at start",
    "stops itself at start",
    "leaks children at start and dies",
    "hangs in the handshake",
    "dies in the handshake",
    "stops itself in the handshake",
    "speaks a wrong version",
    "answers the handshake with an error",
    "answers the handshake with a number",
    "answers the handshake with nothing",
    "has no tools",
    "answers a list with text",
}


# Nobody finds their answers among what they write, but by chance.
DROWNED = {"floods notifications", "floods stdout with garbage", "floods stdout with binary"}


async def observe(species: str) -> None:
    """Serve one, call what misbehaves, and see that the rest goes on."""
    async with caged(species) as cage:
        result = await cage.call("bad")
        assert result.tool_name == "zoo.bad"
        assert result.success or result.error
        if species in SERVED_NEVER:
            assert not result.success
            if species != "has no tools":
                await wait_until(lambda: cage.host.manifest.load_errors, "it is listed why")
        elif species not in DROWNED:
            await cage.recovers()


async def test_every_call_has_its_end() -> None:
    """Whatever a server does; a tool of it that does no harm works afterwards, and all that it has started ends with it."""
    for some in (SHORT[:5], SHORT[5:9], SHORT[9:]):
        await asyncio.gather(*(observe(species) for species in some))


async def test_nothing_is_left_of_a_server_whose_watcher_is_killed() -> None:
    """The process that would end what the server has started is killed itself: the host does it then."""
    async with caged("leaks children in other sessions") as cage:
        assert (await cage.call("bad")).success
        before = set(cage.pids())
        (watcher,) = (pid for pid in before if psutil.Process(pid).ppid() == os.getpid())
        os.kill(watcher, signal.SIGKILL)

        await wait_until(lambda: not before & set(cage.pids()), "all have ended")
        await cage.recovers()


@pytest.mark.load
@pytest.mark.timeout(1800)
async def test_the_whole_zoo() -> None:
    """All species, four at a time."""
    every = [*START, *HANDSHAKE, *LIST, *CALL, "reads no more after its handshake"]
    assert len(every) > 50
    gate = asyncio.Semaphore(4)

    async def one(species: str) -> None:
        async with gate:
            await observe(species)

    await asyncio.gather(*(one(species) for species in every))


@pytest.mark.load
@pytest.mark.timeout(3600)
async def test_a_thousand_kills_leave_nothing() -> None:
    """Servers, what they have started and what watches over them are killed or stopped at any moment: every call has its end."""
    chance, killed = random.Random(7), 0

    async def one() -> None:
        nonlocal killed
        async with caged("leaks children in other sessions") as cage:
            while killed < 1000:
                await cage.recovers()
                calls = [asyncio.ensure_future(cage.call(tool, seconds=2)) for tool in ("good", "bad", "good")]
                harmed = await cage.harm(chance)
                killed += harmed
                results = await asyncio.gather(*calls)
                assert all(result.success or result.error for result in results)

    await asyncio.gather(*(one() for _ in range(4)))
