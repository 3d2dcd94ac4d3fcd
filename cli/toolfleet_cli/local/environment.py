"""Builds the command lines of a fleet's processes, and writes settings as the environment variables that these read."""

import json
import os
import sys

from toolfleet_registry.config.setting_sources import ENVIRONMENT_ONLY
from toolfleet_registry.headers import headers_by_module
from toolfleet_registry.settings import NULL, PREFIX, Settings
from toolfleet_tasks.queues import Lane

FLOWER_LOGIN = "FLOWER_BASIC_AUTH"
"""The variable with the names and passwords that Flower asks for; Flower takes an empty one for none."""

# An empty text would leave them to a `toolfleet.toml`, where the one may be without the other.
_NOTHING = {
    "signing_key": NULL,
    "signing_keys_old": "[]",
    "require_signed_results": "false",
    "core_secret": NULL,
    "core_url": NULL,
    "registry_webhooks": "{}",
    "registry_webhooks_secret": NULL,
    "approvals": "{}",
    "module_headers": "{}",
    "gateway_key": NULL,
}

SECRETS = frozenset(_NOTHING)
"""Settings that sign, admit or wake, and those that depend on them: only the processes that need them get them."""

_CELERY = (sys.executable, "-m", "celery")
_TASKS_APP = "toolfleet_tasks.app"


def no_secrets() -> dict[str, str]:
    """Return variables that unset the `SECRETS` for a child, in any spelling that this process has."""
    names = {f"{PREFIX}{name.upper()}": nothing for name, nothing in _NOTHING.items()}
    return {variable: names[variable.upper()] for variable in {*names, *os.environ} if variable.upper() in names}


def flower_environment(settings: Settings) -> dict[str, str]:
    """Return the variables for Flower, which reads no file."""
    others = {f"{PREFIX}HOSTS": "{}", f"{PREFIX}SECRETS": "{}", f"{PREFIX}REGISTRY_URL": NULL}
    return {**environment_of(settings), **no_secrets(), **others}


def environment_of(settings: Settings) -> dict[str, str]:
    """Return `TOOLFLEET_…` variables that `load_settings` reads back as equal settings."""
    values = settings.model_dump(mode="json")
    values["module_headers"] = {name: own.plain() for name, own in headers_by_module(settings.module_headers).items()}
    written = {f"{PREFIX}{name.upper()}": _written(value) for name, value in values.items() if value is not None}
    return {**written, ENVIRONMENT_ONLY: "1"}


def _written(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def worker_command(lane: Lane, *, generation: int = 1) -> list[str]:
    """Return the command of a worker. It is set up by the environment; the lane in its name is for people.

    `generation` counts the workers of its lane, as the one before may still run.
    """
    role = lane if generation == 1 else f"{lane}-{generation}"
    return [sys.executable, "-m", "toolfleet_workers", "--hostname", _node(role)]


def beat_command() -> list[str]:
    """Return the command of beat, which answers Celery's pings.

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
    """Return the command of Flower; its other options come from the environment (`FLOWER_…`)."""
    return [*_CELERY, "-A", f"{_TASKS_APP}:flower", "flower", f"--address={address}", f"--port={port}"]


def gateway_command(port: int) -> list[str]:
    """Return the command of a gateway for this machine only."""
    return [sys.executable, "-m", "toolfleet_cli", "gateway", "--port", str(port)]


def _node(role: str) -> str:
    """Return a name for Celery's remote control: the process id keeps two of a role on one machine apart."""
    return f"{role}-{os.getpid()}@%h"
