"""Defines the log messages that a running tool sends to its caller, in addition to its result."""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeGuard, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json, to_json

from toolfleet_registry.contracts.message import DEFERS_BUILD

LogLevel = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
"""How grave a log message is, from the least to the most: the levels of the Model Context Protocol."""

LOG_LEVELS: Final[tuple[LogLevel, ...]] = get_args(LogLevel)

MOST_DATA_BYTES: Final = 16 * 2**10
"""Of a message's data as JSON; of what is longer the beginning is kept, as a text."""

_LONGEST_LOGGER = 200
_RANKS = {level: rank for rank, level in enumerate(LOG_LEVELS)}

MOST_MESSAGES: Final = 200

MOST_BYTES: Final = 512 * 2**10
"""Of the log messages of one attempt, together."""


class LogMessage(BaseModel):
    """What a tool says while its call runs."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=DEFERS_BUILD)

    level: LogLevel
    """How grave it is."""
    data: Any
    """What is said: a text, or any other JSON."""
    logger: str | None = Field(default=None, max_length=_LONGEST_LOGGER)
    """Which part of the tool says it, if it has several."""

    def fields(self) -> dict[str, Any]:
        """As JSON has it on its way: `{level, data, logger}`, the last one only if there is one."""
        named = {} if self.logger is None else {"logger": self.logger}
        return {"level": self.level, "data": self.data, **named}


def is_log_level(value: object) -> TypeGuard[LogLevel]:
    """Return whether this is one of the eight levels."""
    return isinstance(value, str) and value in _RANKS


def check_log_level(value: object) -> None:
    """Raise `ValueError` for a value that is no level."""
    if not is_log_level(value):
        raise ValueError(f"A log level is one of {', '.join(LOG_LEVELS)}, not {value!r}.")


def is_heard(level: LogLevel, least: LogLevel) -> bool:
    """Return whether a message of this level reaches a listener for levels of at least `least`."""
    return _RANKS[level] >= _RANKS[least]


def log_message(level: LogLevel, data: Any, logger: str | None = None) -> LogMessage:
    """Return the message, within its bounds: a value that is no JSON becomes a text.

    Raises `ValueError` for an unknown level.
    """
    check_log_level(level)
    named = None if logger is None else _readable(logger)[:_LONGEST_LOGGER]
    return LogMessage(level=level, data=_bounded(data), logger=named)


def log_message_in(fields: object) -> LogMessage | None:
    """Parse a message that was sent; `None` if it is invalid."""
    try:
        found = LogMessage.model_validate(fields)
    except (ValidationError, RecursionError):
        return None
    return log_message(found.level, found.data, found.logger)


def _bounded(data: Any) -> Any:
    try:
        text = to_json(data, fallback=str, inf_nan_mode="null")
        if len(text) <= MOST_DATA_BYTES:
            return from_json(text)
    except Exception:  # noqa: BLE001 - half a character, a circle, a text that cannot be made: it must not fail the tool
        text = _readable(_shown(data)).encode()
    return f"{text[:MOST_DATA_BYTES].decode(errors='ignore')}…"


def _shown(data: Any) -> str:
    try:
        return repr(data)[:MOST_DATA_BYTES]
    except Exception:  # noqa: BLE001 - as above
        return f"a {type(data).__name__}"


def _readable(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


@dataclass(frozen=True, slots=True)
class LogSink:
    """Receives messages of level `least` and above.

    `take` may be called from any thread, returns at once, and never raises.
    """

    least: LogLevel
    take: Callable[[LogMessage], object]

    def say(self, level: LogLevel, data: Any, logger: str | None = None) -> None:
        """Pass a message on if its level is high enough."""
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
        """Return whether there is room for a message of `size` bytes; if not, it is counted as left out."""
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
    """Return the sink of this task's log messages, or `None` if no caller wants any."""
    return _sink.get()


def log_to(sink: LogSink | None) -> None:
    """Send the log messages of this task and its subtasks to `sink`."""
    _sink.set(sink)


_sink: ContextVar[LogSink | None] = ContextVar("toolfleet_log", default=None)
