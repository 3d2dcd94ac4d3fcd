"""A worker started with the wrong app."""

import subprocess
import sys
from pathlib import Path

import kombu
import pytest

from support.waiting import PATIENCE_SECONDS
from toolfleet_registry.settings import Settings
from toolfleet_tasks.app import make_app
from toolfleet_tasks.control.startup_checks import COMMAND, require_redis


def test_an_app_without_a_runner_starts_no_worker(elsewhere: Path) -> None:
    """The process ends at once, not with 0, and says which command is right; it needs no broker for that."""
    ended = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "toolfleet_tasks.app", "worker"],
        env={"TOOLFLEET_REDIS_URL": "redis://127.0.0.1:1/0"},
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE_SECONDS,
        check=False,
    )

    assert ended.returncode == 1
    assert ended.stderr.strip().endswith(f"Start the worker with: {COMMAND}")
    assert "Traceback" not in ended.stderr


def test_a_kombu_that_was_never_tested_starts_no_fast_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends with one sentence that names the setting; a stock worker may have any kombu."""
    monkeypatch.setattr(kombu, "__version__", "5.9.0")
    nowhere = "redis://127.0.0.1:1/0"

    with pytest.raises(SystemExit, match=r"5\.9\.0.*TOOLFLEET_FAST_TRANSPORT=0"):
        require_redis(make_app(Settings(redis_url=nowhere, fast_transport=True)))
    require_redis(make_app(Settings(redis_url=nowhere, fast_transport=False)))
