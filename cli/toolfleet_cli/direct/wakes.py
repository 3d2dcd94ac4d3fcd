"""Asks Redis for wake-ups that wait to be accepted, and has them tried."""

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolfleet_cli.console.output import progress
from toolfleet_registry.settings import load_settings

if TYPE_CHECKING:
    from toolfleet_tasks.dead_letters.kept_wakes import KeptWake
    from toolfleet_tasks.operations.letter_changes import LetterChanges


@dataclass(frozen=True, slots=True)
class RedisWakes:
    """The wake-ups in Redis, for one who types; `by` is their name in the audit."""

    by: str | None = None

    def listed(self, limit: int, offset: int) -> "list[KeptWake]":
        """Those that are tried next first."""

        async def ask() -> "list[KeptWake]":
            async with progress("Asking Redis"), self._changes() as changes:
                return await changes.dead.events.waiting(limit, offset)

        return asyncio.run(ask())

    def shown(self, wake_id: str) -> "KeptWake | None":
        """One that waits or is dead."""

        async def ask() -> "KeptWake | None":
            async with progress("Asking Redis"), self._changes() as changes:
                return await changes.dead.events.show(wake_id)

        return asyncio.run(ask())

    def tried(self, wake_id: str) -> bool:
        """Have one tried now. Returns whether it was there."""

        async def ask() -> bool:
            async with progress("Asking Redis"), self._changes() as changes:
                return await changes.try_wakeup(wake_id)

        return asyncio.run(ask())

    def _changes(self) -> "AbstractAsyncContextManager[LetterChanges]":
        from toolfleet_tasks.operations.change_trail import Actor  # noqa: PLC0415 - takes a while to load
        from toolfleet_tasks.operations.letter_changes import LetterChanges  # noqa: PLC0415 - as above

        return LetterChanges.of(load_settings(), Actor.at_command_line(self.by))
