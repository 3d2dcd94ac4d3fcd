"""Lines, leases and messages of a worker that runs in the test itself."""

import asyncio
import json
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from redis import Redis

from support.waiting import PATIENCE_SECONDS
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.servers import connection_factory
from toolfleet_tasks.redis_connection import PipelinedConnection
from toolfleet_tasks.transport import scripts
from toolfleet_tasks.transport.fetcher import NotifyKeys
from toolfleet_tasks.transport.leases import Leases, LeaseStore

KEYS = Keys()
STORE = LeaseStore("unacked", "unacked_index", KEYS.prefix, KEYS.notify_key(""), 60)
QUEUE = "tools.owls"


def message(call_id: str | None = None, **changes: Any) -> bytes:
    """A task's message, as a client puts it into a queue."""
    headers = {"task": "toolfleet.execute", "id": call_id or str(uuid.uuid4())}
    properties = {"delivery_info": {"exchange": "toolfleet", "routing_key": QUEUE}, "body_encoding": "base64"}
    return json.dumps({"body": "W10=", "headers": headers, "properties": properties, **changes}).encode()


def publish(redis: Redis, *items: bytes, queue: str = QUEUE) -> None:
    for item in items:
        redis.eval(scripts.PUBLISH.text, 2, queue, KEYS.notify_key(queue), item)


@asynccontextmanager
async def open_connection(url: str) -> AsyncGenerator[PipelinedConnection]:
    """A line that stands."""
    connection = PipelinedConnection(connection_factory(url), name="test")
    connection.start()
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await connection.connected()
        yield connection
    finally:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await connection.aclose()


@asynccontextmanager
async def open_notify_keys(
    url: str, connection: PipelinedConnection
) -> AsyncGenerator[tuple[NotifyKeys, list[PipelinedConnection]]]:
    """And the lines that they listen on, as many as are needed by then."""
    lines = list[PipelinedConnection]()

    def line_of(number: int) -> PipelinedConnection:
        while len(lines) <= number:
            lines.append(PipelinedConnection(connection_factory(url), name=f"bells {len(lines)}"))
            lines[-1].start()
        return lines[number]

    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await line_of(0).connected()
        yield NotifyKeys(connection, line_of, KEYS.notify_key("")), lines
    finally:
        async with asyncio.timeout(PATIENCE_SECONDS):
            for one in lines:
                await one.aclose()


@asynccontextmanager
async def open_leases(connection: PipelinedConnection, *, seconds: float = 60) -> AsyncGenerator[Leases]:
    store = LeaseStore(STORE.unacked, STORE.unacked_index, STORE.queue_prefix, STORE.notify_prefix, seconds)
    leases = Leases(connection, store, asyncio.get_running_loop(), name=uuid.uuid4().hex[:12])
    try:
        yield leases
    finally:
        leases.close()


@dataclass(frozen=True)
class IntakeParts:
    """What an intake needs; `notify_key` is the line that it listens on while it has few queues."""

    connection: PipelinedConnection
    notify_key: PipelinedConnection
    notify_keys: NotifyKeys
    leases: Leases


@asynccontextmanager
async def open_parts(url: str) -> AsyncGenerator[IntakeParts]:
    async with (
        open_connection(url) as connection,
        open_notify_keys(url, connection) as (notify_keys, (notify_key, *_)),
        open_leases(connection) as leases,
    ):
        yield IntakeParts(connection, notify_key, notify_keys, leases)


def evals(redis: Redis) -> int:
    """How many scripts Redis has run."""
    stats: dict[str, Any] = redis.info("commandstats")
    return sum(int(stats.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in ("eval", "evalsha"))


def hold(redis: Redis, leases: Leases, *tags: str) -> None:
    """Have `leases` hold messages that were reserved just now."""
    seconds, microseconds = redis.time()
    for tag in tags:
        redis.hset(STORE.unacked, tag, f'[{message(tag).decode()},"","{QUEUE}"]')
        redis.zadd(STORE.unacked_index, {tag: seconds + microseconds / 1e6})
    leases.hold(tags, of=())


def cut(connection: PipelinedConnection) -> None:
    """Break the line's connection, as a network does."""
    assert connection._protocol is not None
    connection._protocol.close("cut")


def stop_reading(connection: PipelinedConnection) -> None:
    """Let Redis's answers wait in the socket."""
    assert connection._protocol is not None
    transport: Any = connection._protocol._transport
    transport.pause_reading()


def start_reading(connection: PipelinedConnection) -> None:
    """Read them."""
    assert connection._protocol is not None
    transport: Any = connection._protocol._transport
    transport.resume_reading()
