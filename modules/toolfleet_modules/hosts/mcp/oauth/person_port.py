"""Declares how a person is asked to log in: who runs a host is asked by a command, and nobody by a host."""

from typing import Protocol

from mcp.shared.auth import AuthorizationCodeResult


class PersonPort(Protocol):
    """Shows an address to a person, who comes back by another."""

    @property
    def redirect_uri(self) -> str:
        """Where the person comes back."""
        ...

    async def show(self, url: str) -> None:
        """Have the person go there."""
        ...

    async def answer(self) -> AuthorizationCodeResult:
        """What the person came back with. Raises `AuthorizationRefused`."""
        ...
