"""Processes that have little memory together: the kernel kills one of them when they want more. Takes root, and cgroups."""

import contextlib
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.waiting import wait_until_sync

_VERSIONS = (
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.oom_control"),
    (Path("/sys/fs/cgroup"), "memory.max", "memory.events"),
)


@dataclass(frozen=True)
class MemoryGroup:
    """A control group. What its processes start belongs to it, too."""

    folder: Path
    events: str

    def take(self, pid: int) -> None:
        """What the process takes from now on counts here."""
        (self.folder / "cgroup.procs").write_text(str(pid))

    @property
    def kills(self) -> int:
        """How many processes the kernel has killed here."""
        lines = (self.folder / self.events).read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


@contextmanager
def memory_group(megabytes: int) -> Generator[MemoryGroup]:
    """A group of its own; skips the test where there can be none. All in it must have ended by then."""
    group = next(filter(None, (_made(megabytes, *version) for version in _VERSIONS)), None)
    if group is None:
        pytest.skip("there is no control group to limit memory with")
    try:
        yield group
    finally:
        wait_until_sync(lambda: _removed(group.folder), "the group is empty")


def _made(megabytes: int, root: Path, limit: str, events: str) -> MemoryGroup | None:
    folder = root / f"toolfleet-{secrets.token_hex(4)}"
    try:
        folder.mkdir()
        (folder / limit).write_text(str(megabytes * 2**20))
    except OSError:
        _removed(folder)
        return None
    return MemoryGroup(folder, events)


def _removed(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        folder.rmdir()
    return not folder.exists()
