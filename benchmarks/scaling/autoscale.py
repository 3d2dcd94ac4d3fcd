"""Plays a day's load to workers that come and go, and to fixed numbers of them: `python -m benchmarks.scaling.autoscale`.

Exits with 1 where a call is lost or made twice, where calls wait for too long, or where a fixed fleet would have been cheaper.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from benchmarks.scaling.day import Day
from toolfleet import Caller, Settings, ToolCall, ToolFleet
from toolfleet_cli.local.child_processes import spawn, stop
from toolfleet_cli.local.environment import environment_of
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_cli.local.tcp_ports import free_port

_SLOTS = 8  # of a worker
_NAP_SECONDS = 1.0
_MOST = 4  # workers
_PEAK = 22.0  # calls a second: as many slots, most of three workers'
_CALM_SECONDS = 8.0
_FILL = 0.75  # of the slots: a worker's start takes long in a day of two minutes
_TARGET_SECONDS = 2.0  # that 95 of 100 calls wait at most
_START_SECONDS = 60
_LAST_SECONDS = 120  # for the calls that still wait when the day is over
_LOOK_SECONDS = 0.1
_SEED = 7


@dataclass(frozen=True, slots=True)
class DayPlayed:
    """What came of a day: `waits` in seconds, `worker_hours` of that day."""

    name: str
    calls: int
    lost: int
    doubled: int
    waits: Sequence[float]
    worker_hours: float
    most: int

    def percentile(self, of_hundred: int) -> float:
        """So many of a hundred calls waited for at most so long."""
        return self.waits[max(0, -(-len(self.waits) * of_hundred // 100) - 1)]


def main() -> None:
    """Play, print, and judge; the table of a whole day is kept in `results/autoscale.md`."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=120.0, help="what 24 hours take")
    day = Day(options.parse_args().seconds, _PEAK)
    scaled = _play(day, least=0, most=_MOST)
    fixed = [_play(day, least=count, most=count) for count in range(1, _MOST + 1)]
    text = "\n".join(_table([scaled, *fixed]))
    print(text)
    if day.seconds >= 120:
        (Path(__file__).parents[1] / "results" / "autoscale.md").write_text(text + "\n")
    sys.exit("\n".join(_faults(scaled, fixed)) or 0)


def _faults(scaled: DayPlayed, fixed: Sequence[DayPlayed]) -> list[str]:
    found = [
        f"{each.name}: {each.lost} calls lost, {each.doubled} made twice"
        for each in (scaled, *fixed)
        if each.lost or each.doubled
    ]
    if scaled.percentile(95) > _TARGET_SECONDS:
        found.append(
            f"One call in twenty waited for {scaled.percentile(95):.2f} s, and {_TARGET_SECONDS:g} s is the target."
        )
    equal = next((each for each in fixed if each.percentile(95) <= max(scaled.percentile(95), _TARGET_SECONDS)), None)
    if equal is not None and equal.worker_hours <= scaled.worker_hours:
        found.append(f"{equal.name} is as good with {equal.worker_hours:.1f} worker-hours.")
    return found


