"""Knows the sender of a request as an operator, and checks whether it may do what only operators may."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from starlette.responses import Response

from toolfleet_gateway.auth.identity import Identity
from toolfleet_gateway.http.problems import Problem
from toolfleet_gateway.http.routes import RouteRequest
from toolfleet_registry.access.roles import Role
from toolfleet_registry.errors import RoleNeeded
from toolfleet_tasks.operations.change_trail import Actor
from toolfleet_tasks.resources.operation import FleetOperator

B = TypeVar("B")
Q = TypeVar("Q")


def operator_of(who: Identity) -> FleetOperator:
    """Return the sender of a request as an operator: the audit names the user, and the key or the token."""
    return FleetOperator(Actor(who.caller.user_id, who.name), who.key_maker(), who.caller, key_id=who.key_id)


def require_role(who: Identity, needed: Role) -> None:
    """Raise `Problem` (403) for a sender without the role, regardless of its tools."""
    if not who.has_role(needed):
        refusal = RoleNeeded(needed)
        raise Problem(403, refusal.error_code, str(refusal), hint=refusal.hint)


def needing(
    role: Role, handle: Callable[[RouteRequest[B, Q]], Awaitable[Response]]
) -> Callable[[RouteRequest[B, Q]], Awaitable[Response]]:
    """The handler of a route that answers only those with this role, or a higher one."""

    async def checked(request: RouteRequest[B, Q]) -> Response:
        require_role(request.who, role)
        return await handle(request)

    return checked
