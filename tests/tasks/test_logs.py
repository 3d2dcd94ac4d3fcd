"""Our lines go where the program's own logs go."""

import subprocess
import sys
from pathlib import Path

AGENT = """
import logging, sys
{before}
from toolfleet_tasks.logs import log_to_stdlib
import structlog
log_to_stdlib()
structlog.get_logger("toolfleet").info("module_discovered", module="owls", name="x")
structlog.get_logger("toolfleet").warning("module_unreachable", module="owls", error="gone")
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
