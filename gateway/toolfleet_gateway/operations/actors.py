"""Names the sender of a request as the audit does."""

from toolfleet_gateway.auth.identity import Identity
from toolfleet_tasks.operations.change_trail import Actor


def actor_of(who: Identity) -> Actor:
    """The user, and the key or the token."""
    return Actor(who.caller.user_id, who.name)
