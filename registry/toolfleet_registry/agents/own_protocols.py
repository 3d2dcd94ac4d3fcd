"""Defines what a class of the operators' own is asked that stands around calls: in an agent, and in a worker."""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

from toolfleet_registry.contracts import Caller, PublishedCall, ToolCall, ToolResult
from toolfleet_registry.contracts.outcomes import Attempt

ProceedWithCall: TypeAlias = Callable[[PublishedCall], Awaitable[Attempt]]
"""What comes next for a call in a worker: it may be called once."""


class CallMiddleware(Protocol):
    """An operator's class that runs in the process that publishes a call (`runs_in = "agent"`).

    Has two seconds; fails closed.

    It is made once with the parameters of its entry, by keyword.
    """

    async def __call__(self, call: ToolCall, caller: Caller) -> ToolCall | ToolResult:
        """The call as it is to be judged, of which only the arguments may be others; or a refusal: a result without success."""
        ...


class AttemptMiddleware(Protocol):
    """An operator's class around each attempt of a call in a worker.

    An exception ends the attempt as `internal`, with an unknown effect.

    It is made once with the parameters of its entry, by keyword.
    """

    async def __call__(self, call: PublishedCall, proceed: ProceedWithCall) -> Attempt:
        """Run the attempt and return its outcome.

        Calls `proceed` at most once, with the call, of which only the arguments may differ.
        """
        ...
