"""Asks the registry's store for API keys, and has them made and revoked."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from toolfleet_cli.console.output import fail, note
from toolfleet_registry.errors import OperationRefused
from toolfleet_registry.settings import load_settings

if TYPE_CHECKING:
    from toolfleet_registry.access.api_key import KeyDraft
    from toolfleet_registry.access.api_keys import CreatedKey
    from toolfleet_registry.access.entries import KeyRecord
    from toolfleet_tasks.operations.key_changes import KeyChanges

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DirectKeys:
    """The keys in the store, for the command line; `by` is the user's name in the audit. A refusal ends the command."""

    by: str | None = None

    def created(self, draft: "KeyDraft") -> "CreatedKey":
        """A new key, with its text."""
        from toolfleet_registry.access.grants import COMMAND_LINE

        return self._change(lambda changes: changes.create(draft, COMMAND_LINE))

    def listed(self) -> "list[KeyRecord]":
        """All keys, the oldest first."""
        from toolfleet_registry.access.api_keys import ApiKeys

        with contextlib.closing(ApiKeys.of(load_settings())) as keys:
            return keys.records()

    def revoked(self, key_ids: Sequence[str]) -> list[str]:
        """Revoke these, and return those that there were."""
        return self._change(lambda changes: changes.revoke(key_ids))

    def _change(self, work: "Callable[[KeyChanges], Coroutine[Any, Any, T]]") -> T:
        from toolfleet_tasks.operations.change_trail import Actor
        from toolfleet_tasks.operations.key_changes import KeyChanges

        async def run() -> T:
            async with KeyChanges.of(load_settings(), Actor.at_command_line(self.by)) as changes:
                done = await work(changes)
                if changes.trail.missed:  # the keys may be in a database
                    note("The audit may have no line of this: there is no Redis that answers.", style="dim")
                return done

        try:
            return asyncio.run(run())
        except OperationRefused as exc:
            fail(str(exc), code=1)
