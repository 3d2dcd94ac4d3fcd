"""Collects the log messages of one running call, as lines for its waiters that want them."""

import json
from collections.abc import Callable

from toolfleet_registry.contracts.call_context import LogBudget, LogLevel, LogMessage, LogSink


class WorkLog:
    """The log messages of one call that are of level `least` or above. `tell` is called after each, in any thread."""

    def __init__(self, least: LogLevel, tell: Callable[[], None]) -> None:
        self.lines: list[bytes] = []
        """`{"log": {…}}`, in order: each waiter knows how many it has had."""
        self.sink = LogSink(least, self._take)
        """What takes them, from any thread."""
        self._tell = tell
        self._budget = LogBudget()

    @property
    def notice(self) -> bytes:
        """The line on how many were left out, once the call has ended; empty for none."""
        notice = self._budget.notice()
        return b"" if notice is None else _line(notice)

    def _take(self, message: LogMessage) -> None:
        line = _line(message)
        if self._budget.takes(len(line)):
            self.lines.append(line)
            self._tell()


def _line(message: LogMessage) -> bytes:
    return json.dumps({"log": message.fields()}, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
