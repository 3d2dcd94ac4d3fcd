"""Defines programs, Python that a model has written and whose calls are calls of the fleet, as their owner sees them.

Times are seconds since the epoch.
"""

from typing import Any, Literal

from toolfleet_registry.contracts.calls import ErrorCode
from toolfleet_registry.contracts.message import Message

ProgramCallState = Literal["waiting", "succeeded", "failed", "unknown", "withdrawn", "left"]
"""The state of a program's call: `withdrawn` before a worker began it, `left` by a program that ended first."""


class ProgramCall(Message):
    """A call that a program has made."""

    number: int
    """Its number in the program, from 1."""
    tool_name: str
    """The tool, as `module.method`."""
    call_id: str
    """Its id in the fleet: its audit line, its traces and its approval are found by it."""
    state: ProgramCallState
    """Its state."""
    error_code: ErrorCode | None = None
    """The error, as a code."""


class ToolProgram(Message):
    """A program as its owner sees it."""

    program_id: str
    """The program's id."""
    state: Literal["waiting", "completed", "failed", "timed_out", "cancelled"]
    """Its state: it waits for its calls, or has ended."""
    user_id: str | None = None
    """Its user."""
    conversation_id: str | None = None
    """The conversation that its end wakes, if its caller no longer waits for it."""
    created_at: float
    """The time at which it was made."""
    expires_at: float
    """The time at which it ends at the latest."""
    ended_at: float | None = None
    """The time at which it ended."""
    calls_made: int = 0
    """The number of calls that it has made."""
    calls: tuple[ProgramCall, ...] = ()
    """Its calls in their order; empty in lists of programs."""
    result: Any = None
    """The value that it has returned; `None` if it failed, or if a tool with sensitive results was called."""
    error: str | None = None
    """The error, in words."""
    error_code: ErrorCode | None = None
    """The error, as a code."""
