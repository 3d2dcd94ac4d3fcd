"""Defines where a host finds what clients watch, and where it tells what has changed."""

from collections.abc import Sequence
from typing import Protocol

from toolfleet_registry.functions.passed_methods import ServerChange


class WatchPort(Protocol):
    """The watches of one module. Raises `FleetUnavailable` without an answer."""

    async def watched(self) -> frozenset[str]:
        """The addresses of resources that clients watch now, at most 1,000."""
        ...

    async def tell(self, changes: Sequence[ServerChange]) -> None:
        """Report changes to the listeners."""
        ...

    async def aclose(self) -> None:
        """Let go of connections."""
        ...
