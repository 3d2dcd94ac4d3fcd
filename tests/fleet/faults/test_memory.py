"""Workers that the kernel kills for their memory, amid calls."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.fleet import TestBed, local_tools_known, own_bed
from support.module_server import ModuleServer, serve
from support.owls import nap
from support.programs.memory_groups import MemoryGroup, memory_group
from support.waiting import PATIENCE_SECONDS, wait_until
from support.worker_process import WorkerProcess
from toolfleet import Caller, ToolCall, ToolFleet, ToolResult
from toolfleet_registry.contracts.calls import DeadLetter

OWNER = Caller(user_id="ada", permission="owner", allowed_modules="*")
TESTS = Path(__file__).parents[2]
MEGABYTES, HOARD = 160, 400
AT_ONCE = 10
KILLED = -9


@pytest.fixture
def owls() -> ModuleServer:
    module = ModuleServer("owls")
    numbers = [{"name": name, "type": "number", "description": "", "required": True} for name in ("number", "seconds")]
    module.add("once", nap, effect="once", parameters=numbers)
    return module


@pytest.fixture
def groups() -> Iterator[tuple[MemoryGroup, MemoryGroup]]:
    """One for each worker: in a group of both the kernel may kill the one that does not hold the call."""
    with memory_group(MEGABYTES) as first, memory_group(MEGABYTES) as second:
        yield first, second


@pytest.fixture
def bed(owls: ModuleServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestBed]:
    """A fleet whose workers are taken for lost after two seconds."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    greedy = "support.local_tools.greedy_tools:tools"
    with serve(owls), own_bed(owls, tmp_path, visibility_timeout=2, local_tools=greedy) as bed:
        yield bed


class Load:
    """Agents that call a tool which may happen once, until they are told to end."""

    def __init__(self, fleet: ToolFleet) -> None:
        self._fleet = fleet
        self._is_over = False
        self.running = 0
        self.results: dict[int, ToolResult] = {}

    async def one(self, agent: int) -> None:
        number = agent
        self.running += 1
        while not self._is_over:
            call = ToolCall(tool_name="owls.once", arguments={"number": number, "seconds": 0.2})
            self.results[number] = await self._fleet.call(call, OWNER, timeout=30)
            number += AT_ONCE
        self.running -= 1

    def end(self) -> None:
        self._is_over = True


def taken(worker: WorkerProcess, group: MemoryGroup) -> WorkerProcess:
    group.take(worker.process.pid)
    return worker


async def killed_by_one_call(bed: TestBed, fleet: ToolFleet, groups: tuple[MemoryGroup, MemoryGroup]) -> ToolResult:
    """What becomes of a call that eats what two workers have, after which a third one stands in for them."""
    with bed.worker() as first, bed.worker() as second:
        victims = [taken(worker, group) for worker, group in zip((first, second), groups, strict=True)]
        await local_tools_known(fleet)
        poison = ToolCall(tool_name="local.hoard", arguments={"megabytes": HOARD})
        handle = await fleet.submit(poison, OWNER, timeout=110)
        await wait_until(
            lambda: all(it.process.poll() == KILLED for it in victims), "both are killed", seconds=3 * PATIENCE_SECONDS
        )
        with bed.worker() as third:
            result = await handle.result(3 * PATIENCE_SECONDS)
            assert third.process.poll() is None
            return result


@pytest.mark.slow
async def test_a_call_that_eats_workers_memory_ends_with_the_second(
    bed: TestBed, owls: ModuleServer, groups: tuple[MemoryGroup, MemoryGroup]
) -> None:
    """The kernel kills two workers for it; the third one does not try it. No call beside it is executed twice, nor told wrongly."""
    async with ToolFleet(settings=bed.settings) as fleet, asyncio.TaskGroup() as agents:
        load = Load(fleet)
        for agent in range(AT_ONCE):
            agents.create_task(load.one(agent))
        result = await killed_by_one_call(bed, fleet, groups)
        with bed.worker():
            answered = len(load.results)
            await wait_until(
                lambda: len(load.results) > answered + AT_ONCE, "another one goes on", seconds=3 * PATIENCE_SECONDS
            )
            load.end()
            await wait_until(lambda: load.running == 0, "all is told", seconds=3 * PATIENCE_SECONDS)
        letters = [it for it in await fleet.dead_letters.list() if isinstance(it, DeadLetter)]

    assert [group.kills for group in groups] == [1, 1]
    assert (result.error_code, result.retryable) == ("outcome_unknown", False)
    (reason,) = {letter.reason for letter in letters if letter.tool_name == "local.hoard"}
    assert "two workers have died with the call in their hands" in reason
    executed = Counter(request["arguments"]["number"] for request in owls.calls("once"))
    assert max(executed.values()) == 1
    ends = Counter((result.effect_state, executed[number]) for number, result in load.results.items())
    assert ends["done", 0] == ends["none", 1] == 0, ends
    assert 0 < ends["unknown", 0] + ends["unknown", 1] <= 2 * AT_ONCE, ends
