"""Has dead letters replayed and dropped for an operator; each change has its line in the audit."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Self

from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.errors import NoSuchDeadLetter, NotReplayable
from toolfleet_registry.settings import Settings
from toolfleet_tasks.dead_letters.entries import DeadEntries
from toolfleet_tasks.dead_letters.entry import KINDS, DeadKind
from toolfleet_tasks.operations.change_trail import Actor, ChangeTrail

MOST_AT_ONCE: Final = 1_000
"""Letters that are replayed together."""


@dataclass(frozen=True, slots=True)
class ReplayedLetters:
    """The number of replayed letters, and the problems of the others, a sentence each."""

    due: int
    problems: tuple[str, ...] = ()


class LetterChanges:
    """Operators' changes of letters. Raises `FleetUnavailable` when Redis does not answer within 5 s."""

    def __init__(self, dead: DeadEntries, trail: ChangeTrail) -> None:
        self.dead = dead
        self._trail = trail

    @classmethod
    @asynccontextmanager
    async def of(cls, settings: Settings, by: Actor) -> AsyncGenerator[Self]:
        """Open the changes for the fleet of these settings. Raises `SettingsError` if they name none."""
        async with DeadEntries.of(settings) as dead, ChangeTrail.of(settings, by) as trail:
            yield cls(dead, trail)

    async def replay_call(self, call_id: str, run: Callable[[], Awaitable[ToolResult]]) -> ToolResult:
        """Have `run` make a dead letter's call once more: its line names the new call, which has one of its own."""
        async with self._trail.change("dead_letter_replayed", call_id) as change:
            result = await run()
            change.facts["call_id"] = result.audit.call_id
            return result

    async def replay_event(self, event_id: str) -> None:
        """Have dead news sent again. Raises `NoSuchDeadLetter` and `NotReplayable`."""
        async with self._trail.change("dead_letter_replayed", event_id):
            if not await self.dead.events.replay(event_id):
                raise NoSuchDeadLetter(event_id)

    async def replay_all(self, kind: DeadKind) -> ReplayedLetters:
        """Have the latest 1,000 dead wake-ups, or webhooks, sent again."""
        problems = list[str]()
        async with self._trail.change("dead_letters_replayed", kind) as change:
            letters = await self.dead.list((kind,), MOST_AT_ONCE)
            for letter in letters:
                try:
                    problems += [] if await self.dead.events.replay(letter.id) else [str(NoSuchDeadLetter(letter.id))]
                except NotReplayable as exc:
                    problems.append(str(exc))
            done = change.facts["count"] = len(letters) - len(problems)
        return ReplayedLetters(int(done), tuple(problems))

    async def drop(self, letter_id: str, kinds: Collection[DeadKind] = KINDS) -> bool:
        """Forget a letter. Returns whether it was there."""
        async with self._trail.change("dead_letter_dropped", letter_id) as change:
            is_dropped = bool(await self.dead.drop([letter_id], kinds))
            change.refusal = None if is_dropped else "There is no such dead letter."
        return is_dropped

    async def drop_all(self, kinds: Collection[DeadKind] = KINDS) -> int:
        """Forget all letters of these kinds. Returns how many there were."""
        async with self._trail.change("dead_letters_dropped", ", ".join(kinds)) as change:
            change.facts["count"] = count = await self.dead.drop_all(kinds)
        return count
