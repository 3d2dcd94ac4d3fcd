"""Clocks that are wrong: of this process by a seam, of others by libfaketime, which can also set them while they run."""

import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.waiting import wait_until_sync
from toolfleet_cli.local.child_processes import spawn, stop
from toolfleet_cli.local.redis_server import is_ours, redis_command, redis_url
from toolfleet_cli.local.tcp_ports import free_port
from toolfleet_registry.time import fleet_clock
from toolfleet_registry.time.slewed_clock import Reading, SlewedClock

_SITE = Path(__file__).parent / "faketime_site"
_LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/local/lib", "/usr/lib64", "/usr/lib")


@dataclass
class HandClock:
    """Stands still until it is moved."""

    now: float = 0

    def __call__(self) -> float:
        return self.now


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
            "PYTHONPATH": os.pathsep.join([str(_SITE), *filter(None, [os.environ.get("PYTHONPATH")])]),
        }

    def set_ahead(self, seconds: float) -> None:
        """From now on it shows so much more than the machine's. At once, as of a reader no half of it can be seen."""
        draft = self._file.with_suffix(".new")
        draft.write_text(f"{seconds:+g}\n")
        draft.replace(self._file)


@contextmanager
def redis_with_a_clock(folder: Path, *options: str) -> Generator[tuple[str, WallClock]]:
    """A Redis server whose clock can be set, by its URL."""
    clock, port = WallClock(folder), free_port()
    with (folder / "redis.log").open("ab") as output:
        process = spawn([*redis_command(folder / "data", port), *options], env=clock.env, output=output)
    try:
        wait_until_sync(lambda: is_ours(port, process.pid), "Redis answers")
        yield redis_url(port), clock
    finally:
        stop(process, patience_seconds=5)


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
