"""The folders that one module builds projects in and another deploys them from, and whose they are.

A workspace is `<root>/<name>/`. Its owner stands outside of it, in `<root>/.tasks/<name>/task.json`: what works in a
workspace may do there what it likes. It keeps apart what agents do by accident; an agent that is hostile, and runs as the
user whom the folders belong to, could change the record of another's.
"""

import contextlib
import json
import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

RECORDS = ".tasks"
"""The folder in a root that holds what is known of its workspaces."""

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


def is_workspace_name(name: str) -> bool:
    """Whether a workspace may be called so: no dots, no slashes, nothing that two file systems read differently."""
    return _NAME.fullmatch(name) is not None


def owner_of(root: Path, name: str) -> str | None:
    """The user whose workspace this is; `None` if there is none of this name."""
    if not is_workspace_name(name):
        return None
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        owner = json.loads((root / RECORDS / name / "task.json").read_text("utf-8"))["user_id"]
        return owner if isinstance(owner, str) and owner else None
    return None


@dataclass(frozen=True, slots=True)
class Project:
    """A folder in a workspace: `parts` lead to it from `root`, none of which was a link when it was found."""

    root: Path
    parts: tuple[str, ...]

    @property
    def name(self) -> str:
        """The folder's own."""
        return self.parts[-1]

    @contextmanager
    def opened(self) -> Generator[int]:
        """The open folder. Links put there since it was found are not followed. Raises `OSError`."""
        folder = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for part in self.parts:
                inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
                os.close(folder)
                folder = inner
            yield folder
        finally:
            os.close(folder)


def find_project(path: str, *, user_id: str, roots: tuple[Path, ...]) -> Project | None:
    """The project that `path` leads to, if it lies in a workspace of this user under one of the roots, else `None`.

    Links are followed first and judged by where they end. The answer is the same for what does not exist and for
    what is another user's.
    """
    with contextlib.suppress(OSError, ValueError, RuntimeError):  # too long, a null byte, a loop of links
        real = Path(path).resolve(strict=True)
        for root in (root.resolve() for root in roots):
            if real != root and real.is_relative_to(root) and real.is_dir():
                parts = real.relative_to(root).parts
                is_hidden = any(part.startswith(".") for part in parts)
                return Project(root, parts) if not is_hidden and owner_of(root, parts[0]) == user_id else None
    return None
