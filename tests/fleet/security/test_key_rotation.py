"""A fleet goes from one signing key to the next while calls run: process by process, and no call fails for it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager

import pytest

from support.fleet import TestBed
from support.module_server import ModuleServer
from support.waiting import PATIENCE_SECONDS, wait_until
from toolfleet import Caller, ToolCall, ToolFleet, ToolResult
from toolfleet_registry.settings import Settings

OLD = "the key before, which everybody has had for long"
NEW = "the key that comes next, and nobody has seen yet"
# Each is where the one before is left: no two of them that stand beside each other lack a key of the other's.
STEPS: tuple[dict[str, object], ...] = (
    {"signing_key": OLD},
    {"signing_key": OLD, "signing_keys_old": (NEW,)},
    {"signing_key": NEW, "signing_keys_old": (OLD,)},
    {"signing_key": NEW},
)


class Agent:
    """Makes calls one after the other, and may be opened anew with other settings between two of them."""

    def __init__(self, settings: Settings) -> None:
        self.results: list[ToolResult] = []
        self._settings = settings
        self._is_over = False

    def restart(self, settings: Settings) -> None:
        self._settings = settings

    def end(self) -> None:
        self._is_over = True

    async def work(self, caller: Caller) -> None:
        """Several calls at once, until the end."""
        while not self._is_over:
            settings = self._settings
            async with ToolFleet(settings=settings) as fleet:
                while settings is self._settings and not self._is_over:
                    number = len(self.results)
                    calls = [
                        ToolCall(
                            tool_name="owls.nap_once", arguments={"seconds": 0.05, "n": f"{id(self)}-{number + n}"}
                        )
                        for n in range(4)
                    ]
                    self.results += await fleet.call_many(calls, caller)


@asynccontextmanager
async def working(agents: list[Agent], caller: Caller) -> AsyncGenerator[None]:
    tasks = [asyncio.create_task(agent.work(caller)) for agent in agents]
    yield
    for agent in agents:
        agent.end()
    await asyncio.gather(*tasks)


async def until_more(agents: list[Agent]) -> None:
    """Each agent has had calls answered that it made from now on."""
    wanted = [len(agent.results) + 8 for agent in agents]
    await wait_until(
        lambda: all(len(agent.results) >= more for agent, more in zip(agents, wanted, strict=True)),
        "calls are answered",
        seconds=3 * PATIENCE_SECONDS,
    )


@pytest.mark.slow
async def test_no_call_fails_while_keys_are_rotated(
    bed: TestBed, owls: ModuleServer, owner: Caller, redis_url: str
) -> None:
    """Workers and agents are restarted one after another, three times; every call is run once and answered."""
    owls.forget()
    here = TestBed(redis_url, (owls,), bed.folder, STEPS[0])
    with ExitStack() as stack:
        workers = [stack.enter_context(ExitStack()) for _ in range(2)]
        for worker in workers:
            await asyncio.to_thread(worker.enter_context, here.worker())
        agents = [Agent(here.settings) for _ in range(2)]
        async with working(agents, owner):
            await until_more(agents)
            for step in STEPS[1:]:
                now = TestBed(redis_url, (owls,), bed.folder, step)
                for worker, agent in zip(workers, agents, strict=True):
                    await asyncio.to_thread(worker.close)
                    await asyncio.to_thread(worker.enter_context, now.worker())
                    await until_more(agents)
                    agent.restart(now.settings)
                    await until_more(agents)

    results = [result for agent in agents for result in agent.results]
    assert [result for result in results if not result.success] == []
    assert len(owls.calls("nap_once")) == len(results)


async def test_two_keys_are_valid_at_once(bed: TestBed, owls: ModuleServer, owner: Caller, redis_url: str) -> None:
    """An agent with the key before, and one with the next, are served by a worker that has both; and it answers each."""
    fleets = [TestBed(redis_url, (owls,), bed.folder, step).settings for step in STEPS[1:3]]
    with TestBed(redis_url, (owls,), bed.folder, STEPS[2]).worker() as worker:
        for settings in fleets:
            async with ToolFleet(settings=settings) as fleet:
                assert (await fleet.call(ToolCall(tool_name="owls.echo", arguments={"n": 1}), owner)).success
        old_only = TestBed(redis_url, (owls,), bed.folder, STEPS[0]).settings
        async with ToolFleet(settings=old_only) as fleet:  # what it is told is signed with a key that it does not have
            unread = await fleet.call(ToolCall(tool_name="owls.echo"), owner)
    assert (unread.success, unread.error_code) == (False, "outcome_unknown")
    assert "message_refused" not in worker.said()
