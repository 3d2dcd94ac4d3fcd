"""Makes and revokes API keys, for an operator; each change has its line in the audit."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Self, TypeVar

from toolfleet_registry.access.api_key import KeyDraft
from toolfleet_registry.access.api_keys import ApiKeys, CreatedKey
from toolfleet_registry.access.grants import KeyMaker
from toolfleet_registry.access.key_text import shown_id
from toolfleet_registry.settings import Settings
from toolfleet_tasks.operations.change_trail import Actor, ChangeTrail

T = TypeVar("T")


class KeyChanges:
    """Operators' changes of keys. Raises as `ApiKeys` does."""

    def __init__(self, settings: Settings, trail: ChangeTrail) -> None:
        self._settings = settings
        self.trail = trail

    @classmethod
    @asynccontextmanager
    async def of(cls, settings: Settings, by: Actor) -> AsyncGenerator[Self]:
        """Open the changes for the fleet of these settings. If they name no Redis, changes are only logged."""
        async with ChangeTrail.of(settings, by) as trail:
            yield cls(settings, trail)

    async def create(self, draft: KeyDraft, maker: KeyMaker) -> CreatedKey:
        """Create a key as `ApiKeys.create` does. The audit line has neither the key nor its digest."""
        facts = {"key_user": draft.user_id, "key_permission": draft.permission, "key_role": draft.role}
        async with self.trail.change("key_created", "-", **facts) as change:
            made = await _asked(self._settings, lambda keys: keys.create(draft, maker))
            change.subject = made.key.id
            return made

    async def revoke(self, key_ids: Sequence[str]) -> list[str]:
        """Revoke keys as `ApiKeys.revoke` does, with an audit line for each."""
        revoked = list[str]()
        for key_id in key_ids:
            async with self.trail.change("key_revoked", shown_id(key_id)) as change:
                found = await _asked(self._settings, functools.partial(ApiKeys.revoke, key_ids=[key_id]))
                change.refusal = None if found else "There is no such key."
            revoked += found
        return revoked


async def _asked(settings: Settings, ask: Callable[[ApiKeys], T]) -> T:
    """Ask the store in a thread: it is synchronous, and limits the time of each answer itself."""

    def work() -> T:
        with contextlib.closing(ApiKeys.of(settings)) as keys:
            return ask(keys)

    return await asyncio.to_thread(work)
