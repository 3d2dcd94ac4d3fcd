"""Asks Redis for wake-ups that wait to be accepted, and has them tried and dropped."""

import asyncio
import math
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolfleet_cli.console.output import progress
from toolfleet_cli.console.wake_choice import ChosenWakes, WakeAction, WakeStep
from toolfleet_registry.settings import load_settings
from toolfleet_registry.time import fleet_clock

if TYPE_CHECKING:
    from toolfleet_tasks.dead_letters.kept_wakes import KeptWake
    from toolfleet_tasks.dead_letters.waiting_search import WantedWakes
    from toolfleet_tasks.operations.wakeup_changes import WakeupChanges


@dataclass(frozen=True, slots=True)
class RedisWakes:
    """The wake-ups in Redis, for one who types; `by` is their name in the audit."""

    by: str | None = None

    def listed(self, chosen: ChosenWakes, limit: int, offset: int) -> "list[KeptWake]":
        """Return those that are tried next first."""
        from toolfleet_tasks.dead_letters.waiting_search import search_waiting

        async def ask() -> "list[KeptWake]":
            async with progress("Asking Redis"), self._changes() as changes:
                if chosen.is_all:
                    return await changes.dead.events.waiting(limit, offset)
                return (await search_waiting(changes.dead.events, _wanted(chosen), limit=limit)).wakes

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
                return await changes.replay(wake_id)

        return asyncio.run(ask())

    def dropped(self, wake_id: str) -> bool | None:
        """Forget one that waits; `None`: there is none. Returns whether it is tried just now, and may still be accepted."""

        async def ask() -> bool | None:
            async with progress("Asking Redis"), self._changes() as changes:
                became = await changes.drop(wake_id)
                return None if became is None else became == "under_way"

        return asyncio.run(ask())

    def handled(self, action: WakeAction, chosen: ChosenWakes, behind: str | None) -> WakeStep:
        """One step over all of a filter: have them tried, or forget them."""

        async def ask() -> WakeStep:
            async with progress("Asking Redis"), self._changes() as changes:
                step = changes.replay_found if action == "replay" else changes.drop_found
                done = await step(_wanted(chosen), behind=behind)
                return WakeStep(done.done, done.under_way, list(done.problems), done.next)

        return asyncio.run(ask())

    def _changes(self) -> "AbstractAsyncContextManager[WakeupChanges]":
        from toolfleet_tasks.operations.change_trail import Actor
        from toolfleet_tasks.operations.wakeup_changes import WakeupChanges

        return WakeupChanges.of(load_settings(), Actor.at_command_line(self.by))


def _wanted(chosen: ChosenWakes) -> "WantedWakes":
    from toolfleet_tasks.dead_letters.waiting_search import WantedWakes

    until = fleet_clock.now() - chosen.min_age_seconds if chosen.min_age_seconds else math.inf
    return WantedWakes(chosen.kind, chosen.about, chosen.error, until)
