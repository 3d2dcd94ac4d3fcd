"""Lines, leases and messages of a worker that runs in the test itself."""

import asyncio
import json
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from redis import Redis

from toolfleet_registry.keys import Keys
from toolfleet_registry.redis_servers import connection_factory
from toolfleet_tasks import scripts
from toolfleet_tasks.leases import Leases, Store
from toolfleet_tasks.line import Line

KEYS = Keys()
STORE = Store("unacked", "unacked_index", KEYS.prefix, KEYS.bell(""), 60)
QUEUE = "tools.owls"


def message(call_id: str | None = None, **changes: Any) -> bytes:
    """A task's message, as a client puts it into a queue."""
    headers = {"task": "toolfleet.execute", "id": call_id or str(uuid.uuid4())}
    properties = {"delivery_info": {"exchange": "toolfleet", "routing_key": QUEUE}, "body_encoding": "base64"}
    return json.dumps({"body": "W10=", "headers": headers, "properties": properties, **changes}).encode()


def publish(redis: Redis, *items: bytes, queue: str = QUEUE) -> None:
    for item in items:
        redis.eval(scripts.PUBLISH, 2, queue, KEYS.bell(queue), item)


@asynccontextmanager
async def open_line(url: str) -> AsyncGenerator[Line]:
    """A line that stands."""
    line = Line(connection_factory(url), name="test")
    line.start()
    try:
        async with asyncio.timeout(20):
            await line.connected()
        yield line
    finally:
        async with asyncio.timeout(5):
            await line.aclose()


@asynccontextmanager
async def open_leases(line: Line, *, seconds: float = 60) -> AsyncGenerator[Leases]:
    store = Store(STORE.unacked, STORE.unacked_index, STORE.queue_prefix, STORE.bell_prefix, seconds)
    leases = Leases(line, store, asyncio.get_running_loop())
    try:
        yield leases
    finally:
        leases.close()


def hold(redis: Redis, leases: Leases, *tags: str) -> None:
    """Have `leases` hold messages that were reserved just now."""
    seconds, microseconds = redis.time()
    for tag in tags:
        redis.hset(STORE.unacked, tag, f'[{message(tag).decode()},"","{QUEUE}"]')
        redis.zadd(STORE.unacked_index, {tag: seconds + microseconds / 1e6})
    leases.hold(tags, of=())


def cut(line: Line) -> None:
    """Break the line's connection, as a network does."""
    assert line._link is not None
    line._link.close("cut")


def stop_reading(line: Line) -> None:
    """Let Redis's answers wait in the socket."""
    assert line._link is not None
    transport: Any = line._link._transport
    transport.pause_reading()
