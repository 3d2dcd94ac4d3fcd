"""Starts child processes that end with their parent, also when the parent is killed."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

_PR_SET_PDEATHSIG = 1  # prctl(2)


def spawn(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: int = subprocess.DEVNULL,
    output: IO[bytes] | int | None = None,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a child in a session of its own, so that Ctrl-C reaches only us and we can stop children in order.

    On Linux the kernel sends it SIGTERM when the calling *thread* ends: call it from the main thread. `env` is
    added to our own environment; `output` takes both of its streams; it inherits `pass_fds`.
    """
    return subprocess.Popen(
        [str(word) for word in argv],
        env={**os.environ, **(env or {})},
        cwd=cwd,
        stdin=stdin,
        stdout=output,
        stderr=subprocess.STDOUT if output is not None else None,
        pass_fds=pass_fds,
        start_new_session=True,
        preexec_fn=_end_with_parent(os.getpid()) if sys.platform == "linux" else None,  # noqa: PLW1509 - two system calls
    )


def stop(process: subprocess.Popen[bytes], *, patience_seconds: float) -> int:
    """Ask the child to end, and after `patience_seconds` make it end, with all it started. Returns its exit code."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_seconds)
    signal_group(process.pid, signal.SIGKILL)
    return process.wait()


def signal_group(pid: int, signum: signal.Signals) -> bool:
    """Send a signal to a spawned child and all its children. Returns whether there were any."""
    try:
        os.killpg(pid, signum)
    except ProcessLookupError:
        return False
    except PermissionError:  # macOS says so of a group that has only zombies left
        return False
    return True


def _end_with_parent(parent: int) -> Callable[[], None]:
    def run_in_child() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it ended before the line above: the signal will not be sent any more
            os._exit(1)

    return run_in_child


_libc = ctypes.CDLL(None)
