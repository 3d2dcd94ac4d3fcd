"""Collects what a program saved in its output folder, and in its /tmp. Looked at when nothing of the program lives any more.

Links are not followed, and what is no plain file with one name is left out.
"""

import base64
import os
import stat
from itertools import islice
from typing import Any

OUTPUT = "output"
TMP = "/tmp"  # noqa: S108 - named, not written to
SEEN_FILES = 1000  # of each folder; a program can make millions
_MB = 2**20


class Saved:
    """What the program saved, within limits for all folders together, and what of it is left out, and why."""

    def __init__(self, limits: dict[str, Any], most_bytes: int) -> None:
        self._room = limits["saved_mb"] * _MB
        self._most_files: int = limits["saved_files"]
        self._tries = self._most_files
        self._most_bytes = most_bytes
        self._in_output: frozenset[str] = frozenset()
        self.files: dict[str, str] = {}  # in base64
        self.left_out: list[tuple[str, str]] = []

    def collect_output(self, work: int) -> None:
        """Take the files from the folder below `work`, the first by their names if there are too many."""
        try:
            folder = os.open(OUTPUT, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=work)
        except OSError as exc:
            if not isinstance(exc, FileNotFoundError):
                self.left_out.append((OUTPUT, "it is no folder any more, or cannot be read"))
            return
        try:
            self._in_output = self._collect(folder, "", "")
        finally:
            os.close(folder)

    def collect_tmp(self, tmp: int, others: frozenset[str]) -> None:
        """Take the files directly in /tmp but `others`, after those of the output folder: of two with one name, that one counts."""
        self._collect(tmp, f"{TMP}/", f" in {TMP}", others)

    def _collect(self, folder: int, prefix: str, where: str, others: frozenset[str] = frozenset()) -> frozenset[str]:
        """Returns the names that it has seen."""
        with os.scandir(folder) as entries:
            found = (entry.name for entry in entries if entry.name not in others)
            names = sorted(islice(found, SEEN_FILES + 1))
        tried = names[: self._tries]
        for name in tried:
            self._take(name, folder, prefix)
        self._tries -= len(tried)
        if surplus := len(names) - len(tried):
            many = f"{surplus} more" if len(names) <= SEEN_FILES else f"more than {SEEN_FILES - len(tried)} more"
            self.left_out.append((many + where, f"{self._most_files} files are saved at most"))
        return frozenset(names)

    def _take(self, name: str, folder: int, prefix: str) -> None:
        shown = prefix + os.fsencode(name).decode("utf-8", "backslashreplace")
        if name in self._in_output:
            self.left_out.append((shown, f"the one in {OUTPUT}/ has the same name"))
            return
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
