"""Has the kernel refuse a process, and all that it starts, every file that is not listed: Landlock, since Linux 5.13.

It takes no privileges and is for good. Names and sizes can still be asked for, owners and times changed: whose user is not the
program's own is safe from the latter. Raises `OSError`.
"""

import os
import stat
import struct
from collections.abc import Iterable

from modules.sandboxes import linux

_CREATE, _ADD, _ENFORCE = 444, 445, 446  # the same numbers on every architecture
_ASK_VERSION = 1
_BENEATH = 1

_READ = 1 << 0 | 1 << 2 | 1 << 3  # execute, read a file, list a folder
_OF_FILES = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15  # execute, write, read, truncate, control
_MAKE_DEVICES = 1 << 6 | 1 << 11
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}  # how many each version knows
_SIZES = {1: 8, 2: 8, 3: 8, 4: 16, 5: 16, 6: 24}  # of what says which are refused
_SCOPES = 1 | 2  # abstract sockets and signals of processes that are not restricted in the same way


def restrict_files(*, readable: Iterable[str], writable: Iterable[str]) -> None:
    """Refuse everything but to read what is `readable`, and all but making devices in what is `writable`."""
    version = linux.call(_CREATE, None, 0, _ASK_VERSION)
    rights = (1 << _RIGHTS[min(version, max(_RIGHTS))]) - 1
    size = _SIZES[min(version, max(_SIZES))]
    ruleset = linux.call(_CREATE, struct.pack("QQQ", rights, 0, _SCOPES)[:size], size, 0)
    try:
        for path in readable:
            _allow(ruleset, path, _READ)
        for path in writable:
            _allow(ruleset, path, rights & ~_MAKE_DEVICES)
        linux.gain_no_privileges()
        linux.call(_ENFORCE, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    place = os.open(path, os.O_PATH)
    try:
        known = rights if stat.S_ISDIR(os.fstat(place).st_mode) else rights & _OF_FILES
        linux.call(_ADD, ruleset, _BENEATH, struct.pack("=Qi", known, place), 0)
    finally:
        os.close(place)
