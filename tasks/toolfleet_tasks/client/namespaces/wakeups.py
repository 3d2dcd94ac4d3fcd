"""Reads the wake-ups of jobs that have ended, and manages those that were never accepted: `fleet.wakeups`."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, aclosing

from toolfleet_registry.contracts import Caller
from toolfleet_registry.contracts.jobs import WakeUp
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.system import fleet_clock
from toolfleet_tasks.client.session import Session, Sessions
from toolfleet_tasks.client.sync_face import SyncFace, blocking
from toolfleet_tasks.dead_letters.kept_wakes import KeptWake, WaitingKind, WantedWakes
from toolfleet_tasks.operations.change_trail import Actor
from toolfleet_tasks.operations.changes import HandledWakes, WakeupChanges
from toolfleet_tasks.wakeups.events import WakeupOutcome
from toolfleet_tasks.wakeups.inbox import CompletionInbox


class FleetWakeups:
    """The wake-ups of a fleet: each says to a conversation how a job has ended.

    Each method but `completions` raises `FleetUnavailable` when Redis does not answer within 5 s.
    """

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def completions(
        self, conversation_id: str, *, consumer: str | None = None, on_lost: Callable[[int], object] | None = None
    ) -> AsyncGenerator[WakeUp]:
        """Yield the wake-ups of a conversation, if no `core_url` is set: `async for wake in fleet.wakeups.completions(id)`.

        Waits for more, for ever, and ends when the fleet is left. Several readers share them. Each comes at least once,
        with the same `wake_id` when it comes again: it is confirmed when the next one is asked for. A wake-up during
        which a loop was left, or died, is given to another reader, after at most 35 s without a sign of the first.
        `consumer` names a reader that, restarted under its name, gets that at once; no two may have one name at the
        same time. Of each user about the last 1,000 are kept: `on_lost` is told how many unread others there were, as
        is the log (`completions_lost`). Raises `SettingsError` if a `core_url` is set here; if one is set in workers,
        the log has `completions_go_to_core`.
        """
        reader = (await self._reading()).wakes.reader(conversation_id, consumer, on_lost)
        async with aclosing(reader.read()) as wakes:
            async for wake in wakes:
                yield wake

    async def inbox(self, conversation_id: str, caller: Caller) -> CompletionInbox:
        """Return the wake-ups of the conversation that are of jobs of the caller's user: they are read, and stay until each is confirmed.

        For programs whose own readers come and go, as over HTTP. Raises as `completions`.
        """
        return (await self._reading()).wakes.inbox(conversation_id, caller.user_id)

    async def _reading(self) -> Session:
        session = await self._sessions.opened()
        if session.settings.core_url is not None:
            raise SettingsError(
                "This fleet wakes an agent's core (TOOLFLEET_CORE_URL): completions would bring nothing."
            )
        return session

    async def waiting(self, limit: int = 50, offset: int = 0) -> list[KeptWake]:
        """List at most `limit` (up to 1,000) of those that wait to be accepted, those tried next first."""
        return await (await self._sessions.opened()).dead.events.waiting(limit, offset)

    async def of_conversation(self, conversation_id: str, most: int = 50) -> list[KeptWake]:
        """List those that wait for a conversation: of the `most` (up to 1,000) that are tried next, and of the latest `most` that its readers have not confirmed."""
        return await (await self._sessions.opened()).dead.events.of_conversation(conversation_id, most)

    async def dead(self, limit: int = 50, offset: int = 0) -> list[KeptWake]:
        """List at most `limit` (up to 1,000) wake-ups that were never accepted, the latest first."""
        return await (await self._sessions.opened()).dead.events.dead(limit, offset)

    async def show(self, wake_id: str) -> KeptWake | None:
        """Return the wake-up of this id, whether it waits or is dead; `None` if it was accepted or dropped, as `outcomes` of its job says, or never was."""
        return await (await self._sessions.opened()).dead.events.show(wake_id)

    async def replay(self, wake_id: str) -> bool:
        """Try a dead wake-up again, under the same id, or a waiting one now. Returns whether it was there.

        Raises `NotReplayable` for a dead one that cannot be read, and for a call whose arguments were not kept.
        """
        return await (await self._sessions.opened()).dead.events.replay(wake_id)

    async def drop(self, *wake_ids: str, by: str | None = None) -> tuple[str, ...]:
        """Forget these waiting or dead wake-ups. Returns the ids of those that were there.

        A waiting one is tried no more, but for an attempt that is under way just now, and may still be accepted. Its
        job records that it was dropped, and the audit by whom (`by`; `None`: this machine's user).
        """
        events = (await self._sessions.opened()).dead.events
        dropped = set(await events.drop(wake_ids))
        wanted = list(dict.fromkeys(wake_ids))
        waiting = [each for each in wanted if each not in dropped and await events.show(each) is not None]
        if waiting:
            async with await self._changes(by) as changes:
                dropped |= {each for each in waiting if await changes.drop(each) is not None}
        return tuple(each for each in wanted if each in dropped)

    async def drop_all(self) -> int:
        """Forget all dead wake-ups. Returns how many there were."""
        return await (await self._sessions.opened()).dead.events.drop_all()

    async def drop_waiting(
        self, kind: WaitingKind | None = None, *, about: str = "", error: str = "", by: str | None = None
    ) -> int:
        """Forget all that wait now, of a kind, with some words in their id or subject, or in their last error. Returns how many.

        Those that come meanwhile stay. What holds for each, and `by`, is as of `drop`.
        """
        async with await self._changes(by) as changes:
            wanted = WantedWakes(kind, about, error, fleet_clock.now())
            return await _through(lambda behind: changes.drop_found(wanted, behind=behind))

    async def replay_waiting(
        self, kind: WaitingKind | None = None, *, about: str = "", error: str = "", by: str | None = None
    ) -> int:
        """Have all that wait now tried at once, chosen as by `drop_waiting`. Returns how many were not due already."""
        async with await self._changes(by) as changes:
            wanted = WantedWakes(kind, about, error, fleet_clock.now())
            return await _through(lambda behind: changes.replay_found(wanted, behind=behind))

    async def outcomes(self, job_id: str) -> tuple[WakeupOutcome, ...]:
        """Return what became of a job's wake-ups, oldest first: who accepted, read, gave up or dropped each, and when.

        The latest twenty or so, for as long as the job is kept.
        """
        found = await (await self._sessions.opened()).dead.events.outcomes([job_id])
        return tuple(found.get(job_id, ()))

    async def _changes(self, by: str | None) -> AbstractAsyncContextManager[WakeupChanges]:
        return WakeupChanges.of((await self._sessions.opened()).settings, Actor.at_command_line(by))


async def _through(step: Callable[[str | None], Awaitable[HandledWakes]]) -> int:
    """Run all steps, one after the other, and return how many they have handled."""
    handled = await step(None)
    count = handled.done
    while handled.next is not None:
        handled = await step(handled.next)
        count += handled.done
    return count


class SyncFleetWakeups(SyncFace[FleetWakeups]):
    """`FleetWakeups` with plain methods."""

    def completions(
        self, conversation_id: str, *, consumer: str | None = None, on_lost: Callable[[int], object] | None = None
    ) -> Generator[WakeUp]:
        """Yield wake-ups as `FleetWakeups.completions` does: `for wake in fleet.wakeups.completions(id)`."""
        return self._each(self._face.completions(conversation_id, consumer=consumer, on_lost=on_lost))

    waiting = blocking(FleetWakeups.waiting)
    of_conversation = blocking(FleetWakeups.of_conversation)
    dead = blocking(FleetWakeups.dead)
    show = blocking(FleetWakeups.show)
    replay = blocking(FleetWakeups.replay)
    drop = blocking(FleetWakeups.drop)
    drop_all = blocking(FleetWakeups.drop_all)
    drop_waiting = blocking(FleetWakeups.drop_waiting)
    replay_waiting = blocking(FleetWakeups.replay_waiting)
    outcomes = blocking(FleetWakeups.outcomes)
