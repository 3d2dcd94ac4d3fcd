"""Declares how a person is asked to log in: a command can ask its user, a host cannot."""

from typing import Protocol

from mcp.shared.auth import AuthorizationCodeResult


class PersonPort(Protocol):
    """Shows an address to a person, who comes back by another."""

    @property
    def redirect_uri(self) -> str:
        """The URL to which the person returns."""
        ...

    async def show(self, url: str) -> None:
        """Have the person go there."""
        ...

    async def answer(self) -> AuthorizationCodeResult:
        """Return the result of the person's login. Raises `AuthorizationRefused`."""
        ...
