"""Says why there is no session with a server."""

import asyncio

from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from toolfleet_modules.hosts.mcp.transports.exchanges import Lost, Refused
from toolfleet_registry.functions.failures import ToolError


class ServerAway(Exception):
    """There is no session, and nothing was sent. The message says why.

    `has_answered`: whether there was any answer in the handshake. `is_refused`: there will be none until a person acts.
    """

    def __init__(self, why: str, *, has_answered: bool = False, is_refused: bool = False) -> None:
        super().__init__(why)
        self.has_answered, self.is_refused = has_answered, is_refused

    @classmethod
    def after(cls, task: "asyncio.Task[None]", *, seconds: float) -> "ServerAway":
        """Return the error of a task that has made no session in so many seconds."""
        if not task.done():
            return cls(f"no handshake within {seconds:g} s")
        error = None if task.cancelled() else task.exception()
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        return cls(_worded(error), has_answered=True, is_refused=isinstance(error, Refused))


def refused_call(why: str) -> ToolError:
    """Return the error of a call for which there will be no session."""
    return ToolError(f"The server cannot be used: {why}.", effect_state="none")


def _worded(error: BaseException | None) -> str:
    match error:
        case None | Lost():
            return "it ended in the handshake; its host's log says more"
        case MCPError() | RuntimeError() | OSError():
            return f"{getattr(error, 'message', None) or error}"
        case ValidationError():
            return "its answer to the handshake is none of the protocol"
        case _:
            return f"{type(error).__name__}: {error}"
