"""A fleet goes from one signing key to the next while calls run: process by process, and no call fails for it."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from bed.fleet import Bed, until
from support.module_server import ModuleServer
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
                        ToolCall(tool_name="owls.nap_once", arguments={"seconds": 2, "n": f"{id(self)}-{number + n}"})
                        for n in range(2)
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
    wanted = [len(agent.results) + 4 for agent in agents]
    await until(
        lambda: all(len(agent.results) >= more for agent, more in zip(agents, wanted, strict=True)),
        "calls are answered",
    )


async def test_no_call_fails_while_keys_are_rotated(bed: Bed, owls: ModuleServer, owner: Caller) -> None:
    """Workers and agents are restarted one after another, three times; every call is run once and answered."""
    await bed.serve(owls)
    workers = [await bed.worker(**STEPS[0]) for _ in range(2)]
    agents = [Agent(bed.with_settings(**STEPS[0])) for _ in workers]
    async with working(agents, owner):
        await until_more(agents)
        for step in STEPS[1:]:
            for worker, agent in zip(tuple(workers), agents, strict=True):
                await worker.stop()
                workers = [*workers[1:], await bed.worker(**step)]
                await until_more(agents)
                agent.restart(bed.with_settings(**step))
                await until_more(agents)

    results = [result for agent in agents for result in agent.results]
    assert [result for result in results if not result.success] == []
    assert len(owls.calls("nap_once")) == len(results)


async def test_two_keys_are_valid_at_once(bed: Bed, owls: ModuleServer, owner: Caller, said: Callable[[], str]) -> None:
    """An agent with the key before, and one with the next, are served by a worker that has both; and it answers each."""
    await bed.serve(owls)
    await bed.worker(**STEPS[2])
    for step in STEPS[1:3]:
        fleet = await bed.agent(**step)
        assert (await fleet.call(ToolCall(tool_name="owls.echo", arguments={"n": 1}), owner)).success
    old_only = await bed.agent(**STEPS[0])  # what it is told is signed with a key that it does not have
    unread = await old_only.call(ToolCall(tool_name="owls.echo"), owner)
    assert (unread.success, unread.error_code) == (False, "outcome_unknown")
    assert "message_refused" not in said()
