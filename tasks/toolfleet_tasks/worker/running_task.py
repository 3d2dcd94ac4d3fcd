"""Names what a call needs of the task that it runs in: Celery's, or what stands for it where its tracer need not run."""

from asyncio import CancelledError
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from toolfleet_registry.contracts import ToolResult
from toolfleet_tasks.messages.links import Links

Limits = Callable[[float | None, float | None], AbstractContextManager[Callable[[BaseException], object]]]
"""Holds a block to a soft and a hard limit, in seconds; it yields what interrupts it."""


class Superseded(CancelledError):
    """Another worker has the call: this attempt's result is discarded."""


class RunningTask(Protocol):
    """A call's task in a worker. `app` is the `FleetApp`; `request` says what its message says, as Celery's `Context` does."""

    app: Any
    request: Any

    @property
    def is_followed(self) -> bool:
        """Whether anything but its result's reader waits for this call's end: it is a link of a canvas."""
        ...

    @property
    def links(self) -> Links | None:
        """The canvas fields of the next message of this call; `None` for a call by itself."""
        ...

    @property
    def limits(self) -> Limits:
        """The call's time limits."""
        ...

    def pass_on(self, text: str, result: ToolResult) -> None:
        """Start what follows the call, once it has ended with `result`, of which `text` is the stored form."""
        ...
