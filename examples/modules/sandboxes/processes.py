"""Counts and limits the processes that descend from one, for the programs that watch a sandbox from outside."""

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path


def below(pid: int) -> Iterator[int]:
    """Every process that descends from `pid`, each before its children; none where there is no /proc."""
    waiting = [pid]
    while waiting:
        with contextlib.suppress(OSError):  # it has just ended
            for task in Path(f"/proc/{waiting.pop()}/task").iterdir():
                for child in map(int, (task / "children").read_text().split()):
                    yield child
                    waiting.append(child)


def lowered(kind: int, limit: int) -> tuple[int, int]:
    """What to set a resource's limit to: nobody may raise what is lower already."""
    hard = resource.getrlimit(kind)[1]
    lowest = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    return lowest, lowest
