"""A worker started with the wrong app."""

import subprocess
import sys
from pathlib import Path

import kombu
import pytest

from toolfleet_registry.settings import Settings
from toolfleet_tasks.app import make_app
from toolfleet_tasks.control.startup_checks import COMMAND, require_redis
from toolfleet_tasks.greenlet_bridge import require_greenlet_stacks


def python(*words: str, env: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True, check=False)


def test_an_app_without_a_runner_starts_no_worker(elsewhere: Path) -> None:
    """The process ends at once, not with 0, and says which command is right; it needs no broker for that."""
    celery = ("-m", "celery", "-A", "toolfleet_tasks.app", "worker")
    ended = python(*celery, env={"TOOLFLEET_REDIS_URL": "redis://127.0.0.1:1/0"})

    assert ended.returncode == 1
    assert ended.stderr.strip().endswith(f"Start the worker with: {COMMAND}")
    assert "Traceback" not in ended.stderr


def test_a_kombu_that_was_never_tested_starts_no_worker_at_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends with one sentence that says which to install; a worker at RabbitMQ may have any kombu."""
    monkeypatch.setattr(kombu, "__version__", "5.9.0")
    nowhere = "redis://127.0.0.1:1/0"

    with pytest.raises(SystemExit, match=r"5\.9\.0: pip install 'kombu==5\.7\.\*'"):
        require_redis(make_app(Settings(redis_url=nowhere)))
    require_redis(make_app(Settings(redis_url=nowhere, broker_url="amqp://127.0.0.1:1//")))


def test_stacks_by_thread_are_refused() -> None:
    """With `USE_FAST_LOCALS` every call would see another call's request."""
    require_greenlet_stacks()
    check = "from toolfleet_tasks.greenlet_bridge import require_greenlet_stacks; require_greenlet_stacks()"
    ended = python("-c", check, env={"USE_FAST_LOCALS": "1"})

    assert ended.returncode == 1
    assert "unset USE_FAST_LOCALS" in ended.stderr
