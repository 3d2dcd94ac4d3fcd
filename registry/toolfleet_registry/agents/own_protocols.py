"""Defines what a class of the operators' own is asked that stands around calls: in an agent, and in a worker."""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

from toolfleet_registry.contracts import Caller, PublishedCall, ToolCall, ToolResult
from toolfleet_registry.contracts.outcomes import Attempt

ProceedWithCall: TypeAlias = Callable[[PublishedCall], Awaitable[Attempt]]
"""What comes next for a call in a worker: it may be called once."""


class CallMiddleware(Protocol):
    """Stands in the process that publishes a call, with `runs_in = "agent"`. Has two seconds; fails closed.

    It is made once with the parameters of its entry, by keyword.
    """

    async def __call__(self, call: ToolCall, caller: Caller) -> ToolCall | ToolResult:
        """The call as it is to be judged, of which only the arguments may be others; or a refusal: a result without success."""
        ...


class AttemptMiddleware(Protocol):
    """Stands around each attempt of a call in a worker. What it raises ends the attempt as `internal`, with an unknown effect.

    It is made once with the parameters of its entry, by keyword.
    """

    async def __call__(self, call: PublishedCall, proceed: ProceedWithCall) -> Attempt:
        """How the attempt has ended. It calls `proceed` once at most, with the call, of which only the arguments may be others."""
        ...
