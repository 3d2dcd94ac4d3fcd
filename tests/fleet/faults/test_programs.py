"""300 programs while workers are really killed: real processes, `kill -9` at any moment. `simulation.programs` kills at each suspension."""

import asyncio
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from simulation.programs import answer, expected_of, source_of
from support.fleet import SIGNING_KEY, TestBed, own_bed, program
from support.module_server import ModuleServer, Request, serve
from support.waiting import PATIENCE_SECONDS, wait_until_answered, wait_until_sync
from toolfleet import Caller, Conversation, ToolCall, ToolFleet, ToolResult
from toolfleet_cli.local.environment import beat_command
from toolfleet_registry.contracts.programs import ToolProgram

MOST_CALLS, AT_ONCE = 12, 20
LONG = 6 * PATIENCE_SECONDS
WITHOUT_THE_EXTRA = 'import sys\n\nsys.modules["pydantic_monty"] = None\n'
CALLS_A_LIFE = 40  # of the module, at the most, before the next worker is killed


@pytest.fixture
def owls() -> Iterator[ModuleServer]:
    """It knows what its tools return without running anything."""

    async def execute(request: Request) -> dict[str, Any]:
        try:
            return {"success": True, "result": answer(request["tool_name"].partition(".")[2], request["arguments"])}
        except RuntimeError:
            return {"success": False, "error": "I cannot."}

    module = ModuleServer("owls")
    kinds = {"ref": "string", "n": "integer"}
    names = [{"name": name, "type": kind, "description": "", "required": False} for name, kind in kinds.items()]
    for method in ("step", "refuse"):
        module.add(method, execute, effect="once", parameters=names)
    with serve(module):
        yield module


@pytest.fixture
def bed(owls: ModuleServer, tmp_path: Path) -> Iterator[TestBed]:
    """A fleet whose workers are taken for lost after three seconds; programs have workers of their own."""
    more = {"programs": True, "signing_key": SIGNING_KEY, "visibility_timeout": 3, "slow_modules": {"programs"}}
    with own_bed(owls, tmp_path, **more) as bed:
        yield bed


def kill_workers(bed: TestBed, lane: str, owls: ModuleServer, seed: str, is_over: asyncio.Event) -> int:
    """Have a worker of the lane, and another one each time that it was killed. Returns how many were."""
    random, killed = Random(seed), 0
    bed = replace(bed, folder=bed.folder / seed.replace(" ", "-"))  # logs are numbered by what is there
    bed.folder.mkdir()

    def has_come(count: int) -> bool:
        return is_over.is_set() or len(owls.requests) >= count

    while not is_over.is_set():
        with bed.worker(lane=lane) as worker:
            wait_until_sync(
                partial(has_come, len(owls.requests) + random.randint(1, CALLS_A_LIFE)), "calls", seconds=LONG
            )
            if not is_over.is_set():
                worker.send_signal(signal.SIGKILL)
                killed += 1
    return killed


async def end_of(fleet: ToolFleet, caller: Caller) -> ToolProgram | None:
    """Return a caller's program when it has ended; `None` if none was made."""
    if not (listed := await fleet.programs.list(caller)):
        return None
    ended = list[ToolProgram | None]()

    async def has_ended() -> bool:
        ended[:] = [await fleet.programs.get(listed[0].program_id, caller)]
        return ended[0] is None or ended[0].state != "waiting"

    await wait_until_answered(has_ended, "the end of a program", seconds=LONG)
    return ended[0]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("who", "count"), [("those of programs", 300), ("all", 60)])
async def test_each_call_is_made_once_whoever_is_killed(
    bed: TestBed, owls: ModuleServer, tmp_path: Path, who: str, count: int
) -> None:
    """A program has the value that Python gives it, unless a worker died with one of its calls: then its end says so."""
    is_over, ends, wrong = asyncio.Event(), Counter[str](), list[str]()
    room = asyncio.Semaphore(AT_ONCE)
    lanes = ["slow", "slow"] if who != "all" else ["all", "all", "all"]

    async def one(fleet: ToolFleet, number: int) -> None:
        name = f"p{number}"
        source = source_of(Random(f"real {name}"), name, approves=False, most_calls=MOST_CALLS)
        value, refs = await expected_of(source)
        caller = Caller(user_id=f"user-{number}", permission="owner", allowed_modules="*")
        call = ToolCall(tool_name="programs.run", arguments={"source": source}, idempotency_key=name)
        async with room:
            result = await fleet.call(
                call, caller, conversation=Conversation(conversation_id=name, platform="chat"), timeout=300
            )
            end = await end_of(fleet, caller)
        ends["never made" if end is None else end.error_code or end.state] += 1
        wrong.extend(f"{name}: {each}" for each in faults(result, end, value, refs))

    def faults(result: ToolResult, end: ToolProgram | None, value: Any, refs: list[str]) -> list[str]:
        made = Counter(request["arguments"]["ref"] for request in owls.requests)
        found = [f"{each} was made {made[each]} times" for each in refs if made[each] > 1]
        if end is None:
            is_so = not result.success and result.effect_state != "done" and not any(made[each] for each in refs)
            return found if is_so else [*found, f"no program, and {result}"]
        if end.state == "completed":
            answered = result.success and not isinstance(result.result, dict)
            told = result.result if answered else end.result
            missing = [each for each in refs if not made[each]]
            return (
                found if (told, missing) == (value, []) else [*found, f"{told} in place of {value}, without {missing}"]
            )
        if who != "all" or end.error_code != "outcome_unknown":
            found.append(f"ended as {end}")
        return found

    async with ToolFleet(settings=bed.settings) as fleet:
        with ExitStack() as stack:
            stack.enter_context(program(bed, beat_command(), "beat", ready="beat: Starting"))
            if who != "all":
                (tmp_path / "site").mkdir()
                (tmp_path / "site" / "sitecustomize.py").write_text(WITHOUT_THE_EXTRA)
                env = {"PYTHONPATH": str(tmp_path / "site"), "PYTHONHASHSEED": "0"}  # which is read at its start only
                stack.enter_context(bed.worker(lane="fast", env=env))
            killers = [
                asyncio.create_task(asyncio.to_thread(kill_workers, bed, lane, owls, f"{who} {place}", is_over))
                for place, lane in enumerate(lanes)
            ]
            try:
                async with asyncio.TaskGroup() as programs:
                    for number in range(count):
                        programs.create_task(one(fleet, number))
            finally:
                is_over.set()
                killed = await asyncio.gather(*killers)

    print(f"{count} programs, {len(owls.requests)} calls, {sum(killed)} workers killed, {dict(ends)}")  # noqa: T201 - for the record
    assert wrong == []
    assert ends["completed"] >= count * (0.9 if who != "all" else 0.3)
    assert sum(killed) >= count // 10
