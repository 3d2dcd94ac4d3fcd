"""What lies in a workspace, as far as a model wants to know."""

import os
from pathlib import Path

SHOWN = 50
_LOOKED_AT = 2000  # entries: an agent may have installed the world
_SKIPPED = frozenset({"node_modules", "__pycache__"})


def list_files(workspace: Path) -> tuple[list[str], bool]:
    """Some of the files, sorted, and whether there are more. Links are neither followed nor shown."""
    found: list[str] = []
    looked_at = 0
    for folder, folders, names in os.walk(workspace):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _SKIPPED)
        for name in sorted(names):
            path = Path(folder, name)
            if not name.startswith(".") and not path.is_symlink() and path.is_file():
                found.append(_shown(path.relative_to(workspace)))
        looked_at += len(names) + len(folders)
        if looked_at > _LOOKED_AT or len(found) > _LOOKED_AT:
            return sorted(found)[:SHOWN], True
    return sorted(found)[:SHOWN], len(found) > SHOWN


def _shown(path: Path) -> str:
    """The path as text: a name may have any bytes, and an answer must be UTF-8."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
