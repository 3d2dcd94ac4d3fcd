"""Tells a function what it may know of the call that it runs, and takes what it reports meanwhile."""

from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

from toolfleet_registry.contracts import Conversation
from toolfleet_registry.contracts.inputs import CallInputs
from toolfleet_registry.contracts.logs import LogLevel, LogSink, check_log_level
from toolfleet_registry.contracts.progress import Sink, progress_of
from toolfleet_registry.contracts.tool_context import ToolContext
from toolfleet_registry.time import fleet_clock, machine_clock

_SAME_SECONDS = 0.005  # an event loop may count in milliseconds, and call back one too early


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
    """Whether whoever called can be asked: else raising `InputRequired` ends the call."""
    inputs: CallInputs | None = None
    """What was answered last: `inputs.responses` by the keys of the requests, `inputs.state`, and `inputs.round`, from 1. `None` if nothing was asked yet."""
    _ends_at: float | None = None  # on the monotonic clock
    _begin_by: float | None = None  # on the one that counts suspension
    _held_until: Callable[[], float] | None = None  # until when no other process can have it, on the same clock
    _cancelled: bool = False
    _report: Sink | None = None
    _log: LogSink | None = None
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
        """Report the tool's progress: `await context.progress(0.4, "half of the pages")`; `None` if it is unknown.

        Costs next to nothing without a listener, and only the latest of many in a short time is sent. May be called
        from any thread, and need not be awaited: a plain function calls it and goes on.
        """
        if self._report is not None:
            self._report(progress_of(fraction, message))
        return _Said()

    def log(self, level: LogLevel, data: Any, *, logger: str | None = None) -> Awaitable[None]:
        """Send a log message to the caller, if it wants them: `await context.log("info", "half of the pages are read")`.

        `data` is a text or any JSON, of which 16 KiB are kept; `logger` names the part of the tool. An attempt has at
        most 200 messages. Called and awaited as `progress` is. Raises `ValueError` for an unknown level.
        """
        check_log_level(level)
        if self._log is not None:
            self._log.say(level, data, logger)
        return _Said()


class _Said:
    """An awaitable that is done at once; but awaiting it lets other tasks of the loop run."""

    def __await__(self) -> Generator[None, None, None]:
        yield
