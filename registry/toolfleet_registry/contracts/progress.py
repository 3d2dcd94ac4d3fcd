"""Reports the progress of a running call, as its tool tells it, to the process that runs the call."""

from collections.abc import Callable
from contextvars import ContextVar

from pydantic import BaseModel, ConfigDict, Field

from toolfleet_registry.contracts.message import DEFERS_BUILD

LONGEST_MESSAGE = 500  # characters: a line or two for a person who waits


class Progress(BaseModel):
    """How far a running call has come."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=DEFERS_BUILD)

    fraction: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    """How much of the work is done, from 0 to 1; `None` if nobody knows."""
    message: str = Field(default="", max_length=LONGEST_MESSAGE)
    """What is going on."""


Sink = Callable[[Progress], object]
"""Takes what is reported of one call; from any thread, at once, and never raises."""


def report(fraction: float | None = None, message: str = "") -> None:
    """Report the progress of the running call: a fraction from 0 to 1, or `None`, and a text, of which 500 characters are kept.

    For functions that run in a worker, also in threads that they start with `asyncio.to_thread`. Costs next to nothing:
    a few times a second the latest report is passed on. Outside of a call, and after its end, a report is dropped. A
    fraction outside of 0 to 1 is clipped, and one that is no number counts as unknown.
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


def report_to(sink: Sink) -> None:
    """Send the progress of this task and its subtasks to `sink`."""
    _sink.set(sink)


_sink: ContextVar[Sink | None] = ContextVar("toolfleet_progress", default=None)
