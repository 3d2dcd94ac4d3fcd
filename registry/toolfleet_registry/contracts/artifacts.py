"""Defines what is recorded of an artifact, who owns it, what its readers have of it, and how a call's arguments name one."""

import contextlib
import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from pydantic_core import from_json, to_json

from toolfleet_registry.contracts.call_context import Conversation
from toolfleet_registry.contracts.calls import PublishedCall
from toolfleet_registry.contracts.message import Message

NOT_YOURS: Final = "There is no such artifact, or it is not yours: `artifacts.list` shows those there are."
"""The one answer for an artifact that does not exist, and for one that the reader may not read."""

HANDLE: Final = "$artifact"
"""The member of an object that stands in place of an argument's value, and names the artifact that is to be there."""

ARTIFACT_ID: Final = re.compile(r"[0-9a-z][0-9a-z.-]{0,199}\.[0-9]{1,4}\.[0-9]{1,4}")
"""A handle: a call's id, its attempt, and the number of the part."""

JSON_TYPE: Final = "application/json"

Hide: TypeAlias = Callable[[Any], Awaitable[Any]]
"""Returns a tool's result as the reader's profile lets it pass, the same object if it hides nothing. Raises `PersonalDataBlocked`."""

_MEMBERS = frozenset({HANDLE, "sha256", "size"})


class ArtifactRecord(Message):
    """The record of an artifact; times in seconds since the epoch. `owner` is a digest."""

    id: str
    owner: str
    tool_name: str
    call_id: str
    media_type: str
    size: int
    sha256: str
    made_at: float
    expires_at: float


async def screened(record: ArtifactRecord, data: bytes, hide: Hide) -> bytes:
    """Return a whole artifact as its reader may have it, at every door: JSON is filtered as a value, and other text as a text.

    Files that are no text are passed on as they are, in results, too. Raises `PersonalDataBlocked`.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return data
    value: Any = text
    if record.media_type == JSON_TYPE:
        with contextlib.suppress(ValueError):
            value = from_json(text)
    hidden = await hide(value)
    if hidden is value:
        return data
    return str(hidden).encode() if value is text else to_json(hidden)


def owner_of(call: PublishedCall) -> str | None:
    """Return who owns the artifacts of a call."""
    return owner_for(call.user_id, call.asked_by)


def owner_for(user_id: str | None, asked_by: Sequence[str]) -> str | None:
    """Return who owns artifacts: the user; without one who asks, which is a credential or a conversation; else `None`."""
    if user_id is not None:
        return f"user {user_id}"
    return asked_by[0] if asked_by else None


def asked_in(conversation: Conversation | None) -> tuple[str, ...]:
    """Return a conversation as the one who asks, for calls without a user and a credential; of its id the digest, as that may be personal."""
    if conversation is None or not conversation.conversation_id:
        return ()
    digest = hashlib.sha256(conversation.conversation_id.encode("utf-8", "surrogatepass")).hexdigest()
    return (f"conversation {digest}",)


def named_artifacts(arguments: Any) -> dict[str, dict[str, Any]]:
    """Return the arguments that name an artifact, by their names."""
    if not isinstance(arguments, dict):
        return {}
    return {name: value for name, value in arguments.items() if isinstance(value, dict) and _is_handle(value)}


def has_handle(arguments: Any) -> bool:
    """Return whether anything within the arguments has the member `$artifact`."""
    return f'"{HANDLE}": ' in json.dumps(arguments)  # in a text these quotes are escaped


def _is_handle(value: Mapping[str, Any]) -> bool:
    return isinstance(value.get(HANDLE), str) and value.keys() <= _MEMBERS
