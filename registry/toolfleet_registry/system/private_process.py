"""Hides a process that holds secrets from other programs of the same user."""

import sys

_PR_SET_DUMPABLE = 4  # prctl(2)


def hide_process() -> None:
    """Allow only root to read this process's environment, memory and open files, or to trace it.

    Its children are not hidden.

    The price: it leaves no core dump, and debuggers and profilers need root. On Linux; elsewhere nothing happens.
    """
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415 - for those who hide

        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
