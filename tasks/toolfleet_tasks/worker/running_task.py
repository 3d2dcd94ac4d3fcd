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
    """The call is in others' hands: what this attempt still does is for nobody."""


class RunningTask(Protocol):
    """A call's task in a worker. `app` is the `FleetApp`; `request` says what its message says, as Celery's `Context` does."""

    app: Any
    request: Any

    @property
    def is_followed(self) -> bool:
        """Whether anything waits for this call's end but its result: it is a link of a canvas."""
        ...

    @property
    def links(self) -> Links | None:
        """What the next message of this call must say of its place in the canvas; `None` for a call by itself."""
        ...

    @property
    def limits(self) -> Limits:
        """What holds the call to its limits."""
        ...

    def pass_on(self, text: str, result: ToolResult) -> None:
        """Have what follows begin, once the call has ended with `result`, of which `text` is what is stored."""
        ...
