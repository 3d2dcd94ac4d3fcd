"""Receives what is said to all workers at once: remote control. It is lost while the worker's connection is away."""

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol

from kombu.utils.json import loads

from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.aio.greenlet_bridge import Bridge
from toolfleet_tasks.redis.connection import PipelinedConnection, Push

log = get_logger(__name__)


class BroadcastListener(Protocol):
    """Whom the broadcasts are for."""

    def topics(self) -> Iterable[str]:
        """The pub/sub patterns to listen to, without the key prefix."""
        ...

    def hear(self, exchange: str, message: dict[str, Any]) -> None:
        """Do what a message says. May switch greenlets."""
        ...


class Broadcasts:
    """Listens for one listener, over a connection that it shares with others."""

    def __init__(self, listener: BroadcastListener, *, connection: PipelinedConnection, prefix: str) -> None:
        self._patterns: set[bytes] = set()
        self._listener = listener
        self._connection = connection
        self._prefix = prefix
        self._heard: deque[tuple[str, bytes]] = deque()
        self._has_heard = asyncio.Event()
        connection.on_connect.append(self.listen)

    def listen(self) -> None:
        """Subscribe to all topics: at first, after every reconnect, and when there are more."""
        topics = [self._prefix + topic for topic in self._listener.topics()]
        self._patterns.update(topic.encode() for topic in topics)
        if topics:
            self._connection.tell("PSUBSCRIBE", *topics)

    def take(self, frame: Push) -> None:
        """Take a push frame of the connection; those of others are ignored."""
        if frame[0] == b"pmessage" and frame[1] in self._patterns:
            self._heard.append((frame[2].decode(), frame[3]))
            self._has_heard.set()

    def close(self) -> None:
        """Listen no longer."""
        self._connection.on_connect.remove(self.listen)
        if self._patterns:
            self._connection.tell("PUNSUBSCRIBE", *self._patterns)
            self._patterns.clear()

    async def run(self) -> None:
        """Pass on what was heard, one after the other, until cancelled."""
        while True:
            while self._heard:
                await self._pass_on(*self._heard.popleft())
            self._has_heard.clear()
            await self._has_heard.wait()

    async def _pass_on(self, channel: str, content: bytes) -> None:
        exchange = _exchange_of(channel.removeprefix(self._prefix))
        try:
            await Bridge(self._listener.hear, exchange, loads(content))
        except Exception:
            log.exception("broadcast_failed", channel=channel)


def _exchange_of(channel: str) -> str:
    """Kombu's topics are `/<db>.<exchange>`, some with `/<routing key>` behind."""
    name = channel.partition(".")[2] if channel.startswith("/") else channel
    return name.split("/", 1)[0]
