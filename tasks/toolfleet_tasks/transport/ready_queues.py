"""Knows which of a worker's queues may hold something, so that a turn need not ask Redis for all of them.

A notification names its queue, and a turn says in which queues something was left. Of very many queues all others are looked at once a
second, by a command that costs Redis far less than a turn: a notification may be lost, or never have been sent. Where turns find
something they are looked at more often: of many that were notified, a wait brings the first only, and the last would wait for a second.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from toolfleet_registry.time import machine_clock
from toolfleet_tasks.lua import queues as scripts
from toolfleet_tasks.redis.connection import PipelinedConnection

AT_ONCE = 64  # queues a turn asks for: more would cost Redis as much time as the calls' own commands
_SLICE = 512  # queues of one request: some tenths of a millisecond, for which Redis serves no other client
_POLL_SECONDS = 1.0  # so long a message may stay in a queue whose notification no worker has taken
_BUSY_SECONDS = 0.0001  # the same for each queue of a worker that finds something: Redis looks at one in 0.2 us


class ReadyQueues:
    """Asks over `connection`. A queue that is chosen is ready no longer, until it is noted or put again."""

    def __init__(
        self, connection: PipelinedConnection, queue_prefix: str, clock: Callable[[], float] | None = None
    ) -> None:
        self._connection = connection
        self._prefix = queue_prefix
        self._clock = clock or machine_clock.monotonic
        self._ready = OrderedDict[str, None]()
        self._refresh_at = self._busy_at = -1.0  # by the clock
        self._wait_queue = 0

    def note(self, queue: str) -> None:
        """Note a queue that was notified to this worker only: it comes first."""
        self._ready[queue] = None
        self._ready.move_to_end(queue, last=False)

    def put(self, queues: Iterable[str]) -> None:
        """Note queues with remaining messages: they come after those that are ready already."""
        self._ready.update(dict.fromkeys(queues))

    def doubt(self) -> None:
        """Notifications may be lost: the next turn looks at all queues."""
        self._refresh_at = self._busy_at = -1.0

    @property
    def seconds_left(self) -> float:
        """The seconds until all queues are to be checked. Never below 0.01."""
        return max(round(self._refresh_at - self._clock(), 3), 0.01)

    def is_any(self, queues: Sequence[str]) -> bool:
        """Return whether one of these is ready."""
        return bool(self._ready) and not self._ready.keys().isdisjoint(queues)

    def choose(self, queues: Sequence[str]) -> list[str]:
        """Choose at most 64 of these, for one turn: those that are ready, and if there are no more in all, the others in turns."""
        offered = set(queues)
        chosen = list(islice((queue for queue in self._ready if queue in offered), AT_ONCE))
        for queue in chosen:
            del self._ready[queue]
        if len(queues) <= AT_ONCE:
            first = self._wait_queue = (self._wait_queue + 1) % len(queues)
            offered.difference_update(chosen)
            chosen += [queue for queue in (*queues[first:], *queues[:first]) if queue in offered]
        return chosen

    async def refresh(self, queues: Sequence[str], *, is_busy: bool = False) -> None:
        """Note which of all queues hold something, if it is time, and a turn cannot ask for them. Raises `RedisConnectionLost`.

        `is_busy`: a turn has found something just now.
        """
        now = self._clock()
        if len(queues) > AT_ONCE:
            if now < (self._busy_at if is_busy else self._refresh_at):
                return
            for start in range(0, len(queues), _SLICE):
                some = queues[start : start + _SLICE]
                command = scripts.HOLDING.command(queues=[self._prefix + queue for queue in some])
                found: list[int] = await self._connection.send(*command)
                self.put(some[number - 1] for number in found)
        self._refresh_at = now + _POLL_SECONDS
        self._busy_at = now + min(len(queues) * _BUSY_SECONDS, _POLL_SECONDS)
