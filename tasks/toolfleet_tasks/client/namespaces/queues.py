"""Pauses, drains and resumes queues: `fleet.queues`."""

import builtins
from contextlib import AbstractAsyncContextManager

from toolfleet_tasks.client.session import Sessions
from toolfleet_tasks.client.sync_face import SyncFace, blocking
from toolfleet_tasks.operations.change_trail import Actor
from toolfleet_tasks.operations.changes import QueueChanges
from toolfleet_tasks.operations.queue_overview import QueueOverview, QueueOverviews


class FleetQueues:
    """The queues of a fleet's modules. Each is named by its module (`crm`), and all of a lane by `lane:slow`.

    Each change has its line in the audit, with who has made it (`by`; `None`: this machine's user) and why. Each method raises
    `NoSuchQueue` for a name that there is not, and `FleetUnavailable` when Redis does not answer within 5 s.
    """

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def list(self) -> builtins.list[QueueOverview]:
        """Return how each queue is, by name."""
        async with QueueOverviews.of((await self._sessions.opened()).settings) as overviews:
            return [*await overviews.read()]

    async def pause(self, name: str, *, reason: str = "", by: str | None = None) -> None:
        """Have workers begin nothing more of a queue, within a second: what runs goes on, and calls wait within their deadlines."""
        async with await self._changes(by) as changes:
            await changes.pause(name, reason)

    async def drain(
        self, name: str, *, reason: str = "", by: str | None = None, wait_seconds: float = 0
    ) -> builtins.list[QueueOverview]:
        """Have a queue take no new calls, while those that wait are run. Returns how it is when nothing is left, or after `wait_seconds`."""
        async with await self._changes(by) as changes:
            await changes.drain(name, reason)
        async with QueueOverviews.of((await self._sessions.opened()).settings) as overviews:
            return [*await overviews.wait_until_empty(name, seconds=wait_seconds)]

    async def resume(self, name: str, *, reason: str = "", by: str | None = None) -> None:
        """End both."""
        async with await self._changes(by) as changes:
            await changes.resume(name, reason)

    async def _changes(self, by: str | None) -> AbstractAsyncContextManager[QueueChanges]:
        settings = (await self._sessions.opened()).settings
        return QueueChanges.of(settings, by=Actor.at_command_line(by))


class SyncFleetQueues(SyncFace[FleetQueues]):
    """`FleetQueues` with plain methods."""

    list = blocking(FleetQueues.list)
    pause = blocking(FleetQueues.pause)
    drain = blocking(FleetQueues.drain)
    resume = blocking(FleetQueues.resume)
