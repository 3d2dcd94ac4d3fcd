"""Defines who a request comes from, as far as routes need to know, and the port through which that is found out."""

from typing import Protocol

from starlette.datastructures import Headers

from toolfleet_registry.contracts import Caller


class CallerIdentity(Protocol):
    """Somebody who was let in."""

    @property
    def caller(self) -> Caller:
        """What they may do with tools."""
        ...

    def caller_for(self, user_id: str | None) -> Caller:
        """The caller in whose name they act; `None`: their own. Raises `Problem` (403) if they may not act for others."""
        ...


class RequestAuthenticator(Protocol):
    """Finds out who sends a request."""

    async def authenticate(self, headers: Headers) -> CallerIdentity:
        """Who it is. Raises `Problem`: 400, 401, 403, 429 or 503, with its headers."""
        ...


class Anonymous:
    """Nobody in particular, as routes see them that answer everybody."""

    caller = Caller()

    def caller_for(self, user_id: str | None) -> Caller:
        """As `CallerIdentity`."""
        del user_id
        return self.caller
