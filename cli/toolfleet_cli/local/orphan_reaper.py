"""Ends our children, and theirs, from a separate process when we are gone without having done so.

The kernel tells children of a killed parent to end (see `child_processes.spawn`), but only on Linux, not their own
children, and does not insist when one of them does not. The warden reads from a pipe that only we hold open: its end is
ours. The file imports the standard library only and is run by its path, so that starting it costs next to nothing.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time

PATIENCE_SECONDS = 5.0
"""How long orphans have to end by default. Not a worker's drain time: its Redis is going away as well."""


class OrphanReaper:
    """Our end of the pipe. If the warden itself is killed, all works as before, without a clean-up after our end."""

    def __init__(self, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        theirs, self._pipe = os.pipe()
        # -I -S: no site-packages, nothing from the working folder.
        argv = [sys.executable, "-I", "-S", __file__, str(patience_seconds)]
        self._process = subprocess.Popen(
            argv,
            stdin=theirs,
            stdout=subprocess.DEVNULL,
            env={"PATH": os.defpath},  # ours may hold keys
            start_new_session=True,
        )
        os.close(theirs)

    @property
    def pid(self) -> int:
        """The warden's own process."""
        return self._process.pid

    def watch(self, pid: int) -> None:
        """End the process group of this child if we are gone before we `release` it."""
        self._tell(f"+{pid}")

    def release(self, pid: int) -> None:
        """The child has ended, and all it started."""
        self._tell(f"-{pid}")

    def close(self) -> None:
        """Let the warden go; it ends what it still watches. Waits for it."""
        os.close(self._pipe)
        self._process.wait()

    def _tell(self, word: str) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipe, f"{word}\n".encode())


def main() -> None:
    """Watch the groups named on standard input until it ends, then end those that are left."""
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)  # a signal to the whole fleet must end the warden last
    groups: set[int] = set()
    for line in sys.stdin:
        if line.startswith("+"):
            groups.add(int(line[1:]))
        else:
            groups.discard(int(line[1:]))
    _end(groups, patience_seconds=float(sys.argv[1]))


def _end(groups: set[int], *, patience_seconds: float) -> None:
    left = {group for group in groups if _signal(group, signal.SIGTERM)}
    give_up_at = time.monotonic() + patience_seconds
    while left and time.monotonic() < give_up_at:
        time.sleep(0.05)
        left = {group for group in left if _signal(group, 0)}
    for group in left:
        _signal(group, signal.SIGKILL)


def _signal(group: int, signum: int) -> bool:
    try:
        os.killpg(group, signum)
    except (ProcessLookupError, PermissionError):  # macOS says the latter of a group of zombies
        return False
    return True


if __name__ == "__main__":
    main()
