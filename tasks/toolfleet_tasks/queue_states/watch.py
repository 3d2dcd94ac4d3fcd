"""Follows the states of queues for a worker: it hears within half a second of each change."""

import asyncio
from collections.abc import Callable

from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.settings import Settings
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.queue_states.states import QueueStates
from toolfleet_tasks.queue_states.store import QueueStateStore

_POLL_SECONDS = 0.5  # one small question, as for the directory of modules

log = get_logger(__name__)


class QueueStateWatch:
    """One worker's. `on_read` hears what holds after each look, whether it has changed or not."""

    def __init__(self, settings: Settings, on_read: Callable[[QueueStates], None]) -> None:
        self._settings = settings
        self._on_read = on_read
        self._is_away = False

    async def keep(self) -> None:
        """Follow them until cancelled. While Redis is away, what was known stays so. Raises nothing else."""
        if self._settings.redis_url is None:
            return
        url, master = str(self._settings.redis_url), self._settings.sentinel_master
        async with async_client(url, master=master) as redis:
            store = QueueStateStore(redis, self._settings)
            while True:
                await self._poll(store)
                await asyncio.sleep(_POLL_SECONDS)

    async def _poll(self, store: QueueStateStore) -> None:
        try:
            self._on_read(await store.read())
            self._is_away = False
        except FleetUnavailable as exc:
            self._say_away(exc)
        except Exception as exc:  # noqa: BLE001 - a defect of ours: a worker that hears of nothing any more would be worse
            self._say_away(exc)

    def _say_away(self, error: Exception) -> None:
        if not self._is_away:
            log.warning("queue_states_not_read", error=str(error) or repr(error))
        self._is_away = True
