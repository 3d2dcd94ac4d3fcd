"""Writes and reads `.toolfleet/run.json`, which tells the other commands of the `toolfleet up` that runs in a folder."""

import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from toolfleet_registry.contracts.message import DEFERS_BUILD

FOLDER = ".toolfleet"
NAME = "run.json"


class Process(BaseModel):
    """One of its processes. `state`: `starting`, `ready`, `stopping`, `restarting`, or `dead`, which ended again and again."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=DEFERS_BUILD)

    pid: int
    state: str


class RunFile(BaseModel):
    """`pid` is the `up` process; `settings` are those that it decided, named as in `Settings`; `flower_url` for people.

    `gateway_url` is for programs; their key is in no run file. `processes` are those that it runs, by name, as they were when they
    last changed.
    """

    model_config = ConfigDict(
        frozen=True, extra="ignore", ser_json_inf_nan="strings", defer_build=DEFERS_BUILD
    )  # a setting may be `inf`

    pid: int = Field(gt=0, lt=2**31)
    settings: dict[str, Any]
    flower_url: str | None = None
    gateway_url: str | None = None
    processes: dict[str, Process] = {}

    def write(self, folder: Path) -> Path:
        """Write it into `folder/.toolfleet` in one step, so that no reader sees half of it."""
        path = folder / FOLDER / NAME
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}")
        draft.touch(mode=0o600)  # a URL may hold a password
        draft.write_text(self.model_dump_json(indent=2), encoding="utf-8")
        draft.replace(path)
        return path


def find_run_file(start: Path) -> RunFile | None:
    """The nearest one in `start` or a folder above whose process still lives."""
    found = find_running(start)
    return None if found is None else found[1]


def find_running(start: Path) -> tuple[Path, RunFile] | None:
    """The same, with the `.toolfleet` folder in which it lies."""
    for folder in (start, *start.parents):
        found = _read(folder / FOLDER / NAME)
        if found is not None:
            return folder / FOLDER, found
    return None


def _read(path: Path) -> RunFile | None:
    try:
        run_file = RunFile.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
    return run_file if _lives(run_file.pid) else None


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's, so it lives
        return True
    return True
