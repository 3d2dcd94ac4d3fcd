"""Checks whether a user may do what only operators may."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from starlette.responses import Response

from toolfleet_gateway.auth.identity import Identity
from toolfleet_gateway.http.problems import Problem
from toolfleet_gateway.http.routes import RouteRequest
from toolfleet_registry.access.roles import Role

B = TypeVar("B")
Q = TypeVar("Q")


def require_role(who: Identity, needed: Role) -> None:
    """Raise `Problem` (403) for a sender without the role, regardless of its tools."""
    if not who.has_role(needed):
        detail = f"This needs the role {needed!r}, which the request's key does not have."
        hint = "An admin makes keys with a role: `toolfleet keys create --role`."
        raise Problem(403, "role_needed", detail, hint=hint)


def needing(
    role: Role, handle: Callable[[RouteRequest[B, Q]], Awaitable[Response]]
) -> Callable[[RouteRequest[B, Q]], Awaitable[Response]]:
    """The handler of a route that answers only those with this role, or a higher one."""

    async def checked(request: RouteRequest[B, Q]) -> Response:
        require_role(request.who, role)
        return await handle(request)

    return checked
