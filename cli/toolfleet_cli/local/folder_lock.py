"""Locks a folder for one fleet: two Redis servers on the same data would destroy them."""

import fcntl
import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from toolfleet_cli.local.orphan_reaper import PATIENCE_SECONDS
from toolfleet_registry.errors import FolderInUse

_NAME = "lock"
_POLL_SECONDS = 0.1
_WAIT_SECONDS = PATIENCE_SECONDS * 2  # what a killed fleet leaves behind is gone by then


@contextmanager
def folder_lock(folder: Path, *, check: Callable[[], None] = lambda: None) -> Generator[int]:
    """Own `folder`, which is made if need be, for us and for every child that inherits the yielded descriptor.

    A fleet that was killed may take a moment to be gone: waits for that, calling `check`. Raises `FolderInUse`.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(folder / _NAME, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        give_up_at = time.monotonic() + _WAIT_SECONDS
        while not _take(lock):
            check()
            holder = _holder(lock)
            if holder is not None or time.monotonic() > give_up_at:
                raise FolderInUse(folder, holder)
            time.sleep(_POLL_SECONDS)
        os.truncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
        yield lock
    finally:
        os.close(lock)


def _take(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(lock: int) -> int | None:
    """The process that took the lock, if it lives; else only its children hold it still."""
    text = os.pread(lock, 20, 0)
    if not text.isdigit():
        return None
    try:
        os.kill(int(text), 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        return int(text)
    return int(text)
