"""Notices that a module's Python files have changed, by their times and sizes: of a few hundred files that takes a few ms."""

import os
from pathlib import Path
from typing import TypeAlias

_MOST_FILES = 5_000
_NOT_SOURCE = {"__pycache__", "node_modules", "venv"}  # in addition to folders that begin with a dot

_Scan: TypeAlias = dict[Path, tuple[int, int]]


class SourceWatch:
    """The Python files of a folder and those below it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known = self._last = self._scan()

    def has_changed(self) -> bool:
        """Return whether they have changed since this was true last, and not since the last call: an editor that writes several has finished."""
        before, self._last = self._last, self._scan()
        if self._last == self._known or self._last != before:
            return False
        self._known = self._last
        return True

    def _scan(self) -> _Scan:
        found: _Scan = {}
        for folder, below, names in os.walk(self._folder):
            below[:] = [name for name in below if name not in _NOT_SOURCE and not name.startswith(".")]
            for name in names:
                if name.endswith(".py") and len(found) < _MOST_FILES:
                    found |= _facts(Path(folder, name))
        return found


def _facts(path: Path) -> _Scan:
    try:
        status = path.stat()
    except OSError:  # it has just gone
        return {}
    return {path: (status.st_mtime_ns, status.st_size)}
