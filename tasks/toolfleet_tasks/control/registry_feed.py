"""Feeds the outbox of webhooks with the registry's events, in a thread of beat; workers send them."""

from toolfleet_registry.catalog.held_registry import held_registry
from toolfleet_registry.redis.servers import connection_factory
from toolfleet_registry.settings import Settings
from toolfleet_tasks.aio.loop_thread import LoopThread
from toolfleet_tasks.redis.connection import PipelinedConnection
from toolfleet_tasks.wakeups.webhook_feed import WebhookFeed

_END_SECONDS = 2.0  # what it was at is done by the next beat


class RegistryFeed:
    """Of one process whose settings have `registry_webhooks`. Raises nothing while Redis or the registry is away."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._connection: PipelinedConnection | None = None
        self._thread = LoopThread(self._feed, name="toolfleet-webhooks", last=self._leave)

    def start(self) -> None:
        """Feed from now on, each second."""
        self._thread.start()

    def end(self) -> None:
        """Feed no more. Takes two seconds at most; safe to call twice, and from a signal's handler."""
        self._thread.end(seconds=_END_SECONDS)

    async def _feed(self) -> None:
        settings = self._settings
        factory = connection_factory(str(settings.redis_url), master=settings.sentinel_master)
        self._connection = PipelinedConnection(factory, name="webhooks")
        self._connection.start()
        async with held_registry(settings) as held:
            await WebhookFeed(self._connection, settings, held.registry).keep()

    async def _leave(self) -> None:
        if self._connection is not None:
            await self._connection.aclose()
