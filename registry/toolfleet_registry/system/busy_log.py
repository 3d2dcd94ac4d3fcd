"""Drops log lines below their level before they cost anything, for what every call writes."""

from collections.abc import Mapping
from typing import Any

from toolfleet_registry.system.loggers import get_logger


class BusyLog:
    """A logger as from `get_logger(name)`, but bound once for each configuration of structlog.

    structlog's own is bound again for each line, which takes twenty times as long as dropping one. Only if lines go to
    the standard `logging`, as in every worker: other loggers may keep the `sys.stdout` of the time when they were
    bound.
    """

    __slots__ = ("_bound", "_configured", "_lazy")

    def __init__(self, name: str) -> None:
        self._lazy = self._bound = get_logger(name)
        self._configured: Mapping[str, Any] | None = {}

    def now(self) -> Any:
        """The logger as structlog is configured now."""
        import structlog  # noqa: PLC0415 - for the first line, as `loggers.py` does

        configured = structlog.get_config() if structlog.is_configured() else None
        if configured != self._configured:
            to_stdlib = configured is None or isinstance(configured["logger_factory"], structlog.stdlib.LoggerFactory)
            self._bound, self._configured = self._lazy.bind() if to_stdlib else self._lazy, configured
        return self._bound
