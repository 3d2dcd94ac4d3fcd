"""Runs scenarios of the suite, and reads what they have found."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from conformance.packages import installed, suite_command
from conformance.results import Report, Scenario, read

Side = Literal["server", "client"]

REVISIONS = ("2026-07-28", "2025-11-25")
"""The requirement sets that the suite has."""

_TASKS = "tasks-"
_SET_SECONDS = 600


@dataclass(frozen=True)
class Requirements:
    """The scenarios of one revision: those that are scored, those that run beside, and those of tasks among them."""

    scored: tuple[str, ...]
    beside: tuple[str, ...]
    tasks: tuple[str, ...]


def requirements(revision: str, side: Side) -> Requirements:
    """What the suite has of a revision for servers or clients."""
    text = (installed() / "requirements" / f"{revision}.yaml").read_text()
    known: dict[str, Any] = yaml.safe_load(text)
    beside = [each["scenario"] for each in known["not_scored"] if each["leg"] == side]
    tasks = tuple(name for name in beside if name.startswith(_TASKS))
    return Requirements(tuple(known[side]), tuple(name for name in beside if name not in tasks), tasks)


def run_set(side: Side, revision: str, options: Iterable[str], folder: Path) -> list[Report]:
    """All scenarios of a set; `options` say what is tried. Results are written below `folder`."""
    began = time.monotonic()
    found = _run([side, *options, "--requirements", revision], folder)
    seconds = time.monotonic() - began
    wanted = requirements(revision, side)
    parts = {"scored": wanted.scored, "not scored": wanted.beside, "tasks": wanted.tasks}
    return [Report.of(f"{side} {revision} {part}", found, names, seconds) for part, names in parts.items() if names]


def run_scenario(side: Side, name: str, revision: str, options: Iterable[str], folder: Path) -> Report:
    """One scenario, whatever the revision."""
    began = time.monotonic()
    found = _run([side, *options, "--scenario", name, "--spec-version", revision, "--force"], folder)
    return Report.of(f"{side} {revision} {name}", found, [name], time.monotonic() - began)


def _run(words: list[str], folder: Path) -> dict[str, Scenario]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            [*suite_command(), *words, "-o", str(folder)],
            env={**os.environ, "NO_COLOR": "1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(_SET_SECONDS)
        except subprocess.TimeoutExpired:
            pass  # what has not run then, has failed
        finally:
            _end(process)
    return read(folder)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what still runs: the suite, and the clients that it has started, are a group of their own."""
    if process.poll() is None:
        os.killpg(process.pid, 9)
        process.wait()
