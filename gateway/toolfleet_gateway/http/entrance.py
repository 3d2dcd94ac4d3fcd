"""Admits a request: finds out who sends it, and counts it in their limits."""

from dataclasses import dataclass

from starlette.types import Scope

from toolfleet_gateway.auth.authenticator import Authenticator
from toolfleet_gateway.auth.identity import Identity
from toolfleet_gateway.auth.key_limits import KeyLimits
from toolfleet_registry.contracts import Caller
from toolfleet_tasks.calls.asked_by import set_credential

ANONYMOUS = Identity(Caller())
"""Nobody in particular, as routes see them that answer everybody."""


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
