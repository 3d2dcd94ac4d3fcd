"""`toolfleet host folder` as a process of its own."""

import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.programs.fork_server import Process, start
from support.up import leave_nothing

OWL_TOOL = '''
from toolfleet.sdk import tool

@tool(effect="read")
def hoot(day: int = 1) -> str:
    """Hoot."""
    return f"hoot {day}"
'''


@dataclass
class HostProcess:
    """A host that serves `folder`, and what it has written."""

    folder: Path
    process: Process
    output: Path

    def said(self) -> str:
        return self.output.read_text(errors="replace")


@contextmanager
def folder_host_process(
    folder: Path, *options: str, env: Mapping[str, str], name: str = "owls"
) -> Generator[HostProcess]:
    """Serve a folder as `owls`; whatever happens, nothing is left of it."""
    folder.mkdir(exist_ok=True)
    if not any(folder.iterdir()):
        (folder / "hoot.py").write_text(OWL_TOOL)
    output = folder.parent / f"{folder.name}-{len([*folder.parent.glob('*.txt')])}.txt"
    with output.open("wb") as file:
        command = [sys.executable, "-m", "toolfleet_cli", "host", "folder", str(folder), "--name", name, *options]
        process = start(command, cwd=folder.parent, env=env, output=file)
    try:
        yield HostProcess(folder, process, output)
    finally:
        leave_nothing(process)
