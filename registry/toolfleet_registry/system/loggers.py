"""Gives the fleet's modules loggers that leave a program's own configuration of logging alone.

A library configures nothing: where the program has not configured structlog, which would print to its stdout, lines go to the
standard `logging`, which shows warnings only unless the program says otherwise. Our commands configure both (`control/logs.py` in tasks).
"""

import logging
from typing import Any

import structlog

_PLAIN: list[structlog.typing.Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.filter_by_level,
    structlog.processors.format_exc_info,
    structlog.processors.KeyValueRenderer(key_order=["event"]),
]


class FleetLogger:
    """As `structlog.get_logger(name)` gives it, once the program has configured structlog; until then for `logging`."""

    __slots__ = ("_configured", "_plain")

    def __init__(self, name: str) -> None:
        self._configured = structlog.get_logger(name)
        self._plain = structlog.stdlib.BoundLogger(logging.getLogger(name), processors=_PLAIN, context={})

    def __getattr__(self, method: str) -> Any:
        return getattr(self._configured if structlog.is_configured() else self._plain, method)


def get_logger(name: str) -> Any:
    """Make the logger of a module of ours, which names itself: `__name__`."""
    return FleetLogger(name)