def _table(days: Sequence[DayPlayed]) -> list[str]:
    head = [
        "| workers | calls | lost | made twice | wait, median | p95 | p99 | worker-hours a day | at most |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    waits = (tuple(f"{day.percentile(part):.2f} s" for part in (50, 95, 99)) for day in days)
    return head + [
        f"| {day.name} | {day.calls:,} | {day.lost} | {day.doubled} | {' | '.join(wait)} | {day.worker_hours:.1f} | {day.most} |"
        for day, wait in zip(days, waits, strict=True)
    ]


def _play(day: Day, *, least: int, most: int) -> DayPlayed:
    with tempfile.TemporaryDirectory() as folder, _lane(Path(folder), least, most) as (settings, url, scaler):
        return asyncio.run(_day(day, settings, url, scaler, f"{least} to {most}" if least < most else f"always {most}"))


async def _day(day: Day, settings: Settings, url: str, scaler: psutil.Process, name: str) -> DayPlayed:
    caller = Caller(user_id="day", permission="user", allowed_modules="*")
    async with ToolFleet(settings=settings) as fleet, httpx.AsyncClient(trust_env=False) as http:
        await fleet.modules.refresh()
        counting = asyncio.create_task(_count(scaler, day))
        began_at, calls = time.monotonic(), list[asyncio.Task[bool]]()

        async def call(number: int) -> bool:
            asked = {"number": number, "published_at": time.time(), "seconds": _NAP_SECONDS}
            result = await fleet.call(
                ToolCall(tool_name="work.nap", arguments=asked), caller, timeout=day.seconds + _LAST_SECONDS
            )
            return result.success

        for number, at in enumerate(day.moments(_SEED)):
            await asyncio.sleep(max(0.0, began_at + at - time.monotonic()))
            calls.append(asyncio.create_task(call(number)))
        successes = await asyncio.gather(*calls)
        seconds, most = await counting
        begun: list[tuple[int, float]] = (await http.get(f"{url}/begun")).json()
    times = Counter(number for number, _ in begun)
    waits = sorted(wait for _, wait in begun)
    doubled = sum(1 for count in times.values() if count > 1)
    return DayPlayed(name, len(calls), successes.count(False), doubled, waits, seconds / day.seconds * 24, most)


async def _count(scaler: psutil.Process, day: Day) -> tuple[float, int]:
    """Worker-seconds of a day, from a worker's start until its end, and how many there were at most."""
    clock = asyncio.get_running_loop().time
    ends_at, before = clock() + day.seconds, clock()
    seconds, most = 0.0, 0
    while (now := clock()) < ends_at:
        there = sum(1 for child in scaler.children() if _is_worker(child))
        seconds, most, before = seconds + there * (now - before), max(most, there), now
        await asyncio.sleep(_LOOK_SECONDS)
    return seconds, most


def _is_worker(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and "toolfleet_workers" in process.cmdline()
    except psutil.NoSuchProcess:
        return False


@contextmanager
def _lane(folder: Path, least: int, most: int) -> Generator[tuple[Settings, str, psutil.Process]]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with redis_server(folder / "redis") as redis_url:
        settings = Settings(redis_url=redis_url, module_services={"work": url}, worker_concurrency=_SLOTS)
        bounds = [
            "--min",
            str(least),
            "--max",
            str(most),
            "--calm",
            f"{_CALM_SECONDS:g}",
            "--fill",
            f"{_FILL:g}",
            "--logs",
            str(folder / "logs"),
        ]
        commands = {
            "module": [sys.executable, "-m", "benchmarks.scaling.napping_module", str(port)],
            "autoscale": [sys.executable, "-m", "toolfleet_cli", "autoscale", "fast", *bounds],
        }
        started = {}
        try:
            for name, command in commands.items():
                with (folder / f"{name}.log").open("wb") as log:
                    started[name] = spawn(
                        command, env={**environment_of(settings), "PYTHONUNBUFFERED": "1"}, output=log
                    )
            scaler = psutil.Process(started["autoscale"].pid)
            _wait(folder, least)
            yield settings, url, scaler
        finally:
            for process in reversed(started.values()):
                stop(process, patience_seconds=_START_SECONDS)


def _wait(folder: Path, workers: int) -> None:
    give_up_at = time.monotonic() + _START_SECONDS
    while (
        "ready" not in (folder / "autoscale.log").read_text()
        or sum("toolfleet worker ready" in log.read_text() for log in (folder / "logs").glob("*.log")) < workers
    ):
        if time.monotonic() > give_up_at:
            sys.exit(f"The workers do not start: {(folder / 'autoscale.log').read_text()}")
        time.sleep(_LOOK_SECONDS)


if __name__ == "__main__":
    main()
