"""Clocks that are wrong: of this process by a seam, of others by libfaketime, which can also set them while they run.

And time that passes when nobody has anything to do: an event loop, and this process's clocks and chance along with it.
"""

import asyncio
import os
import selectors
import time
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Self, TypeVar
from unittest.mock import patch
from uuid import UUID

import pytest

from support.waiting import wait_until_sync
from toolfleet_cli.local.redis_server import (
    bundled_redis_server,
    find_redis_server,
    held_port,
    is_ours,
    redis_command,
    redis_url,
)
from toolfleet_modules.hosts.child_process import spawn, stop
from toolfleet_registry.system import fleet_clock, machine_clock, randomness
from toolfleet_registry.system.fleet_clock import Reading, SlewedClock

T = TypeVar("T")

BEGINS_AT = 1_800_000_000.0
"""What the clocks show at first, in seconds since the epoch."""

_ANSWERS_SECONDS = 3.0
_SITE = Path(__file__).parent / "faketime_site"
_TESTS = _SITE.parents[1]
_LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/local/lib", "/usr/lib64", "/usr/lib")


@dataclass
class HandClock:
    """Stands still until it is moved."""

    now: float = 0

    def __call__(self) -> float:
        return self.now


@dataclass
class Later:
    """By how many seconds the running loop's clock and the machine's are ahead of the real ones: a test says when time is over."""

    seconds: float = 0

    @classmethod
    def here(cls, monkeypatch: pytest.MonkeyPatch) -> Self:
        later, loop = cls(), asyncio.get_running_loop()
        monkeypatch.setattr(loop, "time", later._shifted(loop.time))
        monkeypatch.setattr(machine_clock, "monotonic", later._shifted(machine_clock.monotonic))
        return later

    def _shifted(self, clock: Callable[[], float]) -> Callable[[], float]:
        return lambda: clock() + self.seconds


@contextmanager
def fleet_clock_ahead(seconds: float) -> Generator[None]:
    """Have this process's fleet clock ahead of all others, until the end."""
    before, moment = fleet_clock.clock, fleet_clock.suspend_aware()
    there = time.time() + seconds
    fleet_clock.clock = SlewedClock(monotonic=fleet_clock.suspend_aware, wall=time.time)
    fleet_clock.now = fleet_clock.clock.now
    fleet_clock.clock.hear(Reading(there, there, moment, moment))
    try:
        yield
    finally:
        fleet_clock.clock, fleet_clock.now = before, before.now


class WallClock:
    """The clock that another process takes for the machine's; monotonic time goes on as it is. Needs libfaketime."""

    def __init__(self, folder: Path, *, ahead: float = 0) -> None:
        self._file = folder / f"clock-{time.monotonic_ns()}"
        self.set_ahead(ahead)

    @property
    def env(self) -> dict[str, str]:
        """What the process is started with."""
        return {
            "LD_PRELOAD": str(_library()),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",  # it reads the file at each look at the clock
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",  # its older name
            "PYTHONPATH": os.pathsep.join([str(_SITE), str(_TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]),
        }

    def set_ahead(self, seconds: float) -> None:
        """From now on it shows so much more than the machine's. At once, as of a reader no half of it can be seen."""
        draft = self._file.with_suffix(".new")
        draft.write_text(f"{seconds:+g}\n")
        draft.replace(self._file)


@contextmanager
def redis_with_a_clock(folder: Path, *options: str) -> Generator[tuple[str, WallClock]]:
    """A Redis server whose clock can be set, by its URL."""
    clock = WallClock(folder)
    with held_port() as port:
        with (folder / "redis.log").open("ab") as output:
            process = spawn([*clocked_command(folder / "data", port), *options], env=clock.env, output=output)
        try:
            wait_until_sync(lambda: is_ours(port, process.pid), "Redis answers")
            yield redis_url(port), clock
        finally:
            stop(process, patience_seconds=5)


def clocked_command(folder: Path, port: int) -> list[str]:
    """The command line of a Redis server that runs under libfaketime."""
    return [str(_clocked_server()), *redis_command(folder, port)[1:]]


@cache
def _clocked_server() -> Path:
    """The server that the tests use, or the one in the wheel where that does not answer: Debian's 7.0 hangs under libfaketime."""
    tried = [binary for binary in (find_redis_server(), bundled_redis_server()) if binary]
    for binary in tried:
        with TemporaryDirectory() as folder, held_port() as port:
            command = [str(binary), *redis_command(Path(folder), port)[1:]]
            process = spawn(command, env=WallClock(Path(folder)).env)
            try:
                wait_until_sync(partial(is_ours, port, process.pid), "Redis answers", seconds=_ANSWERS_SECONDS)
            except AssertionError:
                continue
            else:
                return binary
            finally:
                stop(process, patience_seconds=0)
    raise AssertionError(f"no Redis server answers under libfaketime: {tried}")


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop that waits for none of its timers. For what has neither connections nor threads."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_Skipping(self))

    def time(self) -> float:
        return self.now


def run_virtually(work: Coroutine[Any, Any, T], *, seed: int = 0) -> tuple[T, float]:
    """Run a coroutine on a loop of its own. Returns what it does, and for how many virtual seconds it has waited."""
    loop = VirtualLoop()
    with _ports_of(loop, seed), asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(work), loop.now


async def pass_virtually(seconds: float) -> None:
    """Let time pass on the running loop, which must be a virtual one."""
    assert isinstance(asyncio.get_running_loop(), VirtualLoop), "this would take real time"
    await asyncio.sleep(seconds)


def libfaketime() -> Path | None:
    """The library that other processes are started with, where it is installed."""
    for folder in _LIBRARIES:
        for path in (Path(folder) / "faketime" / "libfaketime.so.1", Path(folder) / "libfaketime.so.1"):
            if path.is_file():
                return path
    return None


def _library() -> Path:
    if found := libfaketime():
        return found
    pytest.skip("libfaketime is not installed (Debian: apt-get install faketime): no other process's clock can be set.")


class _Skipping(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if not events and timeout is None:
            raise RuntimeError("everybody waits for something that will never come")
        if not events and timeout is not None:
            self._loop.now += timeout
        return events


@contextmanager
def _ports_of(loop: VirtualLoop, seed: int) -> Generator[None]:
    def wall() -> float:
        return BEGINS_AT + loop.now

    chance, clock = Random(seed), SlewedClock(monotonic=loop.time, wall=wall)
    clocks = {"monotonic": loop.time, "wall": wall, "utc_now": lambda: datetime.fromtimestamp(wall(), UTC)}
    fleet = {"clock": clock, "now": clock.now, "suspend_aware": loop.time}
    chances = {
        "random": chance.random,
        "uniform": chance.uniform,
        "randrange": chance.randrange,
        "uuid4": lambda: UUID(int=chance.getrandbits(128), version=4),
        "uuid4_text": lambda: str(UUID(int=chance.getrandbits(128), version=4)),
    }
    ports: tuple[tuple[object, Mapping[str, object]], ...]
    ports = (machine_clock, clocks), (fleet_clock, fleet), (randomness, chances)
    with ExitStack() as stack:
        for port, names in ports:
            for name, replaced in names.items():
                stack.enter_context(patch.object(port, name, replaced))
        yield
