"""Makes, lists and revokes API keys."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final, TypeVar

from pydantic import Field

from toolfleet_registry.access import ApiKey, KeyDraft, shown_id
from toolfleet_registry.api_keys import ApiKeys
from toolfleet_registry.contracts import Caller
from toolfleet_registry.settings import Settings
from toolfleet_tasks.resources.operation import AnswerModel, OperationRequest, absent, operation

T = TypeVar("T")

_ALL: Final = "/operations/keys"


class ShownKey(AnswerModel):
    """A key as it is listed: its text is nowhere but with its holder."""

    key: ApiKey
    """The key."""
    last_used_at: float | None = None
    """When it was used last, in seconds since the epoch, to a minute."""


class KeyList(AnswerModel):
    """All keys, also those that have expired."""

    keys: list[ShownKey]
    """The oldest first."""
    count: int
    """How many there are."""


class NewKey(AnswerModel):
    """A key that was made."""

    key: ApiKey
    """The key."""
    text: str = Field(repr=False)
    """What its holder sends. It is told this once."""


@operation("GET", _ALL, role="admin", answers="The oldest first.")
async def list_keys(asked: OperationRequest[None, None]) -> KeyList:
    """List all API keys."""
    records = await _in_store(asked.settings, ApiKeys.records)
    shown = [ShownKey(key=each.key, last_used_at=each.last_used_at) for each in records]
    return KeyList(keys=shown, count=len(shown))


@operation("POST", _ALL, role="admin", status=201, answers="The key, and its text.", problems=(409,))
async def create_key(asked: OperationRequest[KeyDraft, None]) -> NewKey:
    """Create an API key, with no more rights than your own."""
    draft = asked.body
    facts = {"key_user": draft.user_id, "key_permission": draft.permission, "key_role": draft.role}
    async with asked.change("key_created", "-", **facts) as change:  # neither the key nor its digest is in the audit
        made = await _in_store(asked.settings, lambda keys: keys.create(draft, asked.operator.maker))
        change.subject = made.key.id
    return NewKey(key=made.key, text=made.text)


@operation(
    "DELETE", f"{_ALL}/{{key_id}}", role="admin", answers="Within two seconds no gateway takes it.", problems=(404,)
)
async def revoke_key(asked: OperationRequest[None, None]) -> None:
    """Revoke an API key."""
    key_id = asked.path["key_id"]
    async with asked.change("key_revoked", shown_id(key_id)) as change:
        revoked = await _in_store(asked.settings, lambda keys: keys.revoke([key_id]))
        change.refusal = None if revoked else "There is no such key."
    if not revoked:
        raise absent("key")


async def holder_of(settings: Settings, key_id: str) -> Caller:
    """Return the caller that holds a key. Raises `NoSuchEntry`."""
    found = next((each.key for each in await _in_store(settings, ApiKeys.records) if each.key.id == key_id), None)
    if found is None:
        raise absent("key")
    return found.caller


async def _in_store(settings: Settings, work: Callable[[ApiKeys], T]) -> T:
    """Use the store in a thread: it is synchronous, and limits the time of each answer itself."""

    def run() -> T:
        with contextlib.closing(ApiKeys.of(settings)) as keys:
            return work(keys)

    return await asyncio.to_thread(run)
