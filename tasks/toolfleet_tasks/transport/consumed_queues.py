"""Names the queues that a worker's channel consumes, again and again: worked out once for each change, as they may be thousands."""

from collections.abc import Sequence
from typing import Any

from toolfleet_tasks.fairness.paused_queues import PausedQueues


class ConsumedQueues:
    """Those of one of kombu's channels that do not rest."""

    def __init__(self, channel: Any, resting: PausedQueues) -> None:
        self._channel = channel
        self._resting = resting
        self._active = list[str]()  # as the channel had them
        self._rest = resting.names
        self._members = dict[str, None]()
        self._names = tuple[str, ...]()

    @property
    def names(self) -> Sequence[str]:
        """Each once."""
        self._follow()
        return self._names

    def __contains__(self, queue: str) -> bool:
        self._follow()
        return queue in self._members

    def _follow(self) -> None:
        active, rest = self._channel._active_queues, self._resting.names  # noqa: SLF001 - changes with what is asked for below
        if active != self._active or rest is not self._rest:
            self._active, self._rest = [*active], rest
            self._members = dict.fromkeys(queue for queue in self._channel.active_queues if queue not in rest)
            self._names = tuple(self._members)
