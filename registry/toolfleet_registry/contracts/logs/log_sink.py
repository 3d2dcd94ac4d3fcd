"""Takes the log messages of one call, as many as whoever called it wants and no more than a call may have."""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from toolfleet_registry.contracts.logs.log_message import LogLevel, LogMessage, is_heard, log_message

MOST_MESSAGES: Final = 200
MOST_BYTES: Final = 512 * 2**10
"""Of the log messages of one attempt, together."""


@dataclass(frozen=True, slots=True)
class LogSink:
    """Takes what is `least` or graver; `take` from any thread, at once, and never raises."""

    least: LogLevel
    take: Callable[[LogMessage], object]

    def say(self, level: LogLevel, data: Any, logger: str | None = None) -> None:
        """Pass somebody's words on, if they are grave enough."""
        if is_heard(level, self.least):
            self.take(log_message(level, data, logger))

    def pass_on(self, message: LogMessage) -> None:
        """Take a message that came from elsewhere, if it is grave enough."""
        if is_heard(message.level, self.least):
            self.take(message)


class LogBudget:
    """Counts the log messages of one attempt: those over `most` messages, or over the bytes in all, are left out."""

    def __init__(self, most: int = MOST_MESSAGES, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._messages = self._bytes = 0
        self.left_out = 0
        """How many there was no room for."""

    def takes(self, size: int) -> bool:
        """Whether there is room for a message of so many bytes; if not, it is counted."""
        if self._messages >= self._most or self._bytes + size > self._most_bytes:
            self.left_out += 1
            return False
        self._messages += 1
        self._bytes += size
        return True

    def notice(self) -> LogMessage | None:
        """The word on what was left out, once that is known; `None` for nothing."""
        if not self.left_out:
            return None
        bounds = f"a call has at most {self._most}, of {self._most_bytes} bytes in all"
        text = f"{self.left_out} log messages were left out: {bounds}."
        return LogMessage(level="warning", data=text, logger="toolfleet")


def current_log() -> LogSink | None:
    """What takes this task's log messages; `None` where nobody wants any."""
    return _sink.get()


def log_to(sink: LogSink | None) -> None:
    """Have what is said in this task, and in those that it makes, taken by `sink`."""
    _sink.set(sink)


_sink: ContextVar[LogSink | None] = ContextVar("toolfleet_log", default=None)
