"""Starts a program without namespaces: it sees what its user sees, the network and other programs' processes included.

Root gives it a user id that nobody else has; then it cannot read what is its module's or another program's.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from modules.sandboxes import owners

_SHARED = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - where a program can leave files outside of its folder


class SharedView:
    """A program in a folder of its own, which `close` removes. Raises `OSError`."""

    tmp: int | None = None
    """Nobody can tell there what is the program's."""
    others: frozenset[str] = frozenset()

    def __init__(
        self,
        argv: list[str],
        fill: Callable[[Path], None],
        environment: Callable[[str], dict[str, str]],
        limit: Callable[[], None],
        *,
        own_user: bool,
    ) -> None:
        self._scratch = TemporaryDirectory(prefix="run_python-", ignore_cleanup_errors=True)
        self.folder = self._scratch.name
        self._user = owners.id_of_this_process() if own_user else None
        fill(Path(self.folder))
        if self._user is not None:
            owners.give_away(Path(self.folder), self._user)
        self.work = os.open(f"{self.folder}/work", os.O_RDONLY | os.O_DIRECTORY)  # before a link takes its place
        self._process = subprocess.Popen(
            [word.replace("{folder}", self.folder) for word in argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=f"{self.folder}/work",
            env=environment(self.folder),
            start_new_session=True,
            user=self._user,
            group=self._user,
            extra_groups=None if self._user is None else [],
            preexec_fn=limit,  # noqa: PLW1509 - this process has one thread
        )
        assert self._process.stdout is not None and self._process.stderr is not None  # noqa: PT018, S101 - both are pipes
        self.pid = self._process.pid
        self.stdout, self.stderr = self._process.stdout.fileno(), self._process.stderr.fileno()

    def exit_code(self, status: int) -> int:
        """What the kernel's `status` of the process means."""
        self._process.returncode = os.waitstatus_to_exitcode(status)
        return self._process.returncode

    def close(self) -> None:
        """Remove its folder, and what its user has left elsewhere."""
        self._scratch.cleanup()
        for folder in _SHARED if self._user is not None else ():
            with contextlib.suppress(OSError), os.scandir(folder) as entries:
                for entry in entries:
                    if entry.stat(follow_symlinks=False).st_uid == self._user:
                        _remove(entry)


def _remove(entry: os.DirEntry[str]) -> None:
    if entry.is_dir(follow_symlinks=False):
        shutil.rmtree(entry.path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            Path(entry.path).unlink()
