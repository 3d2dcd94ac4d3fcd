"""Limits the process that it runs in: what it may take, its priority, and its end with its host's.

It imports little: each program of an MCP server is started by a process that has to import this first.
"""

import os
import resource
import signal
import sys

_PR_SET_PDEATHSIG = 1  # prctl(2)
_PR_SET_NO_NEW_PRIVS = 38

LIMITED = {
    "memory_bytes": resource.RLIMIT_AS,
    "cpu_seconds": resource.RLIMIT_CPU,
    "open_files": resource.RLIMIT_NOFILE,
    "processes": resource.RLIMIT_NPROC,
}
"""What can be limited, by the names that a fence has for it."""


def enclose(limits: dict[str, int | None], paths: list[str] | None = None) -> None:
    """Set this process's user, limits and priority, take the way to more privileges from it, and have it end when its host does.

    `paths` are those of the user, if there is one. Raises `OSError` where the process cannot become that user.
    """
    if (user := limits.get("user")) is not None:
        from toolfleet_modules.hosts.processes.user_view import become  # noqa: PLC0415 - hardly any process has it

        become(user, paths or [])  # first: a change of the user takes back that a process ends with its parent
    for name, kind in LIMITED.items():
        if (most := limits.get(name)) is not None:
            hard = resource.getrlimit(kind)[1]
            value = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(kind, (value, value))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    stand_back(0, limits.get("nice") or 0)
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415 - for this one process

        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def stand_back(process: int, nice: int) -> None:
    """Lower a process's priority to `nice`; 0 is this one. Never raises it again, which only root may. Raises `OSError` if it has ended."""
    if nice > os.getpriority(os.PRIO_PROCESS, process):
        os.setpriority(os.PRIO_PROCESS, process, nice)
