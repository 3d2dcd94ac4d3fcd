"""What 100,000 waiting jobs cost, and how late 1,000 are polled that fall due at once: `python -m benchmarks.features.jobs`.

One worker, beat, and the Redis of `toolfleet up`, all on this machine.
"""

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from redis import Redis

from benchmarks.machine import cpu_seconds, wait_for_quiet
from toolfleet import Caller, Poll, Schedule, Settings, ToolFleet
from toolfleet_cli.local.environment import beat_command, environment_of, worker_command
from toolfleet_cli.local.redis_server import free_port, redis_server
from toolfleet_modules.hosts.child_process import spawn, stop

_JOBS, _DUE = 100_000, 1_000
_OF_A_USER = 100
_AT_ONCE = 200  # that are being made
_AHEAD_SECONDS = 20  # from making the jobs that fall due until they do
_IDLE_SECONDS = 30  # of looking at the fleet's CPU
_START_SECONDS = 30
_LAST_SECONDS = 60  # for the last one to be polled


@dataclass(frozen=True)
class Fleet:
    """What runs: `pids` of Redis, worker and beat by name."""

    settings: Settings
    module_url: str
    pids: dict[str, int]

    def cpu(self) -> dict[str, float]:
        """Seconds so far."""
        return {name: cpu_seconds([pid]) for name, pid in self.pids.items()}


def main() -> None:
    """Measure and print; the table is kept in `results/jobs.md`."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--jobs", type=int, default=_JOBS)
    options.add_argument("--due", type=int, default=_DUE)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as folder, running_fleet(Path(folder)) as fleet:
        rows = asyncio.run(_measure(fleet, jobs=chosen.jobs, due=chosen.due))
    text = "\n".join(["| | |", "|---|---:|", *(f"| {what} | {found} |" for what, found in rows)])
    print(text)
    if (chosen.jobs, chosen.due) == (_JOBS, _DUE):
        (Path(__file__).parents[1] / "results" / "jobs.md").write_text(text + "\n")


async def _measure(fleet: Fleet, *, jobs: int, due: int) -> list[tuple[str, str]]:
    async with ToolFleet(settings=fleet.settings) as client:
        await client.modules.refresh()
        nothing = _idle(fleet)
        before = _memory(fleet)
        began_at = time.perf_counter()
        await _make(client, jobs, at=time.time() + 30 * 86_400, user="waiting")
        seconds = time.perf_counter() - began_at
        bytes_each = (_memory(fleet) - before) / jobs
        waiting = _idle(fleet)
        due_at = time.time() + _AHEAD_SECONDS
        await _make(client, due, at=due_at, user="due")
        await asyncio.sleep(due_at - time.time())
        late = sorted(await _lateness(fleet, due))
    return [
        ("jobs made a second, by one agent", f"{jobs / seconds:,.0f}"),
        ("Redis's memory a waiting job, bytes", f"{bytes_each:,.0f}"),
        ("idle fleet without jobs, CPU ms a second", _shown(nothing)),
        (f"idle fleet with {jobs:,} waiting jobs, CPU ms a second", _shown(waiting)),
        (f"{due:,} due at once beside them: late by, median", f"{statistics.median(late) * 1000:,.0f} ms"),
        ("p99", f"{late[int(len(late) * 0.99) - 1] * 1000:,.0f} ms"),
        ("the last", f"{late[-1] * 1000:,.0f} ms"),
    ]


async def _make(client: ToolFleet, count: int, *, at: float, user: str) -> None:
    places = asyncio.Semaphore(_AT_ONCE)
    poll = Poll(tool_name="work.status", arguments={"due_at": at})

    async def make(number: int) -> None:
        caller = Caller(user_id=f"{user}-{number // _OF_A_USER}", allowed_modules="*")
        async with places:
            await client.jobs.start(None, poll, "notify", None, None, caller=caller, schedule=Schedule(at=at))

    for first in range(0, count, 10 * _AT_ONCE):
        await asyncio.gather(*(make(number) for number in range(first, min(first + 10 * _AT_ONCE, count))))


async def _lateness(fleet: Fleet, count: int) -> list[float]:
    async with httpx.AsyncClient(trust_env=False) as http:
        give_up_at = time.monotonic() + _LAST_SECONDS
        while True:
            late: list[float] = (await http.get(f"{fleet.module_url}/lateness")).json()
            if len(late) >= count:
                return late
            if time.monotonic() > give_up_at:
                sys.exit(f"Only {len(late)} of {count} jobs were polled within {_LAST_SECONDS} s.")
            await asyncio.sleep(0.5)


def _idle(fleet: Fleet) -> dict[str, float]:
    """CPU seconds a second while nobody does anything."""
    before = fleet.cpu()
    time.sleep(_IDLE_SECONDS)
    return {name: (now - before[name]) / _IDLE_SECONDS for name, now in fleet.cpu().items()}


def _shown(cpu: dict[str, float]) -> str:
    return ", ".join(f"{name} {seconds * 1000:.1f}" for name, seconds in cpu.items())


def _memory(fleet: Fleet) -> int:
    with Redis.from_url(str(fleet.settings.redis_url)) as client:
        return int(client.info("memory")["used_memory"])


@contextmanager
def running_fleet(folder: Path, **more: object) -> Generator[Fleet]:
    """Run one worker, beat, a Redis and the module of `jobs_module`, with `more` settings."""
    port = free_port()
    module_url = f"http://127.0.0.1:{port}"
    with redis_server(folder) as url:
        settings = Settings(
            redis_url=url,
            module_services={"work": module_url},
            # Whoever is told, nobody is there: news of an end wait, as they would for a core that is away.
            core_url=module_url,
            core_secret="whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",  # noqa: S106 - of this run only
            **more,  # type: ignore[arg-type] # per benchmark
        )
        commands = {
            "module": [sys.executable, "-m", "benchmarks.features.jobs_module", str(port)],
            "worker": worker_command("all"),
            "beat": beat_command(),
        }
        started = dict[str, subprocess.Popen[bytes]]()
        try:
            for name, command in commands.items():
                with (folder / f"{name}.log").open("wb") as log:
                    started[name] = spawn(command, env=environment_of(settings), output=log)
            _wait_for_module(module_url, folder / "module.log")
            with Redis.from_url(url) as client:
                pids = {"Redis": int(client.info("server")["process_id"])}
            pids |= {name: started[name].pid for name in ("worker", "beat")}
            wait_for_quiet(_START_SECONDS)
            yield Fleet(settings, module_url, pids)
        finally:
            for process in started.values():
                stop(process, patience_seconds=5)


def _wait_for_module(url: str, log: Path) -> None:
    give_up_at = time.monotonic() + _START_SECONDS
    while True:
        try:
            httpx.get(f"{url}/manifest", trust_env=False)
        except httpx.HTTPError:
            if time.monotonic() > give_up_at:
                sys.exit(f"The module does not start: {log.read_text()}")
            time.sleep(0.1)
        else:
            return


if __name__ == "__main__":
    main()
