"""What a worker loads before it is ready: nothing that it may never need."""

import os
import subprocess
import sys

import pytest

LOADED = """
import sys
from toolfleet_workers.plain_structlog import load_plain_structlog
load_plain_structlog()
import toolfleet_workers.main
print(*sorted(name for name in sys.modules if "." not in name or name.startswith("toolfleet")))
"""


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    """The modules that a worker has when it begins to start."""
    env = {**os.environ, "TOOLFLEET_REDIS_URL": "redis://127.0.0.1:1/0", "TOOLFLEET_SCHEDULER": "0"}
    ended = subprocess.run(
        [sys.executable, "-c", LOADED], env=env, capture_output=True, text=True, check=True, timeout=60
    )
    return set(ended.stdout.split())


@pytest.mark.parametrize(
    "name", ["aiohttp", "croniter", "httpx", "jwt", "rich", "toolfleet_registry.catalog", "toolfleet_tasks.job_keeper"]
)
def test_a_worker_starts_without_what_it_may_never_need(loaded: set[str], name: str) -> None:
    """HTTP clients for other purposes, drawing, jobs and schedules: together more than half as much as what it needs."""
    assert "structlog" in loaded
    assert name not in loaded


def test_structlog_without_rich_leaves_rich_to_others() -> None:
    """A tool of one's own that draws with rich, in a worker, finds it."""
    code = LOADED + "import rich.console, structlog; print(structlog.dev.rich)"
    env = {**os.environ, "TOOLFLEET_REDIS_URL": "redis://127.0.0.1:1/0"}
    ended = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, timeout=60
    )
    assert ended.stdout.split()[-1] == "None"
