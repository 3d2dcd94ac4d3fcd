"""Says how a host serves a tool folder."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from toolfleet_modules.hosts.fence import Fence
from toolfleet_modules.hosts.folder.packages import InstallOptions
from toolfleet_modules.hosts.folder.scan import ScanRules
from toolfleet_modules.hosts.host import HostOptions

Security = Literal["off", "warn", "strict"]
"""Whether files are scanned before they are imported, and whether one with a finding is refused."""


@dataclass(frozen=True, slots=True)
class FolderOptions(HostOptions):
    """The options of a folder's host.

    `folder` may be missing. `named`: functions by dotted paths, of the `trusted` namespaces only, which Python looks
    for in `python_path`, too. `packages`: how the files' packages are installed.

    `load_seconds`: for one file to be imported; `debounce_ms`: how long changes are gathered at most; `is_lazy`: files
    are imported with the first call of one of their tools; `threads`: of plain functions at once; `processes`: of tools
    with `runs_in="process"`. Calls may continue in the previous generation for `longest_call_seconds`. `owners_file`
    keeps, over restarts of the host, which of two files with a tool of one name serves it. With `exception_text` models
    read the texts of exceptions.
    """

    folder: Path | None
    named: Sequence[str] = ()
    trusted: frozenset[str] = frozenset()
    python_path: Sequence[str] = ()
    owners_file: Path | None = None
    exception_text: bool = False
    security: Security = "warn"
    rules: ScanRules = field(default_factory=ScanRules)
    fence: Fence = field(default_factory=Fence)
    packages: InstallOptions = field(default_factory=lambda: InstallOptions(Path(".toolfleet/environments").resolve()))
    debounce_ms: int = 500  # a save of many files, or a checkout, is one reload
    load_seconds: float = 10.0
    is_lazy: bool = False
    threads: int = 32
    processes: int = os.cpu_count() or 1
