"""Chooses the user ids that programs have outside of their sandboxes, and gives folders to them. Only root has a choice."""

import contextlib
import os
import zlib
from pathlib import Path

_FIRST_ID = 0x70000000  # beyond the ids that systems give to people and services
_PROCESS_IDS = 2**22  # the most that a kernel counts to
_LASTING_IDS = 2**27
_NOBODY = 65534


def id_of_this_process() -> int:
    """A user and group id to run something as once: no other process's, or `nobody` where root has no such."""
    return _had(_FIRST_ID + os.getpid())


def own_id_of_this_process() -> int:
    """As `id_of_this_process`. Raises `OSError` where that is an id that others may have as well."""
    if (user := id_of_this_process()) == _NOBODY:
        raise OSError("there are no user ids to give away")
    return user


def process_of(user: int) -> int | None:
    """The process whose `id_of_this_process` it is. It may have ended; other ids are nobody's."""
    return user - _FIRST_ID if _FIRST_ID <= user < _FIRST_ID + _PROCESS_IDS else None


def lasting_id(name: str) -> int:
    """The id for what bears this name, the same each time: what it has written stays its own."""
    return _had(_FIRST_ID + _PROCESS_IDS + zlib.crc32(name.encode()) % _LASTING_IDS)


def give_away(folder: Path, user: int) -> None:
    """Make the user the owner of the folder and all in it. Links are not followed; nobody else may work there meanwhile."""
    for _, folders, files, here in os.fwalk(folder, follow_symlinks=False):
        for name in (".", *folders, *files):
            if os.stat(name, dir_fd=here, follow_symlinks=False).st_uid != user:
                os.chown(name, user, user, dir_fd=here, follow_symlinks=False)


def _had(wish: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/uid_map").read_text().splitlines():
            first, _, count = map(int, line.split())
            if first <= wish < first + count:
                return wish
    return _NOBODY
