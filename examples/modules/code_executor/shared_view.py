"""Starts a program without namespaces for users: it sees the machine's network and other programs' processes.

Root gives it a user id that nobody else has; then it cannot read what is its module's or another program's. /tmp, /var/tmp and
/dev/shm are the program's own where root may mount them, refused where the kernel has Landlock, and else swept.
"""

import os
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import NamedTuple

from modules.code_executor import leftovers
from modules.sandboxes import landlock, linux, owners
from modules.sandboxes.view import FILES, system_files

_MORE_SETTINGS = ("/etc/passwd", "/etc/group", "/proc")
_WRITABLE_DEVICES = ("/dev/null", "/dev/zero", "/dev/full")


class Start(NamedTuple):
    """What is started, with "{folder}" in its arguments for the folder that `fill` fills; `limit` runs in it before."""

    argv: list[str]
    fill: Callable[[Path], None]
    environment: Callable[[str], dict[str, str]]
    limit: Callable[[], None]


class SharedView:
    """A program in a folder of its own, which `close` removes. Raises `OSError` and `RuntimeError` for less than `isolation` says."""

    def __init__(self, isolation: str, start: Start, *, disk_mb: int, alone: bool) -> None:
        self._isolation, self._limit = isolation, start.limit
        self._user = owners.own_id_of_this_process() if isolation.startswith("user") else None
        self._remove_leftovers(alone=alone)
        has_mounts = isolation == "user with mounts"
        if has_mounts:
            _mount_own_folders(disk_mb)
        place = leftovers.SHARED[0] if has_mounts else gettempdir()
        self._scratch = TemporaryDirectory(prefix=leftovers.PREFIX, dir=place, ignore_cleanup_errors=True)
        self.folder = self._scratch.name
        start.fill(Path(self.folder))
        self._lock = ExitStack()
        self._lock.enter_context(leftovers.lock_folder(Path(self.folder)))  # while it is still ours alone
        if self._user is not None:
            owners.give_away(Path(self.folder), self._user)
        self.work = os.open(f"{self.folder}/work", os.O_RDONLY | os.O_DIRECTORY)  # before a link takes its place
        self.tmp = os.open(place, os.O_RDONLY | os.O_DIRECTORY) if has_mounts else None
        """Only where it is the program's: else nobody can tell what is."""
        self.others = frozenset({Path(self.folder).name})
        self._start([word.replace("{folder}", self.folder) for word in start.argv], start.environment(self.folder))

    def exit_code(self, status: int) -> int:
        """What the kernel's `status` of the process means."""
        self._process.returncode = os.waitstatus_to_exitcode(status)
        return self._process.returncode

    def close(self) -> None:
        """Remove its folder, and what its user has left elsewhere."""
        self._scratch.cleanup()
        self._lock.close()
        if self._isolation == "user":
            leftovers.remove_users(lambda user: user == self._user)

    def _remove_leftovers(self, *, alone: bool) -> None:
        if self._user is not None:
            leftovers.end_users(lambda user: user == self._user)
            leftovers.remove_users_folders()
        if alone and self._isolation == "user":
            leftovers.remove_users(leftovers.has_lost_its_launcher)
        if alone:
            leftovers.remove_own_folders()

    def _start(self, argv: list[str], environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=f"{self.folder}/work",
            env=environment,
            start_new_session=True,
            user=self._user,
            group=self._user,
            extra_groups=None if self._user is None else [],
            preexec_fn=self._restrict,  # noqa: PLW1509 - this process has one thread
        )
        assert self._process.stdout is not None and self._process.stderr is not None  # noqa: PT018 - both are pipes
        self.pid = self._process.pid
        self.stdout, self.stderr = self._process.stdout.fileno(), self._process.stderr.fileno()

    def _restrict(self) -> None:
        """Runs in the child, before the program."""
        self._limit()
        if self._isolation in {"user with landlock", "landlock"}:
            readable = (*system_files(network=True), *filter(os.path.exists, _MORE_SETTINGS), self.folder)
            landlock.restrict_files(readable=readable, writable=(*_WRITABLE_DEVICES, f"{self.folder}/work"))
        if self._isolation == "landlock":
            linux.drop_capabilities()


def _mount_own_folders(disk_mb: int) -> None:
    """In memory, with one limit for all, and for this process and its children only: they end with the last of these."""
    linux.unshare(linux.NEW_MOUNTS | linux.NEW_IPC)
    linux.keep_mounts_private()
    first = leftovers.SHARED[0]
    linux.mount("tmpfs", first, f"size={disk_mb}m,nr_inodes={FILES},mode=755", flags=linux.NO_SETUID)
    opened: dict[int, str] = {}
    for place in reversed(leftovers.SHARED):  # the first last: it hides what the others lie in
        if Path(place).is_dir():
            own = Path(first, place.replace("/", "-"))
            own.mkdir()
            own.chmod(0o1777)
            opened[os.open(own, os.O_PATH)] = place
    for descriptor, place in opened.items():
        linux.bind(f"/proc/self/fd/{descriptor}", place)
        os.close(descriptor)
