"""Our lines go where the program's own logs go."""

import subprocess
import sys
from pathlib import Path

from support.waiting import PATIENCE_SECONDS

AGENT = """
import logging, sys
{before}
from toolfleet_registry.system.loggers import get_logger
log = get_logger("toolfleet")
log.info("module_discovered", module="owls", name="x")
log.bind(module="owls").warning("module_unreachable", error="gone")
"""
HOST = """
import logging, warnings
from celery import Celery, signals

handler, celery = logging.NullHandler(), Celery("host")
logging.getLogger().addHandler(handler)
def known():
    loggers = {name: logger.level for name, logger in logging.root.manager.loggerDict.items() if hasattr(logger, "level")}
    ours = {name: level for name, level in loggers.items() if level and name != "asyncio"}
    return logging.root.level, logging.root.handlers[:], ours, logging.lastResort, logging.raiseExceptions
import structlog
before, printed = known(), structlog.get_config()
import toolfleet, toolfleet.sdk, toolfleet.webhooks, toolfleet.formats, toolfleet.tags, toolfleet.stores
import toolfleet_tasks.app, toolfleet_tasks.client.canvas
fleet = toolfleet.ToolFleet("redis://127.0.0.1:1/0")
app = toolfleet_tasks.app.make_app(toolfleet.Settings(redis_url="redis://127.0.0.1:1/0"), stores_results=False)
app.tasks
try:
    with toolfleet.ToolFleet.sync("redis://127.0.0.1:1/0"):
        pass
except toolfleet.FleetError:
    pass
assert known() == before, (known(), before)
assert not structlog.is_configured() and structlog.get_config() == printed
assert not signals.setup_logging.receivers, signals.setup_logging.receivers
celery.log.setup(loglevel="INFO", logfile="host.log")
assert any(isinstance(each, logging.FileHandler) for each in logging.root.handlers)
"""


def said(before: str, folder: Path) -> tuple[str, str]:
    ended = subprocess.run(
        [sys.executable, "-c", AGENT.format(before=before)], cwd=folder, capture_output=True, text=True, check=True
    )
    return ended.stdout, ended.stderr


def test_an_agents_stdout_is_its_own(tmp_path: Path) -> None:
    """A program that configures nothing sees warnings on stderr, and nothing of ours on stdout."""
    out, err = said("", tmp_path)

    assert out == ""
    assert err == "event='module_unreachable' module='owls' error='gone'\n"


def test_an_agents_logging_decides(tmp_path: Path) -> None:
    """A program that logs at INFO gets our INFO lines, too."""
    _, err = said("logging.basicConfig(level=logging.INFO)", tmp_path)

    assert err.startswith("INFO:toolfleet:event='module_discovered' module='owls' name='x'\n")


def test_an_agents_own_structlog_stays(tmp_path: Path) -> None:
    """A program that has configured structlog keeps its configuration."""
    out, _ = said("import structlog; structlog.configure(processors=[lambda *a: 'mine'])", tmp_path)

    assert out == "mine\nmine\n"


def test_a_program_that_uses_the_fleet_logs_as_it_did(tmp_path: Path) -> None:
    """Importing us, and using us, changes nothing of `logging`, of structlog, or of a Celery app of the program's own."""
    ended = subprocess.run(
        [sys.executable, "-c", HOST],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=6 * PATIENCE_SECONDS,
    )

    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr


def test_nothing_of_ours_asks_structlog_itself_for_a_logger() -> None:
    """It would print to the stdout of a program that has not configured it."""
    rooms = [Path(__file__).parents[4] / room for room in ("registry", "modules", "tasks", "workers", "gateway", "cli")]
    wrong = [
        path.name
        for room in rooms
        for path in room.rglob("*.py")
        if "structlog.get_logger(" in path.read_text() and path.name != "loggers.py"
    ]

    assert wrong == []
