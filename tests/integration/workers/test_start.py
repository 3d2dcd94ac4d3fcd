"""What a worker loads before it is ready: nothing that it may never need."""

import os
import subprocess
import sys

import pytest

from support.waiting import PATIENCE_SECONDS

LOADED = """
import sys
from toolfleet_workers.__main__ import load_lean_libraries
load_lean_libraries()
import toolfleet_workers.main
print(*sorted(name for name in sys.modules if "." not in name or name.startswith("toolfleet")))
"""

COLLECTED = """
import gc
from celery.bin.worker import worker
from toolfleet_workers import __main__ as program
worker.main = lambda **_: print(gc.isenabled(), gc.get_freeze_count() > 100_000)
program.main()
"""

SEARCHED = """
from importlib import metadata
from toolfleet_workers import __main__ as program
search, searches = metadata.distributions, []
metadata.distributions = lambda **chosen: searches.append(chosen) or search(**chosen)
program.load_lean_libraries()
from celery.bin.worker import worker
worker.main = lambda obj, **_: print(len(searches), type(obj.app.backend).__name__, len(searches))
program.main()
print(bool(metadata.entry_points(group="console_scripts")), len(searches))
"""

BANNER = """
import sys
from toolfleet_workers.main import app
started = []
sys.addaudithook(lambda event, _: started.append(event) if event == "subprocess.Popen" else None)
print(app.Worker(hostname="w@h").startup_info().count("toolfleet.control"), *started)
"""


def said(code: str, **env: str) -> list[str]:
    """What the code prints in a Python of its own, with these variables, word by word."""
    env = {**os.environ, "TOOLFLEET_REDIS_URL": "redis://127.0.0.1:1/0", "TOOLFLEET_SCHEDULER": "0", **env}
    ended = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, timeout=3 * PATIENCE_SECONDS
    )
    return ended.stdout.split()


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    """The modules that a worker has when it begins to start."""
    return set(said(LOADED))


@pytest.mark.parametrize(
    "name",
    [
        "aiohttp",
        "croniter",
        "h11",
        "httpx",
        "jsonschema_rs",
        "jwt",
        "opentelemetry",
        "psutil",
        "pygments",
        "rich",
        "semver",
        "toolfleet_registry.catalog.catalog",
        "toolfleet_registry.personal_data.personal_data",
        "toolfleet_registry.schemas.checker",
        "toolfleet_tasks.job_poller",
        "yaml",
    ],
)
def test_a_worker_starts_without_what_it_may_never_need(loaded: set[str], name: str) -> None:
    """HTTP clients for other purposes, drawing, jobs and schedules: together more than half as much as what it needs."""
    assert {"celery", "kombu", "redis", "structlog"} <= loaded
    assert name not in loaded


def test_structlog_without_rich_leaves_rich_to_others() -> None:
    """A tool of one's own that draws with rich, in a worker, finds it."""
    assert said(LOADED + "import rich.console, structlog; print(structlog.dev.rich)")[-1] == "None"


def test_what_is_loaded_without_a_package_leaves_it_to_others() -> None:
    """A tool of one's own, in a worker, finds all that its libraries have been loaded without."""
    code = "import opentelemetry.metrics, psutil, pygments.lexers, yaml; print(all((opentelemetry, psutil, pygments, yaml)))"

    assert said(LOADED + code)[-1] == "True"


def test_a_worker_starts_without_a_search_for_plug_ins() -> None:
    """It looks through all installed packages; a tool of one's own, in a worker, finds what is there."""
    assert said(SEARCHED) == ["0", "FleetBackend", "0", "True", "1"]


def test_a_worker_starts_no_program_for_its_banner() -> None:
    """Celery's names the platform, for which Python asks `uname`."""
    assert said(BANNER) == ["2"]


def test_what_a_worker_has_loaded_is_never_collected() -> None:
    """The garbage collector begins when the app is there, and looks at what is made from then on."""
    assert said(COLLECTED) == ["True", "True"]


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
@pytest.mark.parametrize(("hides", "dumpable"), [("1", "0"), ("0", "1")])
def test_a_worker_hides_itself_unless_it_is_told_not_to(hides: str, dumpable: str) -> None:
    """For those who profile without being root."""
    code = LOADED + "import ctypes; print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))  # PR_GET_DUMPABLE"
    assert said(code, TOOLFLEET_HIDE_PROCESS=hides)[-1] == dumpable
