"""Has wake-ups that wait tried and dropped for an operator, one or all of a filter; each change has its line in the audit."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final, Literal, Self

from toolfleet_registry.errors import NotReplayable
from toolfleet_registry.settings import Settings
from toolfleet_registry.time import fleet_clock
from toolfleet_tasks.dead_letters.entries import DeadEntries
from toolfleet_tasks.dead_letters.kept_wakes import KeptWake, KeptWakes
from toolfleet_tasks.dead_letters.waiting_search import WantedWakes, search_waiting
from toolfleet_tasks.operations.change_trail import Actor, ChangeKind, ChangeTrail

MOST_AT_ONCE: Final = 1_000
"""Wake-ups that one step handles."""

_ABSENT = "There is no such wake-up."


@dataclass(frozen=True, slots=True)
class HandledWakes:
    """The result of one step over a filter. `passed`: those that are due already, or that another operator has handled.

    `under_way`: those that were dropped during an attempt, and may still be accepted. `next`: where the next step
    continues; `None`: nothing is left. `problems`: a sentence for each that cannot be tried.
    """

    done: int = 0
    passed: int = 0
    under_way: int = 0
    next: str | None = None
    problems: tuple[str, ...] = ()


class WakeupChanges:
    """Operators' changes of waiting wake-ups. Raises `FleetUnavailable` when Redis does not answer within 5 s."""

    def __init__(self, dead: DeadEntries, trail: ChangeTrail, by: Actor) -> None:
        self.dead = dead
        self._kept: KeptWakes = dead.events
        self._trail = trail
        self._by = f"{by.user_id or '-'} ({by.by})"

    @classmethod
    @asynccontextmanager
    async def of(cls, settings: Settings, by: Actor) -> AsyncGenerator[Self]:
        """Open the changes for the fleet of these settings. Raises `SettingsError` if they name none."""
        async with DeadEntries.of(settings) as dead, ChangeTrail.of(settings, by) as trail:
            yield cls(dead, trail, by)

    async def replay(self, wake_id: str) -> bool:
        """Have one that waits, or is dead, tried now. Returns whether it was there. Raises `NotReplayable`."""
        async with self._trail.change("wakeup_replayed", wake_id) as change:
            was_there = await self._kept.replay(wake_id)
            change.refusal = None if was_there else _ABSENT
        return was_there

    async def drop(self, wake_id: str) -> Literal["dropped", "under_way"] | None:
        """Forget one that waits; `None`: none of this id does. `under_way`: it is tried just now, and may still be accepted."""
        async with self._trail.change("wakeup_dropped", wake_id) as change:
            became = await self._kept.drop_waiting(wake_id, self._by)
            change.refusal = _ABSENT if became is None else None
            if became == "under_way":
                change.facts["under_way"] = 1
        return became

    async def replay_found(
        self, wanted: WantedWakes, *, behind: str | None = None, limit: int = MOST_AT_ONCE
    ) -> HandledWakes:
        """Try at most `limit` matching wake-ups now, of those that waited when the first step began; raises `ValueError` for an invalid mark."""

        async def replay(wake: KeptWake, so_far: HandledWakes) -> HandledWakes:
            if (
                wake.due_at is not None and wake.due_at <= fleet_clock.now()
            ):  # put behind the mark, it would be met again
                return replace(so_far, passed=so_far.passed + 1)
            try:
                was_there = await self._kept.replay(wake.wake_id)
            except NotReplayable as exc:  # it has died just now
                return replace(so_far, problems=(*so_far.problems, str(exc)))
            return replace(so_far, done=so_far.done + was_there, passed=so_far.passed + (not was_there))

        return await self._each_of("wakeups_replayed", wanted, replay, behind, limit)

    async def drop_found(
        self, wanted: WantedWakes, *, behind: str | None = None, limit: int = MOST_AT_ONCE
    ) -> HandledWakes:
        """Forget at most `limit` matching wake-ups, of those that waited when the first step began; raises `ValueError` for an invalid mark."""

        async def drop(wake: KeptWake, so_far: HandledWakes) -> HandledWakes:
            became = await self._kept.drop_waiting(wake.wake_id, self._by)
            return replace(
                so_far,
                done=so_far.done + (became is not None),
                passed=so_far.passed + (became is None),
                under_way=so_far.under_way + (became == "under_way"),
            )

        return await self._each_of("wakeups_dropped", wanted, drop, behind, limit)

    async def _each_of(
        self,
        kind: ChangeKind,
        wanted: WantedWakes,
        handle: Callable[[KeptWake, HandledWakes], Awaitable[HandledWakes]],
        behind: str | None,
        limit: int,
    ) -> HandledWakes:
        wanted = replace(wanted, until=min(wanted.until, fleet_clock.now()))
        found = await search_waiting(self._kept, wanted, behind=behind, limit=limit)
        handled = HandledWakes(next=found.next)
        if not found.wakes:  # nothing is changed, and no entry is needed
            return handled
        async with self._trail.change(kind, wanted.kind or "all", **wanted.words) as change:
            for wake in found.wakes:
                handled = await handle(wake, handled)
                change.facts["count"] = handled.done  # also where Redis goes away in the middle
        return handled
