"""A worker started with the wrong app."""

import subprocess
import sys
from pathlib import Path

from toolfleet_tasks.guard import COMMAND


def test_an_app_without_a_runner_starts_no_worker(elsewhere: Path) -> None:
    """The process ends at once, not with 0, and says which command is right; it needs no broker for that."""
    ended = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "toolfleet_tasks.app", "worker"],
        env={"TOOLFLEET_REDIS_URL": "redis://127.0.0.1:1/0"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ended.returncode == 1
    assert ended.stderr.strip().endswith(f"Start the worker with: {COMMAND}")
    assert "Traceback" not in ended.stderr
