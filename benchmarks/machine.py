"""What processes use: CPU seconds and memory, of a process with all that it has started."""

import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import psutil

_QUIET_CORES = 0.4
_POLL_SECONDS = 0.25
_LOOP = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(100_000))"
_BUSY = ("user", "nice", "system", "irq", "softirq")


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system time so far, of children that have ended as well."""
    return sum(sum(process.cpu_times()[:4]) for process in _trees(pids))


def memory_mb(pids: Iterable[int]) -> float:
    """Resident memory now. What forked children share counts in each."""
    return sum(process.memory_info().rss for process in _trees(pids)) / 2**20


def busy_seconds() -> float:
    """CPU seconds that all programs of this machine have used since it started."""
    times = psutil.cpu_times()._asdict()
    return float(sum(times.get(name, 0.0) for name in _BUSY))


def wait_for_quiet(seconds: float) -> None:
    """Return when other programs use little of this machine, or after so many seconds: a busy minute is no measure."""
    give_up_at = time.monotonic() + seconds
    while time.monotonic() < give_up_at:
        before, looked_at = busy_seconds(), time.monotonic()
        time.sleep(_POLL_SECONDS)
        if (busy_seconds() - before) / (time.monotonic() - looked_at) < _QUIET_CORES:
            return


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Run so many processes that do nothing but compute, as on a machine that the fleet has not to itself."""
    loops = [subprocess.Popen([sys.executable, "-c", _LOOP]) for _ in range(processes)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def _trees(pids: Iterable[int]) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for pid in pids:
        process = psutil.Process(pid)
        found += [process, *process.children(recursive=True)]
    return [process for process in found if process.status() != psutil.STATUS_ZOMBIE]
