"""Gives the fleet's modules loggers that leave a program's own configuration of logging alone.

A library configures nothing: where the program has not configured structlog, which would print to its stdout, lines go to the
standard `logging`, which shows warnings only unless the program says otherwise. Our commands configure both (`control/logs.py` in tasks).

structlog itself, with all that it draws with, is loaded by those who use it: for `logging` alone, lines are written here as it
would write them.
"""

import logging
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

_configure: list[Callable[[], None]] = []


class FleetLogger:
    """A logger as from `structlog.get_logger(name)`, once the program has configured structlog; until then for `logging`."""

    __slots__ = ("_loggers", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._loggers: tuple[Any, Any, Callable[[], bool]] | None = None

    def __getattr__(self, method: str) -> Any:
        if self._loggers is None:
            if method in _LEVELS and not _configure and "structlog" not in sys.modules:
                return partial(_write, self._name, method)
            self._loggers = _loggers_of(self._name)
        configured, plain, is_configured = self._loggers
        return getattr(configured if is_configured() else plain, method)


def configure_before_first_line(configure: Callable[[], None]) -> None:
    """Have structlog configured: at once where it is loaded; else before the first line, unless it is configured by then."""
    if "structlog" in sys.modules:
        configure()
    else:
        _configure[:] = [configure]


def get_logger(name: str) -> Any:
    """Make the logger of a module of ours, which names itself: `__name__`."""
    return FleetLogger(name)


_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "exception": 40, "critical": 50}


def _write(name: str, method: str, event: object, /, *, exc_info: Any = None, **fields: object) -> None:
    """Write a line as the plain logger of `_loggers_of` does."""
    logger, level = logging.getLogger(name), _LEVELS[method]
    if not logger.isEnabledFor(level):
        return
    error = sys.exception() if method == "exception" or exc_info is True else exc_info
    if isinstance(error, tuple):
        error = error[1]
    if isinstance(error, BaseException):
        fields["exception"] = "".join(traceback.format_exception(error)).rstrip("\n")
    text = " ".join(f"{field}={value!r}" for field, value in {"event": event, **fields}.items())
    logger.log(level, text, exc_info=method == "exception")


def _loggers_of(name: str) -> tuple[Any, Any, Callable[[], bool]]:
    import structlog  # see above

    if _configure and not structlog.is_configured():
        _configure.pop()()
    processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.filter_by_level,
        structlog.processors.format_exc_info,
        structlog.processors.KeyValueRenderer(key_order=["event"]),
    ]
    plain = structlog.stdlib.BoundLogger(logging.getLogger(name), processors=processors, context={})
    return structlog.get_logger(name), plain, structlog.is_configured


class BusyLog:
    """A logger as from `get_logger(name)`, but bound once for each configuration of structlog.

    structlog's own is bound again for each line, which takes twenty times as long as dropping one. Only if lines go to
    the standard `logging`, as in every worker: other loggers, and structlog's own while it is not configured, may keep
    the `sys.stdout` of the time when they were bound.
    """

    __slots__ = ("_bound", "_configured", "_lazy")

    def __init__(self, name: str) -> None:
        self._lazy = self._bound = get_logger(name)
        self._configured: Mapping[str, Any] = {}

    def now(self) -> Any:
        """Return the logger as structlog is configured now."""
        import structlog  # for the first line, as `loggers.py` does

        configured = structlog.get_config()
        if configured != self._configured:
            to_stdlib = isinstance(configured["logger_factory"], structlog.stdlib.LoggerFactory)
            self._bound, self._configured = self._lazy.bind() if to_stdlib else self._lazy, configured
        return self._bound
