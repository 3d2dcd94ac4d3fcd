"""Defines how a session has its server report changes, for all versions of the protocol."""

from collections.abc import Callable, Mapping
from typing import Protocol

from mcp.shared.exceptions import MCPError

from toolfleet_registry.functions.server_change import ServerChange

Refusals = Mapping[str, MCPError]
"""Why a server does not let resources be watched, by their addresses."""
OnChange = Callable[[ServerChange], None]


class ServerSubscription(Protocol):
    """The subscription of one session to a server's changes."""

    async def become(self, uris: frozenset[str], again: frozenset[str]) -> Refusals:
        """Have these resources watched, and no others; those in `again` also where the server has refused it before.

        Raises `ServerAway`.
        """
        ...

    async def end(self) -> None:
        """Hear of nothing more."""
        ...
