"""Tells a function what it may know of the call that it runs, and takes the progress and log messages that it reports."""

from collections.abc import Awaitable, Callable, Generator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeGuard, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import from_json, to_json

from toolfleet_registry.contracts.inputs import CallInputs
from toolfleet_registry.contracts.message import DEFERS_BUILD, Message, Since
from toolfleet_registry.system import fleet_clock, machine_clock

M = TypeVar("M", bound=Message)

_running: "ContextVar[Context | None]" = ContextVar("toolfleet_running_call", default=None)

LONGEST_MESSAGE = 500  # characters: a line or two for a person who waits

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

_SAME_SECONDS = 0.005  # an event loop may count in milliseconds, and call back one too early


class Conversation(Message):
    """The origin of a call. Modules that must find the way back get it, in the place of what the model wrote."""

    conversation_id: str | None = None
    """The conversation that a job's end wakes."""
    platform: str | None = None
    """What the conversation runs on, such as `telegram`."""
    platform_channel_id: str | None = None
    """The channel there."""
    platform_thread_id: str | None = None
    """The thread in that channel."""
    run_id: Annotated[str | None, Since(3)] = None
    """The turn of the agent that a call is part of, at most 256 characters: what a profile's `run_limit` counts by. Never told to modules."""


CONVERSATION_FIELDS = frozenset(Conversation.model_fields) - {"run_id"}
"""What modules may be told of a conversation."""


