"""Finds a client's own call, which any gateway has started, to follow it."""

import re

from toolfleet_gateway.auth.identity import Identity
from toolfleet_tasks.calls.begun_calls import Owner
from toolfleet_tasks.calls.begun_handle import BegunHandle
from toolfleet_tasks.client.fleet import ToolFleet

_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


async def attached(fleet: ToolFleet, who: Identity, call_id: str) -> BegunHandle | None:
    """The call of this id; `None` for one that is unknown, and for one that is not for this client. `leave` it.

    Raises `FleetUnavailable`.
    """
    if not _ID.fullmatch(call_id):
        return None
    handle = await fleet.begun_calls.attach(call_id, owner_of(who))
    if handle is not None and not who.sees_calls_of(handle.tool_name):
        handle.leave()
        return None
    return handle


def owner_of(who: Identity) -> Owner:
    """Return the owner of calls: the key's own user, also if they are made in another user's name."""
    return Owner(who.caller.user_id)
