"""Runs scenarios of the suite, and reads what they have found."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from conformance.packages import installed, suite_command
from conformance.results import Check, Report, Scenario, read
from support.worker_process import TESTS

Side = Literal["server", "client"]

REVISIONS = ("2026-07-28", "2025-11-25")
"""The requirement sets that the suite has."""

CLIENT_OPTIONS = ["--command", f"env PYTHONPATH={TESTS} {sys.executable} -m conformance.client", "--timeout", "60000"]
"""What is tried as a client: the host of MCP servers, as a module that is asked for all it has."""

_TASKS = "tasks-"
_NOT_TRIED = {
    "auth/enterprise-managed-authorization": "it exchanges the identity of one user, and a host has tokens for all of its callers",
    "auth/dpop": "the official SDK's client sends bearer tokens only",
    "auth/dpop-nonce": "the official SDK's client sends bearer tokens only",
    "auth/wif-jwt-bearer": "the official SDK has no client that presents a workload's own token as its grant",
}
_CLIENTS = 2  # at once
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


def run_server_set(revision: str, options: Sequence[str], folder: Path) -> list[Report]:
    """All scenarios of a set for servers; `options` say what is tried. Results are written below `folder`."""
    began = time.monotonic()
    found = _run(["server", *options, "--requirements", revision], folder)
    return _reports("server", revision, found, time.monotonic() - began)


def run_client_set(revision: str, options: Sequence[str], folder: Path) -> list[Report]:
    """The same for clients, a few at once: the suite itself starts all clients of a set together, too many for two cores."""
    began = time.monotonic()
    wanted = requirements(revision, "client")
    names = [*wanted.scored, *wanted.beside]
    found = {
        name: Scenario(name, (Check("not-tried", "SKIPPED", _NOT_TRIED[name]),)) for name in names if name in _NOT_TRIED
    }

    def tried(name: str) -> Scenario | None:
        # Extensions stand in a set's list, and the suite takes them for no part of its revision.
        words = ["client", *options, "--scenario", name, "--spec-version", revision, "--force"]
        return _run(words, folder / name).get(name)

    with ThreadPoolExecutor(_CLIENTS) as clients:
        for scenario in clients.map(tried, [name for name in names if name not in found]):
            if scenario is not None:
                found[scenario.name] = scenario
    return _reports("client", revision, found, time.monotonic() - began)


def run_scenario(side: Side, name: str, revision: str, options: Sequence[str], folder: Path) -> Report:
    """One scenario, whatever the revision."""
    began = time.monotonic()
    found = _run([side, *options, "--scenario", name, "--spec-version", revision, "--force"], folder)
    return Report.of(f"{side} {revision} {name}", found, [name], time.monotonic() - began)


def _reports(side: Side, revision: str, found: Mapping[str, Scenario], seconds: float) -> list[Report]:
    wanted = requirements(revision, side)
    parts = {"scored": wanted.scored, "not scored": wanted.beside, "tasks": wanted.tasks}
    return [Report.of(f"{side} {revision} {part}", found, names, seconds) for part, names in parts.items() if names]


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
