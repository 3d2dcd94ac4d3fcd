"""Reads from a client's request of which conversation, and of which run in it, its call is."""

from collections.abc import Mapping
from typing import Any, Final

from toolfleet_gateway.mcp.calls.call_keys import WrongKey
from toolfleet_registry.contracts import Conversation

RUN_ID: Final = "io.toolfleet/run_id"
"""The name in a request's `_meta` of the agent's turn: what a profile's `run_limit` counts by."""
CONVERSATION_ID: Final = "io.toolfleet/conversation_id"
"""The same of the conversation, for `thread_limit`; a token's own counts more."""

_LONGEST = 256  # characters


def conversation_in(meta: Mapping[str, Any] | None, own: str | None) -> Conversation | None:
    """What a client says; `own` is its token's conversation. Raises `WrongKey` for what is no name."""
    run_id, said = _name_in(meta, RUN_ID), _name_in(meta, CONVERSATION_ID)
    conversation_id = own or said
    if run_id is None and conversation_id is None:
        return None
    return Conversation(conversation_id=conversation_id, run_id=run_id)


def _name_in(meta: Mapping[str, Any] | None, name: str) -> str | None:
    value = None if meta is None else meta.get(name)
    if value is not None and (not isinstance(value, str) or not 0 < len(value) <= _LONGEST):
        raise WrongKey(f"_meta[{name!r}] must be a text of 1 to {_LONGEST} characters.")
    return value