def by_name(kind: type[M], given: tuple[Any, ...], fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a message, of which some were given in their order. Raises `TypeError`, as a call does."""
    names = list(kind.model_fields)
    if len(given) > len(names):
        raise TypeError(f"{kind.__name__}() takes {len(names)} fields, and {len(given)} were given")
    if twice := fields.keys() & set(names[: len(given)]):
        raise TypeError(f"{kind.__name__}() got {min(twice)!r} twice")
    return dict(zip(names, given, strict=False)) | fields


class ToolContext(Message):
    """The context of a tag's tool. Fields can be positional: `ToolContext("owls", question, "@ada", 7)`."""

    raw_arg: str
    """The text after the tag."""
    user_message: str = ""
    """What the user has written."""
    user: str = ""
    """The user who asks, as in the call's caller."""
    chat_id: int = 0
    """The chat, by its number on its platform."""
    kb_context: str | None = None
    """What the agent's knowledge base has said of it."""
    confidence: float | None = Field(default=None, allow_inf_nan=False)
    """The model's own rating."""
    groups: dict[str, str] = Field(default={})
    """The text of each of the tag's groups by name, "" for one that is not there."""

    if TYPE_CHECKING:

        def __init__(  # noqa: PLR0917 - its fields, in their order
            self,
            raw_arg: str,
            user_message: str = ...,
            user: str = ...,
            chat_id: int = ...,
            kb_context: str | None = ...,
            confidence: float | None = ...,
            groups: dict[str, str] = ...,
        ) -> None: ...

    else:

        def __init__(self, /, *given: Any, **fields: Any) -> None:
            super().__init__(**by_name(type(self), given, fields))

    @property
    def cancelled(self) -> bool:
        """Whether no client waits for the running call any more.

        An async function is cancelled then; a plain one, in its thread, should check this.
        """
        call = _running.get()
        return call is not None and call.cancelled

    @property
    def seconds_left(self) -> float | None:
        """The seconds until no client waits for the running call, at least 0; `None` outside of a call."""
        call = _running.get()
        return None if call is None else call.seconds_left

    @field_validator("raw_arg", "user_message", "user", "kb_context")
    @classmethod
    def _replace_half_characters(cls, text: str | None) -> str | None:
        return text if text is None or text.isascii() else text.encode("utf-8", "replace").decode()


def run_for(call: "Context") -> None:
    """Have what runs in this task, in those that it makes and in threads that get its context, run for `call`."""
    _running.set(call)


def running_call() -> "Context | None":
    """Return the call for which this code runs, as far as its process knows: see `run_for`."""
    return _running.get()


class Progress(BaseModel):
    """How far a running call has come."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=DEFERS_BUILD)

    fraction: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    """How much of the work is done, from 0 to 1; `None` if it is unknown."""
    message: str = Field(default="", max_length=LONGEST_MESSAGE)
    """What is going on."""


Sink = Callable[[Progress], object]
"""Takes what is reported of one call; from any thread, at once, and never raises."""


def report(fraction: float | None = None, message: str = "") -> None:
    """Report the progress of the running call, for functions that run in a worker.

    It can be called from any thread that the function starts with `asyncio.to_thread`. It costs next to nothing: a few
    times a second the latest report is passed on. Outside of a call, and after its end, a report is dropped.

    Args:
        fraction: How much is done, from 0 to 1; values outside are clipped. None, or a value that is no number: unknown.
        message: A text, of which 500 characters are kept.

    """
    sink = _sink.get()
    if sink is not None:
        sink(progress_of(fraction, message))


def current_sink() -> Sink | None:
    """Return the sink of this task's progress, for code that reports from threads without the task's context."""
    return _sink.get()


def progress_of(fraction: float | None, message: str) -> Progress:
    """Return a valid progress made from any number and text."""
    known = None if fraction is None or fraction != fraction else float(min(max(fraction, 0), 1))  # noqa: PLR0124 - nan
    readable = message[:LONGEST_MESSAGE].encode("utf-8", "replace").decode()  # half a character must not fail a tool
    return Progress(fraction=known, message=readable)


_sink: ContextVar[Sink | None] = ContextVar("toolfleet_progress", default=None)

report_to: Callable[[Sink], object] = _sink.set
"""Sends the progress of this task and its subtasks to a sink. The variable's own method: each call has one."""


class LogMessage(BaseModel):
    """A message that a tool logs while its call runs."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=DEFERS_BUILD)

    level: LogLevel
    """How grave it is."""
    data: Any
    """The message: a text, or any other JSON."""
    logger: str | None = Field(default=None, max_length=_LONGEST_LOGGER)
    """Which part of the tool says it, if it has several."""

    def fields(self) -> dict[str, Any]:
        """Return the message as JSON: `{level, data, logger}`, without `logger` if there is none."""
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
        """Return the word on what was left out, once that is known; `None` for nothing."""
        if not self.left_out:
            return None
        bounds = f"a call has at most {self._most}, of {self._most_bytes} bytes in all"
        text = f"{self.left_out} log messages were left out: {bounds}."
        return LogMessage(level="warning", data=text, logger="toolfleet")


def current_log() -> LogSink | None:
    """Return the sink of this task's log messages, or `None` if no caller wants any."""
    return _log_sink.get()


def log_to(sink: LogSink | None) -> None:
    """Send the log messages of this task and its subtasks to `sink`."""
    _log_sink.set(sink)


_log_sink: ContextVar[LogSink | None] = ContextVar("toolfleet_log", default=None)


@dataclass(slots=True, eq=False)
class Context:
    """One call, as its tool sees it. A parameter with this annotation gets it; models are not offered that parameter."""

    tool_name: str
    """The tool's full name."""
    call_id: str | None = None
    """The call's id, the same for a repeat of the call."""
    user_id: str | None = None
    """Whom the call is for."""
    permission: str | None = None
    """What the fleet's token says that the user may: guest, user, admin or owner. `None` where a module checks no token: then the user id is no more than a claim. In a worker, what the call says, which is signed where the fleet signs."""
    conversation: Conversation = field(default_factory=Conversation)
    """Where the call comes from, as the agent's core tells this module: platform and channel if `TOOLFLEET_CONTEXT_MODULES` names it, else nothing."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The values of the secrets that the tool has named, by name."""
    takes_input: bool = False
    """Whether the caller can be asked; if not, raising `InputRequired` ends the call."""
    inputs: CallInputs | None = None
    """What was answered last: `inputs.responses` by the keys of the requests, `inputs.state`, and `inputs.round`, from 1. `None` if nothing was asked yet."""
    _ends_at: float | None = None  # on the monotonic clock
    _begin_by: float | None = None  # on the one that counts suspension
    _held_until: Callable[[], float] | None = None  # until when no other process can have it, on the same clock
    _cancelled: bool = False
    _report: Sink | None = None
    _log: LogSink | None = None
    _arguments: Mapping[str, Any] | None = field(default=None, repr=False)  # while its function runs
    _agent_context: ToolContext | None = None  # what the agent knows of the conversation, for the tag tools of a folder

    @property
    def seconds_left(self) -> float | None:
        """The seconds until no client waits for the result, at least 0; `None` if the caller has set no deadline."""
        return None if self._ends_at is None else max(0.0, self._ends_at - machine_clock.monotonic())

    @property
    def deadline(self) -> float | None:
        """The same as seconds since the epoch."""
        left = self.seconds_left
        return None if left is None else machine_clock.wall() + left

    @property
    def cancelled(self) -> bool:
        """Whether no client waits any more.

        An async tool is cancelled then; a plain one, in its thread, should check this.
        """
        return self._cancelled or self.seconds_left == 0

    @property
    def log_level(self) -> LogLevel | None:
        """The lowest level of log messages that the caller wants; `None`: none at all."""
        return None if self._log is None else self._log.least

    @property
    def _is_over(self) -> bool:
        """Whether its time is over, within the precision of two clocks: one that a tool sets by the remaining time may be a moment ahead."""
        left = self.seconds_left
        return left is not None and left <= _SAME_SECONDS

    def _may_begin(self) -> bool:
        begin_by = self._last_moment()
        return begin_by is None or fleet_clock.suspend_aware() <= begin_by

    def _last_moment(self) -> float | None:
        """Return the latest time to start, on the clock that counts suspension: this machine's, for all its processes."""
        bounds = (self._begin_by, None if self._held_until is None else self._held_until())
        return min((each for each in bounds if each is not None), default=None)

    def progress(self, fraction: float | None = None, message: str = "") -> Awaitable[None]:
        """Report the tool's progress: `await context.progress(0.4, "half of the pages")`.

        It costs next to nothing without a listener, and only the latest of many reports in a short time is sent. It can be
        called from any thread, and need not be awaited: a plain function calls it and continues.

        Args:
            fraction: How much is done, from 0 to 1; None if it is unknown.
            message: A text about it.

        Returns:
            An awaitable that can be ignored.

        """
        if self._report is not None:
            self._report(progress_of(fraction, message))
        return _Said()

    def log(self, level: LogLevel, data: Any, *, logger: str | None = None) -> Awaitable[None]:
        """Send a log message to the caller, if it wants them: `await context.log("info", "half of the pages are read")`.

        It is called and awaited like `progress`. An attempt can send at most 200 messages.

        Args:
            level: The message's level.
            data: A text or any JSON, of which 16 KiB are kept.
            logger: The name of the part of the tool.

        Returns:
            An awaitable that can be ignored.

        Raises:
            ValueError: The level is unknown.

        """
        check_log_level(level)
        if self._log is not None:
            self._log.say(level, data, logger)
        return _Said()


class _Said:
    """An awaitable that is done at once; but awaiting it lets other tasks of the loop run."""

    def __await__(self) -> Generator[None, None, None]:
        yield
