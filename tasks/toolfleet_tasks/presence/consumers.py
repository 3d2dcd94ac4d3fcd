"""Notes every second which queues a worker consumes, and counts the workers of each queue.

The notes are at the Redis of the results, with any broker. Agents refuse calls to queues that no worker consumes.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from redis import Redis
from redis.exceptions import RedisError

from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.redis.servers import async_client, reason_of, sync_client
from toolfleet_registry.settings import Settings
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.system.process import this_process
from toolfleet_registry.time import machine_clock
from toolfleet_tasks.lua.constants import NOTE_SECONDS, RESTART
from toolfleet_tasks.lua.consumers import COUNT, LEAVE, NOTE
from toolfleet_tasks.presence.worker_load import forget_load, note_load

_BEAT_SECONDS = 1.0
_POLL_SECONDS = 0.25  # for queues that have come, or gone
_ANSWER_SECONDS = 1.0

log = get_logger(__name__)

# How long a worker that SIGTERM ends counts as one that is being restarted: its modules' calls wait.
_RESTART_SECONDS = 60.0


class ConsumerNotes:
    """One worker's. `consumed` names its queues as they are now, `running` how many calls it runs, by module; in a thread of their own.

    A thread, as a tool that blocks the worker's loop for a while is no reason to take the worker for dead.
    """

    def __init__(
        self,
        settings: Settings,
        consumed: Callable[[], Iterable[str]],
        running: Callable[[], Mapping[str, int]] | None = None,
        *,
        restart_seconds: float = _RESTART_SECONDS,
    ) -> None:
        self._settings = settings
        self._keys = settings.keys
        self._consumed = consumed
        self._running = running
        self._restart_seconds = restart_seconds
        process = this_process()
        self._worker = process.name
        self._queues: tuple[str, ...] | None = None
        self._noted_at = float("-inf")
        self._is_silent = False  # nothing is noted, as was logged
        self._awake = process.event()
        self._is_over = False
        self._thread = process.thread(self._run, name="toolfleet-consumers")

    def start(self) -> None:
        """Note it from now on, until `leave`. Without `redis_url` there is nowhere to."""
        if self._settings.redis_url is not None:
            self._thread.start()

    def wake(self) -> None:
        """The queues have changed: look at once."""
        self._awake.set()

    def leave(self, *, restarts: bool) -> None:
        """The worker ends; one that `restarts` leaves its queues served for a minute. Takes some seconds at most, raises nothing."""
        if not self._thread.is_alive():
            return
        self._is_over = True
        self._awake.set()
        self._thread.join(2 * _ANSWER_SECONDS)
        if self._queues is None or self._is_silent:  # the notes end by themselves
            return
        try:
            with self._client() as redis:
                if restarts:
                    self._note(redis, RESTART, self._queues, self._restart_seconds)
                self._leave(redis, self._queues)
                if self._running is not None:
                    forget_load(redis, self._settings, self._worker)
        except (RedisError, OSError) as exc:
            log.warning("consumer_notes_not_left", error=str(exc))

    def _run(self) -> None:
        with self._client() as redis:
            while not self._is_over:
                try:
                    self._poll(redis)
                except (RedisError, OSError) as exc:
                    if not self._is_silent:
                        log.warning("consumed_queues_not_noted", error=str(exc))
                    self._is_silent = True
                except Exception:  # a defect of ours: a worker that is taken for dead would be worse
                    if not self._is_silent:
                        log.exception("consumed_queues_not_noted")
                    self._is_silent = True
                self._awake.wait(_POLL_SECONDS)
                self._awake.clear()

    def _poll(self, redis: Redis) -> None:
        queues = tuple(sorted(map(self._keys.queue, self._consumed())))
        before, now = self._queues, machine_clock.monotonic()
        if queues == before and now - self._noted_at < _BEAT_SECONDS:
            return
        self._note(redis, self._worker, queues, NOTE_SECONDS)
        if self._running is not None:
            note_load(redis, self._settings, self._worker, self._running())
        self._queues, self._noted_at, self._is_silent = queues, now, False
        if before is not None and before != queues:
            self._leave(redis, before)

    def _leave(self, redis: Redis, queues: tuple[str, ...]) -> None:
        parameters = LEAVE.parameters(notes=self._keys.consumers, note=f"{self._worker} {digest_of(queues)}")
        redis.eval(LEAVE.text, *parameters)

    def _note(self, redis: Redis, name: str, queues: tuple[str, ...], seconds: float) -> None:
        digest = digest_of(queues)
        keys = {"notes": self._keys.consumers, "consumed": self._keys.consumed(digest)}
        parameters = NOTE.parameters(**keys, note=f"{name} {digest}", seconds=seconds)
        if not redis.eval(NOTE.text, *parameters) and queues:
            redis.eval(NOTE.text, *parameters, *queues)

    def _client(self) -> Redis:
        url, master = str(self._settings.redis_url), self._settings.sentinel_master
        return sync_client(url, master=master, timeout_seconds=_ANSWER_SECONDS)


async def workers_by_queue(settings: Settings) -> Counter[str]:
    """Return how many live workers consume each queue, by its name; those of older versions are not counted.

    Raises `FleetUnavailable`.
    """
    if settings.redis_url is None:
        return Counter()
    keys, counted = settings.keys, Counter[str]()
    try:
        async with async_client(settings.redis_url, master=settings.sentinel_master) as redis:
            found = await redis.eval(
                COUNT.text, *COUNT.parameters(notes=keys.consumers, consumed_prefix=keys.consumed(""))
            )
    except (RedisError, OSError) as exc:
        raise FleetUnavailable(f"Redis does not say who serves which module: {reason_of(exc, 'no answer')}") from exc
    for queue, workers in found:
        counted[queue.decode().removeprefix(settings.key_prefix)] += workers
    return counted


def digest_of(queues: tuple[str, ...]) -> str:
    """Return the digest of a set of queues, by their sorted keys, for a note."""
    return hashlib.sha256("\n".join(queues).encode()).hexdigest()[:16]
