"""The part of `ToolFleet` that hears of jobs' ends, and looks at news of them that wait or are dead."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from toolfleet_registry.contracts.jobs import WakeUp
from toolfleet_registry.errors import SettingsError
from toolfleet_tasks.client.sessions import Sessions
from toolfleet_tasks.wakeups.dead_letters import KeptWake


class WakeMethods:
    """Methods of `ToolFleet`, which has the sessions."""

    _sessions: Sessions

    async def completions(self, conversation_id: str, *, consumer: str | None = None) -> AsyncGenerator[WakeUp]:
        """The news of jobs' ends for a conversation, where no `core_url` is set: `async for wake in fleet.completions(id)`.

        Waits for more, for ever, and ends when the fleet is left. Several readers share the news. Each comes at least once, with
        the same `wake_id` when it comes again: it is done with when the next one is asked for. What a loop was left at, or
        died at, is given to another reader, after 35 s at the latest in which nothing is heard of the first. `consumer` names a
        reader that, started anew under its name, gets that at once; no two may have one name at the same time.
        Raises `SettingsError` where a `core_url` is set.
        """
        session = await self._sessions.opened()
        if session.settings.core_url is not None:
            raise SettingsError(
                "This fleet wakes an agent's core (TOOLFLEET_CORE_URL): completions would bring nothing."
            )
        reader = session.wakes.reader(conversation_id, consumer)
        async with aclosing(reader.read()) as news:
            async for wake in news:
                yield wake

    async def waiting_wakes(self, limit: int = 50, offset: int = 0) -> list[KeptWake]:
        """At most `limit` (up to 1,000) of the news of jobs' ends that wait to be accepted, those tried next first.

        As the other methods of news, it raises `FleetUnavailable` when Redis does not answer within 5 s.
        """
        return await (await self._sessions.opened()).wakes.kept.waiting(limit, offset)

    async def dead_wakes(self, limit: int = 50, offset: int = 0) -> list[KeptWake]:
        """At most `limit` (up to 1,000) of the news that nobody accepted, the latest first."""
        return await (await self._sessions.opened()).wakes.kept.dead(limit, offset)

    async def kept_wake(self, wake_id: str) -> KeptWake | None:
        """The news of this id, whether they wait or are dead; `None` if they were accepted or dropped, or never were."""
        return await (await self._sessions.opened()).wakes.kept.show(wake_id)

    async def replay_wake(self, wake_id: str) -> bool:
        """Have dead news tried anew, under the same id, and waiting ones now. Returns whether they were there.

        Raises `NotReplayable` for dead ones that cannot be read, and for calls whose arguments were not kept.
        """
        return await (await self._sessions.opened()).wakes.kept.replay(wake_id)

    async def drop_dead_wakes(self, *wake_ids: str) -> tuple[str, ...]:
        """Forget these dead news. Returns the ids of those that were there."""
        return await (await self._sessions.opened()).wakes.kept.drop(wake_ids)

    async def drop_all_dead_wakes(self) -> int:
        """Forget all dead news. Returns how many there were."""
        return await (await self._sessions.opened()).wakes.kept.drop_all()
