"""Follows which queues operators have paused, and has a worker leave those alone: from its start, and within half a second later on.

A call that was fetched already is not begun all the same: the ledger says so where it is claimed.
"""

from redis.exceptions import RedisError

from toolfleet_registry.directory.known_modules import KnownModules
from toolfleet_registry.settings import Settings
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks import worker_runtime
from toolfleet_tasks.queue_states.states import QueueStates
from toolfleet_tasks.queue_states.store import read_states_now
from toolfleet_tasks.queue_states.watch import QueueStateWatch
from toolfleet_tasks.queues import lane_of, queue_of
from toolfleet_workers.pool.consumption import Consumption

_PATIENCE_SECONDS = 1.0  # at the start: Redis answers within a millisecond, or is away

log = get_logger(__name__)


class QueuePauses:
    """One worker's. `known`: the modules that there are, of which those that were added may be in another lane than the settings say."""

    def __init__(self, settings: Settings, consumption: Consumption, known: KnownModules | None) -> None:
        self._settings = settings
        self._consumption = consumption
        self._known = known
        self._watch = QueueStateWatch(settings, self._follow)

    def begin(self) -> None:
        """Have the worker begin without the queues that are paused; while Redis does not say which, without any module's."""
        if self._settings.redis_url is None:
            return
        try:
            states = read_states_now(self._settings, seconds=_PATIENCE_SECONDS)
        except (RedisError, OSError) as exc:
            log.warning("queue_states_not_read", error=str(exc) or repr(exc))
            self._consumption.begin_paused(_is_modules)
            return
        if states.stored:
            self._consumption.begin_paused(lambda name: self._is_paused(states, name))

    async def keep(self) -> None:
        """Follow them until cancelled."""
        await self._watch.keep()

    def _follow(self, states: QueueStates) -> None:
        def is_paused(name: str) -> bool:
            return self._is_paused(states, name)

        self._consumption.pause(is_paused)
        if (here := worker_runtime.current()) is not None:
            here.is_paused = is_paused

    def _is_paused(self, states: QueueStates, name: str) -> bool:
        if not states.stored or not _is_modules(name):
            return False
        module = name.removeprefix(queue_of(""))
        settings = self._settings if self._known is None else self._known.settings
        return states.is_paused(module, lane_of(module, settings))


def _is_modules(name: str) -> bool:
    return name.startswith(queue_of(""))
