"""Watches a channel that is named like a key, beginning with what the key holds."""

import contextlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

from toolfleet_tasks.redis.connection import PipelinedConnection

Hear = Callable[[bytes], None]


@dataclass(slots=True, eq=False)
class _Watch:
    hear: Hear
    has_heard: bool = False  # an announcement, since the channel was subscribed to: what is read now may be older


class ChannelWatch:
    """Who watches which channel, on a connection that others use, too. `read` has `found` called with what a key holds."""

    def __init__(self, connection: PipelinedConnection, read: Callable[[bytes], None]) -> None:
        self._connection = connection
        self._read = read
        self._watches: dict[bytes, list[_Watch]] = {}

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._watches)

    def __contains__(self, channel: bytes) -> bool:
        return channel in self._watches

    @contextlib.contextmanager
    def watching(self, channel: bytes, hear: Hear) -> Generator[None]:
        """Have `hear` called with what the key holds, if anything, and then with each announcement that is not missed."""
        watch = _Watch(hear)
        watches = self._watches.setdefault(channel, [])
        watches.append(watch)
        if len(watches) == 1:
            self._connection.tell("SUBSCRIBE", channel)
        else:
            self._read(channel)
        try:
            yield
        finally:
            watches.remove(watch)
            if not watches:
                del self._watches[channel]
                self._connection.tell("UNSUBSCRIBE", channel)

    def subscribed(self, channel: bytes) -> None:
        """Something may have been missed before."""
        for watch in self._watches[channel]:
            watch.has_heard = False
        self._read(channel)

    def announced(self, channel: bytes, content: bytes) -> None:
        """Tell all."""
        for watch in list(self._watches[channel]):
            watch.has_heard = True
            watch.hear(content)

    def found(self, channel: bytes, content: bytes | None) -> None:
        """Tell those that have heard nothing yet."""
        for watch in list(self._watches[channel]):
            if content is not None and not watch.has_heard:
                watch.hear(content)
