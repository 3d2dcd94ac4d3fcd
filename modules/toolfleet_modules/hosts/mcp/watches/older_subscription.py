"""Watches a server's resources one by one, as versions of the protocol before 2026-07-28 do."""

import asyncio
import contextlib
from typing import Any

import mcp_types as types
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from toolfleet_modules.hosts.mcp.mcp_session import McpSession
from toolfleet_modules.hosts.mcp.watches.subscription import Refusals
from toolfleet_registry.time import machine_clock

_SECONDS = 10.0  # for a server to answer
_REFUSED_SECONDS = 60.0  # until a resource is asked for again that was refused


class OlderSubscription:
    """Of one session, whose notifications come by themselves."""

    def __init__(self, connection: McpSession) -> None:
        self._connection = connection
        self._held = set[str]()
        self._refused = dict[str, tuple[MCPError, float]]()

    async def become(self, uris: frozenset[str], again: frozenset[str]) -> Refusals:
        """As `ServerSubscription` says."""
        now = machine_clock.monotonic()
        self._refused = {
            uri: (error, until)
            for uri, (error, until) in self._refused.items()
            if uri in uris and uri not in again and until > now
        }
        for uri in sorted(uris - self._held - self._refused.keys()):
            try:
                await self._asked(types.SubscribeRequest(params=types.SubscribeRequestParams(uri=uri)))
                self._held.add(uri)
            except MCPError as exc:
                self._refused[uri] = exc, machine_clock.monotonic() + _REFUSED_SECONDS
        for uri in sorted(self._held - uris):
            self._held.discard(uri)
            with contextlib.suppress(MCPError):
                await self._asked(types.UnsubscribeRequest(params=types.UnsubscribeRequestParams(uri=uri)))
        return {uri: error for uri, (error, _) in self._refused.items()}

    async def end(self) -> None:
        """It ends with its session."""

    async def _asked(self, request: Any) -> None:
        """Raises `MCPError` and `ServerAway`."""
        try:
            async with asyncio.timeout(_SECONDS):
                await self._connection.request(request)
        except TimeoutError:
            raise MCPError(types.REQUEST_TIMEOUT, f"The server did not answer within {_SECONDS:g} s.") from None
        except ValidationError:
            raise MCPError(types.INTERNAL_ERROR, "The server's answer is none of the protocol.") from None
