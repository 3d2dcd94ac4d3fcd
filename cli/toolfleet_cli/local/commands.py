"""Builds the command lines of a fleet's processes: Celery's own commands on our apps, and for workers one that starts sooner."""

import os
import sys

from toolfleet_tasks.queues import Lane

_CELERY = (sys.executable, "-m", "celery")
_TASKS_APP = "toolfleet_tasks.app"


def worker_command(lane: Lane, *, generation: int = 1) -> list[str]:
    """A worker. What it does comes from the environment; the lane in its name is for people.

    `generation`: it follows so many others of its lane, one of which may still run.
    """
    role = lane if generation == 1 else f"{lane}-{generation}"
    return [sys.executable, "-m", "toolfleet_workers", "--hostname", _node(role)]


def beat_command() -> list[str]:
    """Beat. It answers Celery's pings.

    Its schedule stays in memory: it does everything once at its start anyway, and the file that Celery keeps by
    default may be broken for good when beat is killed.
    """
    return [
        *_CELERY,
        "-A",
        _TASKS_APP,
        "beat",
        "--scheduler=toolfleet_tasks.control.beat:FleetScheduler",
        "--enable-remote-control",
        "--hostname",
        _node("beat"),
    ]


def flower_command(address: str, port: int) -> list[str]:
    """Flower; its other options come from the environment (`FLOWER_…`)."""
    return [*_CELERY, "-A", f"{_TASKS_APP}:flower", "flower", f"--address={address}", f"--port={port}"]


def gateway_command(port: int) -> list[str]:
    """A gateway for this machine only."""
    return [sys.executable, "-m", "toolfleet_cli", "gateway", "--port", str(port)]


def _node(role: str) -> str:
    """A name for Celery's remote control: the process id keeps two of a role on one machine apart."""
    return f"{role}-{os.getpid()}@%h"
