"""A killed worker whose parent has waited for it: its calls go on before any lease of its has run out."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.fleet import TestBed, own_bed
from support.module_server import ModuleServer, Request, serve
from support.waiting import PATIENCE_SECONDS, wait_until
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_cli.local.programs import worker_program
from toolfleet_cli.local.supervisor import Supervisor
from toolfleet_registry.contracts import Effect
from toolfleet_tasks.scripts import LONGEST_LEASE_SECONDS

OWNER = Caller(user_id="ada", permission="owner", allowed_modules="*")
EFFECTS: tuple[Effect | None, ...] = ("read", "idempotent", "once", None)


@pytest.fixture
def owls() -> Iterator[ModuleServer]:
    """The first call of each tool hangs; later ones are answered."""
    module, seen = ModuleServer("owls"), set[str]()

    def hanging(name: str) -> Callable[[Request], Any]:
        async def hang(_: Request) -> dict[str, Any]:
            if name not in seen:
                seen.add(name)
                await asyncio.Event().wait()
            return {"success": True, "result": "hu"}

        return hang

    for effect in EFFECTS:
        name = str(effect).lower()
        module.add(name, hanging(name), timeout_seconds=120, **({} if effect is None else {"effect": effect}))
    with serve(module):
        yield module


@pytest.fixture
def bed(owls: ModuleServer, tmp_path: Path) -> Iterator[TestBed]:
    with own_bed(owls, tmp_path) as bed:
        yield bed


@pytest.fixture
def workers(bed: TestBed, tmp_path: Path) -> Iterator[Supervisor]:
    """One worker, at first, and who starts another one when it ends."""
    workers = Supervisor(tmp_path / "logs", announce=lambda _: None)
    workers.start([worker_program("fast", bed.settings)])
    yield workers
    workers.stop(in_hurry=lambda: True)


async def test_calls_of_a_killed_worker_go_on_within_seconds(
    bed: TestBed, fleet: ToolFleet, owls: ModuleServer, workers: Supervisor
) -> None:
    """Those of which a repeat does no harm are repeated at once; others end as unknown when their own leases are over, and are sent once."""
    calls = {effect: ToolCall(tool_name=f"owls.{str(effect).lower()}") for effect in EFFECTS}
    handles = {effect: await fleet.submit(call, OWNER, timeout=110) for effect, call in calls.items()}
    await wait_until(
        lambda: len(owls.requests) == len(EFFECTS), "the module has all calls", seconds=3 * PATIENCE_SECONDS
    )
    another = replace(worker_program("fast", bed.settings, generation=2), name="worker-fast-2")
    workers.start([another])  # the time does not have the start of a process in it

    def are_ready() -> bool:
        workers.tend()
        return all(child.is_ready for child in workers.children)

    await wait_until(are_ready, "another worker is ready", seconds=3 * PATIENCE_SECONDS)
    ends, killed_at = dict[Effect | None, tuple[float, str | None]](), time.monotonic()

    async def follow(effect: Effect | None) -> None:
        result = await handles[effect].result()
        ends[effect] = time.monotonic() - killed_at, result.error_code

    following = [asyncio.create_task(follow(effect)) for effect in EFFECTS]
    os.kill(workers.children[0].pid, signal.SIGKILL)

    def have_ended() -> bool:
        workers.tend()
        return all(task.done() for task in following)

    await wait_until(have_ended, "all calls have ended", seconds=5 * PATIENCE_SECONDS)
    print({effect: (round(seconds, 1), code) for effect, (seconds, code) in ends.items()})  # noqa: T201 - for the record

    assert {effect: code for effect, (_, code) in ends.items()} == {
        "read": None,
        "idempotent": None,
        "once": "outcome_unknown",
        None: "outcome_unknown",
    }
    sent = [request["tool_name"] for request in owls.requests]
    assert sorted(sent) == sorted(["owls.read", "owls.idempotent"] * 2 + ["owls.once", "owls.none"])
    assert max(ends["read"][0], ends["idempotent"][0]) < LONGEST_LEASE_SECONDS
    assert max(seconds for seconds, _ in ends.values()) < bed.settings.lease_seconds / 2
