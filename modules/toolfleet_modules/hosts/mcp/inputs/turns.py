"""Gives the calls of a session their turn, one at a time, so that it is known which call a server's question belongs to."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import mcp_types as types
from mcp.shared.exceptions import MCPError

from toolfleet_registry.functions.failures import ModuleBusy

_TURN_SECONDS = 1.0  # that a call waits here for its turn, before the fleet comes back with it
_LATER_SECONDS = 1.0

Ask = Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]
"""Brings the answer to a request of the protocol's, by its method and parameters. Raises `MCPError`."""


async def _declared(*_: Any) -> types.ErrorData:
    """Return an error; never called: the dispatcher answers before."""
    return types.ErrorData(code=types.INVALID_REQUEST, message="Nobody can be asked now.")


ASKED: Final[Mapping[str, Any]] = {
    "elicitation_callback": _declared,
    "sampling_callback": _declared,
    "list_roots_callback": _declared,
}
"""What has the SDK declare, in the handshake, that its client can be asked."""


class Turns:
    """The turns of one session, whose server may ask: older versions of the protocol do not say for which call."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._ask: Ask | None = None

    @asynccontextmanager
    async def taken(self, ask: Ask | None) -> AsyncGenerator[None]:
        """Have no other call in the session meanwhile; `ask` answers what its server asks. Raises `ModuleBusy`."""
        try:
            async with asyncio.timeout(_TURN_SECONDS):
                await self._turn.acquire()
        except TimeoutError:
            raise ModuleBusy(_LATER_SECONDS) from None
        self._ask = ask
        try:
            yield
        finally:
            self._ask = None
            self._turn.release()

    async def answer(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a server's question. Raises `MCPError` if there is no caller to ask."""
        if self._ask is None:
            raise MCPError(types.INVALID_REQUEST, "Nobody can be asked now.")
        return await self._ask(method, {name: value for name, value in params.items() if name != "_meta"})
