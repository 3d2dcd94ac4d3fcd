"""Reads the lines that are added to a log file, also when a new file takes its place."""

import os
from pathlib import Path
from typing import BinaryIO

_MOST_BYTES = 256 * 2**10  # of one look
_LONGEST_LINE = 64 * 2**10
_BLOCK = 64 * 2**10


class LogTail:
    """A log file's lines from now on, and before them its last `lines`."""

    def __init__(self, path: Path, *, lines: int = 0) -> None:
        self._path = path
        self._inode = 0
        self._offset = 0
        self._rest = b""
        try:
            with path.open("rb") as file:
                self._inode = os.fstat(file.fileno()).st_ino
                self._offset = _start_of_last(file, lines)
        except OSError:
            pass  # it may come

    def read(self) -> list[str]:
        """The whole lines that have come, without their ends: some 256 kB of them at most. None where there is no file."""
        try:
            with self._path.open("rb") as file:
                text = self._rest + self._more(file)
        except OSError:
            return []
        *lines, self._rest = text.split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            lines, self._rest = [*lines, self._rest], b""
        return [line.decode(errors="replace").rstrip("\r") for line in lines]

    def rest(self) -> list[str]:
        """Return the unfinished last line, if there is one, when reading ends."""
        rest, self._rest = self._rest, b""
        return [rest.decode(errors="replace")] if rest else []

    def _more(self, file: BinaryIO) -> bytes:
        status = os.fstat(file.fileno())
        if status.st_ino != self._inode or status.st_size < self._offset:  # a new one, or it was emptied
            self._inode, self._offset, self._rest = status.st_ino, 0, b""
        file.seek(self._offset)
        more = file.read(_MOST_BYTES)
        self._offset += len(more)
        return more


def _start_of_last(file: BinaryIO, lines: int) -> int:
    """Return where the last so many lines begin."""
    end = start = file.seek(0, os.SEEK_END)
    if lines == 0:
        return end
    found = 0
    while start > 0:
        size = min(_BLOCK, start)
        start -= size
        file.seek(start)
        block = file.read(size)
        at = len(block) - 1 if start + size == end and block.endswith(b"\n") else len(block)
        while (at := block.rfind(b"\n", 0, at)) >= 0:
            found += 1
            if found == lines:
                return start + at + 1
    return 0
