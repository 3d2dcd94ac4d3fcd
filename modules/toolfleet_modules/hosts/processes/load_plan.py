"""Says which files a process is to import, and what came of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PACKAGE = "_toolfleet_tools"
"""What the files are imported as: `_toolfleet_tools.owls`; files import each other with `from . import owls`."""


@dataclass(frozen=True, slots=True)
class SourceText:
    """A file's path and its text."""

    path: str
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The files that a process can import, by their names without `.py`, and those that it imports now.

    A result over `result_bytes` is refused.

    `packages` is a folder of the files' packages. `named` are functions by dotted paths, which Python looks for in
    `python_path`, too. `exception_text`: models read the texts of exceptions.
    """

    module: str
    files: Mapping[str, SourceText]
    stems: Sequence[str]
    threads: int
    result_bytes: int
    packages: str | None = None
    named: Sequence[str] = ()
    python_path: Sequence[str] = ()
    exception_text: bool = False


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """The tools of each file, and the faults: `(kind, message, line)`."""

    offered: Mapping[str, Sequence[Mapping[str, Any]]]
    faults: Mapping[str, tuple[str, str, int | None]]
