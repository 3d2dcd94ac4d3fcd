"""What tests of the command share."""

import json
from pathlib import Path

import pytest

from support import command
from support.module_server import ModuleServer
from toolfleet_cli.doctor import workers


@pytest.fixture
def run(elsewhere: Path) -> command.Run:
    """Runs the command in this process, far from any other fleet."""
    return command.run


@pytest.fixture
def redis_run(run: command.Run, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> command.Run:
    """Runs the command with a Redis that it knows of."""
    monkeypatch.setenv("TOOLFLEET_REDIS_URL", redis_url)
    return run


@pytest.fixture
def owls_run(redis_run: command.Run, owls: ModuleServer, monkeypatch: pytest.MonkeyPatch) -> command.Run:
    """Runs the command with a Redis and a module that it knows of."""
    monkeypatch.setenv("TOOLFLEET_MODULE_SERVICES", json.dumps({"owls": owls.url}))
    return redis_run


@pytest.fixture
def no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """No worker answers the doctor, so that it need not wait for one."""
    monkeypatch.setattr(workers, "_ASK_SECONDS", 0.1)
