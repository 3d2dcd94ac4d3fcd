"""Writes and reads `.toolfleet/run.json`, which tells the other commands of the `toolfleet up` that runs in a folder."""

import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from toolfleet_registry.contracts.message import DEFERS_BUILD
from toolfleet_registry.contracts.names import ARTIFACTS, PROGRAMS, SCHEDULER

FOLDER = ".toolfleet"
NAME = "run.json"
ANY_MODULE = "*"


class ListedProcess(BaseModel):
    """One of its processes. `state`: `starting`, `ready`, `stopping`, `restarting`, or `dead`, which ended again and again.

    `module`: the one that it serves, if it serves one.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=DEFERS_BUILD)

    pid: int
    state: str
    module: str | None = None


class RunFile(BaseModel):
    """`pid` is the `up` process; `settings` are those that it decided, named as in `Settings`; `flower_url` for people.

    `gateway_url` is for programs; their key is in no run file. `processes` are those that it runs, by name, as they were when they
    last changed. `not_applied` says of lines of `toolfleet.toml` why they are not in effect, by module, `ANY_MODULE` where it may be each, "" for others.
    """

    model_config = ConfigDict(
        frozen=True, extra="ignore", ser_json_inf_nan="strings", defer_build=DEFERS_BUILD
    )  # a setting may be `inf`

    pid: int = Field(gt=0, lt=2**31)
    settings: dict[str, Any]
    flower_url: str | None = None
    gateway_url: str | None = None
    processes: dict[str, ListedProcess] = {}
    not_applied: dict[str, str] = {}

    @property
    def not_ready(self) -> dict[str, str]:
        """Return, for each module that no process serves now, what one of its processes is doing and how to see why."""
        served = {each.module for each in self.processes.values() if each.state == "ready"}
        return {
            each.module: f"its process is {each.state}: `toolfleet logs {name}` shows why"
            + (f", `toolfleet restart {name}` gives it another try" if each.state == "dead" else "")
            for name, each in self.processes.items()
            if each.module is not None and each.module not in served
        }

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
    """Return the nearest run file of a live process, in `start` or a folder above."""
    found = find_running(start)
    return None if found is None else found[1]


def run_file_of(redis_url: str | None) -> RunFile | None:
    """Return that of the `up` that runs here, if it is the fleet of this Redis."""
    found = find_run_file(Path.cwd())
    return found if found is not None and found.settings.get("redis_url") == redis_url else None


def why_not_applied(module: str, redis_url: str | None) -> str | None:
    """Return why the lines of `toolfleet.toml` for a module are not in effect in the `up` that runs here; `None` if they are."""
    lines = {} if (found := run_file_of(redis_url)) is None else found.not_applied
    return lines.get(module) or lines.get(ANY_MODULE)


def unknown_module(module: str, redis_url: str | None) -> str:
    """Say that the fleet of this Redis has no such module, and why, where that is known."""
    why = why_not_applied(module, redis_url)
    if why is None and module == SCHEDULER:
        why = "TOOLFLEET_SCHEDULER=true, for agents, gateways, workers and beat alike, has the fleet offer it."
    if why is None and module == ARTIFACTS:
        why = "TOOLFLEET_ARTIFACT_STORE, for agents, gateways, workers and beat alike, has the fleet offer it."
    if why is None and module == PROGRAMS:
        why = "TOOLFLEET_PROGRAMS=true, for agents, gateways, workers and beat alike, has the fleet offer it."
    return f"Unknown module: {module}" + (f". {why}" if why else "")


def find_running(start: Path) -> tuple[Path, RunFile] | None:
    """Return the same, with the `.toolfleet` folder in which it lies."""
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
    except PermissionError:  # another user's, so it lives
        return True
    return True


def left_logs(start: Path) -> Path | None:
    """Return the nearest folder of logs that a `toolfleet up` has left, here or above."""
    candidates = (folder / FOLDER / "logs" for folder in (start, *start.parents))
    return next((each for each in candidates if each.is_dir()), None)
