"""Ends and removes what programs have left whose launcher was killed. Their launchers do it otherwise.

Called when no program runs, or for a user id that is to be nobody else's.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import stat
import time
from collections.abc import Callable, Generator, Iterator
from functools import partial
from operator import eq
from pathlib import Path
from tempfile import gettempdir

from modules.sandboxes import owners

PREFIX = "run_python-"
SHARED = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - where a program can leave files outside of its folder
_END_SECONDS = 5
_PAUSE_SECONDS = 0.005


def has_lost_its_launcher(user: int) -> bool:
    """Whether it is the user id of a program whose launcher is no more: that is the process which the id is named after."""
    launcher = owners.process_of(user)
    if launcher is None:
        return False
    try:
        return b"launcher.py" not in Path(f"/proc/{launcher}/cmdline").read_bytes()
    except OSError:
        return True


def end_users(is_theirs: Callable[[int], bool]) -> None:
    """End the processes of such user ids."""
    _end(lambda process: is_theirs(process.stat().st_uid))


def remove_users(is_theirs: Callable[[int], bool]) -> None:
    """End the processes of such user ids, and remove their files in shared folders, however deep they lie."""
    end_users(is_theirs)
    for folder in SHARED:
        for found in list(_left_in(folder, is_theirs)):
            _remove(found)


def remove_own_folders() -> None:
    """End the processes that were started in programs' folders with our own user id, and remove these. No such program may run."""
    home = f"HOME={gettempdir()}/{PREFIX}".encode()
    _end(lambda process: process.stat().st_uid == os.geteuid() and home in (process / "environ").read_bytes())
    for folder in _folders(lambda user: user == os.geteuid()):
        with contextlib.suppress(OSError):
            if not folder.is_symlink():
                folder.chmod(0o700)  # its program may have closed it
            with lock_folder(folder):
                _remove(folder)


def remove_users_folders() -> None:
    """Remove the folders of programs' user ids that no launcher has locked any more, and end these users' processes."""
    for folder in _folders(lambda user: owners.process_of(user) is not None):
        with contextlib.suppress(OSError), lock_folder(folder) as user:
            end_users(partial(eq, user))
            _remove(folder)


@contextlib.contextmanager
def lock_folder(folder: Path) -> Generator[int]:
    """Keep others from removing it. Gives its owner; raises `OSError` if somebody else has locked it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield os.fstat(descriptor).st_uid
    finally:
        os.close(descriptor)


def _left_in(folder: str, is_theirs: Callable[[int], bool]) -> Iterator[Path]:
    """Looks where everybody may write: elsewhere such users have nothing."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                if is_theirs(status.st_uid):
                    yield Path(entry.path)
                elif stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_IWOTH:
                    yield from _left_in(entry.path, is_theirs)


def _folders(is_theirs: Callable[[int], bool]) -> Iterator[Path]:
    for folder in Path(gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if is_theirs(folder.lstat().st_uid):
                yield folder


def _end(is_theirs: Callable[[Path], bool]) -> None:
    """Raises `RuntimeError` if they do not end in time: then nothing else may be started."""
    give_up_at = time.monotonic() + _END_SECONDS
    while found := list(_processes(is_theirs)):
        if time.monotonic() > give_up_at:
            raise RuntimeError(f"processes that a program has left do not end: {found}")
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE_SECONDS)


def _processes(is_theirs: Callable[[Path], bool]) -> Iterator[int]:
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_dead = (process / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
            if not is_dead and int(process.name) != os.getpid() and is_theirs(process):
                yield int(process.name)


def _remove(found: Path) -> None:
    if found.is_dir() and not found.is_symlink():
        _open_up(found)
        shutil.rmtree(found, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            found.unlink()


def _open_up(folder: Path) -> None:
    """Of what its program has closed, a user without privileges must open folder by folder before it can be removed."""
    folder.chmod(0o700)
    for path, folders, _ in os.walk(folder):
        for name in folders:
            below = Path(path, name)
            if not below.is_symlink():
                with contextlib.suppress(OSError):
                    below.chmod(0o700)
