"""Makes temporary folders that are removed with their owner: by itself, or, where it was killed, by the next host that starts."""

import contextlib
import fcntl
import os
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Self

# Folders of this name have a lock, which their owner has as long as it lives: no other process may take it for dead.
_PREFIX = "toolfleet-own-"


class OwnFolder:
    """A folder of this process's at `path`. Its owner calls `remove`."""

    def __init__(self, path: Path, lock: int | None) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def make(cls) -> Self:
        """Make one. Raises `OSError`."""
        while True:
            path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            try:
                lock = _locked(path)
            except OSError:
                if path.is_dir():  # there are no locks here, so that no other process gets one either
                    return cls(path, None)
                continue
            if lock is not None and path.is_dir():
                return cls(path, lock)
            if lock is not None:  # it was taken for one that was left, in between
                os.close(lock)

    def remove(self) -> None:
        """Remove it with all that is in it, as far as that can be done."""
        lock, self._lock = self._lock, None
        shutil.rmtree(self.path, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def remove_abandoned() -> None:
    """Remove this user's folders, for root all, whose owners are dead. Raises nothing."""
    for path in _folders():
        with contextlib.suppress(OSError):
            lock = _locked(path)
            if lock is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)


def remove_abandoned_soon() -> None:
    """Remove them in the background: there may be many."""
    threading.Thread(target=remove_abandoned, name="toolfleet-leftovers", daemon=True).start()


def _folders() -> list[Path]:
    with contextlib.suppress(OSError):
        return list(Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"))
    return []


def _locked(path: Path) -> int | None:
    """The lock of a folder; closing it lets go of it. `None` if another process has it. Raises `OSError` if there is none to have."""
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.geteuid() not in {0, os.fstat(lock).st_uid}:  # root's may be another user's meanwhile
            raise PermissionError(path)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    except OSError:
        os.close(lock)
        raise
    return lock
