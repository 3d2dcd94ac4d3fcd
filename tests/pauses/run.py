"""One run: two workers with leases of 3 s are stopped in turn, each in the middle of a burst, for twice as long."""

import asyncio
import os
import random
import re
import signal
import sys
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pauses.agent import Agent, Told, effects
from support.servers.redis_faults import faulty_redis
from support.waiting import wait_until, wait_until_sync
from support.worker_process import READY, TESTS
from toolfleet import ToolFleet
from toolfleet_cli.local.environment import environment_of, worker_command
from toolfleet_modules.hosts.child_process import spawn, stop
from toolfleet_registry.settings import Settings

LEASE_SECONDS, PAUSE_SECONDS = 3, 6.0
_PATIENCE = 60.0  # seconds, on a busy machine


@dataclass(frozen=True)
class Plan:
    """`kind` of module, how many pauses, and in the burst around each how many pairs of writes and things to do once."""

    kind: str
    pauses: int
    pairs: int
    once: int
    seed: int = 1


@dataclass(frozen=True)
class Ran:
    """`overwritten`: keys at which an older write came last; `doubled`: what was done twice after a look found it not done."""

    told: Told
    overwritten: list[str]
    doubled: list[str]
    done: int


async def run(plan: Plan, folder: Path) -> Ran:
    """Run it, in the empty folder."""
    journal = folder / "journal"
    journal.touch()
    dice = random.Random(plan.seed)
    (folder / "redis").mkdir()
    with faulty_redis(folder / "redis") as redis, _module(plan.kind, journal, folder) as url:
        settings = Settings(
            redis_url=redis.url,
            module_services={"owls": url},
            visibility_timeout=LEASE_SECONDS,
            worker_concurrency=200,
            calls_per_caller=1_000,
        )
        with _worker(settings, folder, "one") as one, _worker(settings, folder, "two") as two:
            async with ToolFleet(settings=settings) as fleet:
                agent = Agent(fleet, journal)
                for number in range(plan.pauses):
                    await _burst(agent, (one, two)[number % 2], plan, number, dice)
    return _judged(agent.told, journal)


async def _burst(agent: Agent, pid: int, plan: Plan, number: int, dice: random.Random) -> None:
    """A burst in the middle of which the worker stands still."""
    all_of_it = 2 * plan.pairs + plan.once
    enough = agent.told.calls + dice.randrange(all_of_it // 20, all_of_it // 2)
    burst = asyncio.create_task(agent.burst(f"{number}", pairs=plan.pairs, once=plan.once))
    await wait_until(lambda: agent.told.calls >= enough or burst.done(), "the burst is under way", seconds=_PATIENCE)
    await asyncio.sleep(dice.uniform(0, 0.02))
    os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(PAUSE_SECONDS)
    finally:
        os.kill(pid, signal.SIGCONT)
    await burst
    await asyncio.sleep(1)  # what is late comes now


def _judged(told: Told, journal: Path) -> Ran:
    done = effects(journal)
    last = {key: value for tool, key, value, _ in done if tool == "set"}
    times = Counter(key for tool, key, *_ in done if tool == "send")
    overwritten = sorted(key for key in told.confirmed if last[key] != 2)
    return Ran(told, overwritten, sorted(key for key in told.repeated if times[key] > 1), len(done))


@contextmanager
def _module(kind: str, journal: Path, folder: Path) -> Generator[str]:
    log = folder / "module.log"
    with log.open("wb") as output:
        command = [sys.executable, "-m", "pauses.module", kind, str(journal)]
        process = spawn(command, env={"PYTHONPATH": str(TESTS)}, output=output)
    try:
        wait_until_sync(lambda: "listening on" in log.read_text(), "the module listens", seconds=_PATIENCE)
        found = re.search(r"listening on (\d+)\.", log.read_text())
        assert found is not None
        yield f"http://127.0.0.1:{found[1]}"
    finally:
        stop(process, patience_seconds=1)


@contextmanager
def _worker(settings: Settings, folder: Path, name: str) -> Generator[int]:
    log = folder / f"worker-{name}.log"
    with log.open("wb") as output:
        process = spawn(worker_command("all"), env=environment_of(settings), output=output)
    try:
        wait_until_sync(lambda: READY in log.read_text(errors="replace"), "the worker is ready", seconds=_PATIENCE)
        yield process.pid
    finally:
        stop(process, patience_seconds=20)
