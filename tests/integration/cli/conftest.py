"""What tests of the command share."""

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from support.command import Ended, Run
from toolfleet_cli import main


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], elsewhere: Path) -> Iterator[Run]:
    """Runs the command in this process, far from any other fleet."""
    was_configured, before = structlog.is_configured(), structlog.get_config()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level

    def run(*words: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["toolfleet", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return Ended(ended.value.code, said.out, said.err)

    yield run
    # A command that serves sends the logs to the stderr of its test, which is closed after it.
    root.handlers[:] = handlers
    root.setLevel(level)
    if was_configured:
        structlog.configure(**before)
    else:  # what is not configured prints nothing
        structlog.reset_defaults()
