"""Knows the call that a function runs for: said around the function, and asked from inside, also in its threads."""

from contextvars import ContextVar
from typing import Protocol


class RunningCall(Protocol):
    """A call at work."""

    @property
    def cancelled(self) -> bool:
        """Whether no client waits for the call any more."""
        ...

    @property
    def seconds_left(self) -> float | None:
        """The seconds until no client waits any more; `None` without a deadline."""
        ...


def current() -> RunningCall | None:
    """Return the call, `None` outside of one."""
    return _call.get()


def run_for(call: RunningCall) -> None:
    """Have what runs in this task, in those that it makes and in threads that get its context, run for `call`."""
    _call.set(call)


_call: ContextVar[RunningCall | None] = ContextVar("toolfleet_running_call", default=None)
