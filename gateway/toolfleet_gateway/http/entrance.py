"""Admits a request: finds out who sends it, counts it in their limits, and checks the roles of operators."""

from dataclasses import dataclass

from starlette.types import Scope

from toolfleet_gateway.auth.authenticator import Authenticator
from toolfleet_gateway.auth.identity import Identity
from toolfleet_gateway.auth.key_limits import KeyLimits
from toolfleet_gateway.http.problems import Problem
from toolfleet_registry.access import Role
from toolfleet_registry.contracts import Caller
from toolfleet_registry.errors import RoleNeeded
from toolfleet_tasks.calls.audit_trail import set_credential
from toolfleet_tasks.operations.change_trail import Actor
from toolfleet_tasks.resources.operation import FleetOperator

ANONYMOUS = Identity(Caller())
"""The sender that public routes see."""


@dataclass(frozen=True, slots=True)
class Entrance:
    """Asks for a key or a token, and for what its holder may send."""

    authenticator: Authenticator
    limits: KeyLimits

    async def admit(self, scope: Scope, endpoint: str = "") -> Identity:
        """Return the sender.

        An `endpoint` that is a resource of its own, such as `/mcp`, takes tokens for it. Raises `AuthRefused`.
        """
        who = await self.authenticator.identify(scope["headers"], scope["query_string"], endpoint=endpoint)
        await self.limits.take_request(who)
        set_credential(who.name, who.caller.user_id)
        return who


def operator_of(who: Identity) -> FleetOperator:
    """Return the sender of a request as an operator: the audit names the user, and the key or the token."""
    actor = Actor(who.caller.user_id, who.name)
    return FleetOperator(actor, who.key_maker(), who.caller, key_id=who.key_id, acts_for=who.caller_for)


def require_role(who: Identity, needed: Role) -> None:
    """Raise `Problem` (403) for a sender without the role, regardless of its tools."""
    if not who.has_role(needed):
        refusal = RoleNeeded(needed)
        raise Problem(403, refusal.error_code, str(refusal), hint=refusal.hint)
