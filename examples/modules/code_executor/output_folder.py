"""Collects what a program saved in its output folder. Looked at when nothing of the program lives any more.

Links are not followed, and what is no plain file with one name is left out.
"""

import base64
import os
import stat
from itertools import islice
from typing import Any

OUTPUT = "output"
SEEN_FILES = 1000  # of the output folder; a program can make millions
_MB = 2**20


class Saved:
    """What the program saved in its output folder, within limits, and what of it is left out, and why."""

    def __init__(self, limits: dict[str, Any], most_bytes: int) -> None:
        self._room = limits["saved_mb"] * _MB
        self._most_files: int = limits["saved_files"]
        self._most_bytes = most_bytes
        self.files: dict[str, str] = {}  # in base64
        self.left_out: list[tuple[str, str]] = []

    def collect(self, work: int) -> None:
        """Take the files from the folder below `work`, the first by their names if there are too many."""
        try:
            folder = os.open(OUTPUT, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=work)
        except OSError as exc:
            if not isinstance(exc, FileNotFoundError):
                self.left_out.append((OUTPUT, "it is no folder any more, or cannot be read"))
            return
        try:
            with os.scandir(folder) as entries:
                names = sorted(entry.name for entry in islice(entries, SEEN_FILES + 1))
            for name in names[: self._most_files]:
                self._take(name, folder)
        finally:
            os.close(folder)
        if surplus := len(names) - self._most_files:
            many = f"{surplus} more" if len(names) <= SEEN_FILES else f"more than {SEEN_FILES - self._most_files} more"
            if surplus > 0:
                self.left_out.append((many, f"{self._most_files} files are saved at most"))

    def _take(self, name: str, folder: int) -> None:
        shown = os.fsencode(name).decode("utf-8", "backslashreplace")
        try:
            data = self._content(name, folder)
        except ValueError as exc:
            self.left_out.append((shown, str(exc)))
        except OSError:
            self.left_out.append((shown, "it cannot be read"))
        else:
            self._room -= len(data)
            self.files[name] = base64.b64encode(data).decode()

    def _content(self, name: str, folder: int) -> bytes:
        """Raises `ValueError` with the reason for which a file is left out, or `OSError`."""
        # Looked at before it is opened: what a pipe or a device does then, nobody knows.
        first = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if not name.isprintable():  # half characters, too: what Python makes of a name that is not UTF-8
            raise ValueError("its name has what cannot be printed")
        if not stat.S_ISREG(first.st_mode):
            raise ValueError("it is no file: links, folders and the like are not saved")
        with os.fdopen(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder), "rb") as file:
            status = os.fstat(file.fileno())
            if status.st_nlink != 1 or not os.path.samestat(first, status):
                raise ValueError("it has another name elsewhere, which is a hard link")
            most = min(self._most_bytes, self._room)
            data = file.read(most + 1) if status.st_size <= most else b""
        if max(len(data), status.st_size) > most:
            whose = "a file may have" if most == self._most_bytes else "are left of what one program may save"
            raise ValueError(f"it has {status.st_size} bytes; {most} {whose}")
        return data
