"""Lines of every call go where structlog's own would go."""

import contextlib
import io
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from toolfleet_registry.system.loggers import BusyLog


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    was_configured, before = structlog.is_configured(), structlog.get_config()
    yield
    if was_configured:
        structlog.configure(**before)
    else:  # what is not configured prints nothing
        structlog.reset_defaults()


def to_stdlib(level: int, processors: list[Any]) -> None:
    structlog.configure(
        processors=processors,
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(level),
    )


def test_a_line_goes_where_structlog_was_configured_to_send_it_last(caplog: pytest.LogCaptureFixture) -> None:
    """A program may configure structlog at any time, also after lines were written."""
    log = BusyLog("owls")
    to_stdlib(logging.WARNING, [lambda *_: "before"])
    log.now().warning("dropped")
    to_stdlib(logging.ERROR, [lambda *_: "after"])
    log.now().warning("dropped")
    log.now().error("written")

    assert [(one.name, one.message) for one in caplog.records] == [("owls", "before"), ("owls", "after")]


def test_lines_can_be_captured() -> None:
    """Structlog's own way to look at lines sees these, also where one was written before."""
    log = BusyLog("owls")
    to_stdlib(logging.INFO, [lambda *_: "before"])
    log.now().info("first")
    with capture_logs() as lines:
        log.now().info("seen", count=1)

    assert lines == [{"event": "seen", "count": 1, "log_level": "info"}]
    assert log.now() is log.now()  # nothing is bound twice for one configuration


def test_a_redirected_stdout_is_followed() -> None:
    """Where lines are printed, they go to what is `sys.stdout` now, as without us."""
    structlog.configure(processors=[lambda *_: "printed"], logger_factory=structlog.PrintLoggerFactory())
    log = BusyLog("owls")
    log.now().info("elsewhere")
    with contextlib.redirect_stdout(io.StringIO()) as stdout:
        log.now().info("here")

    assert stdout.getvalue() == "printed\n"
