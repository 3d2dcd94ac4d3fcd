"""Lines, leases and messages of a worker that runs in the test itself."""

import asyncio
import json
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from redis import Redis

from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.servers import connection_factory
from toolfleet_tasks.lua import queues as scripts
from toolfleet_tasks.redis.connection import Line
from toolfleet_tasks.transport.leases import Leases, Store
from toolfleet_tasks.transport.notify_keys import Bells

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
        redis.eval(scripts.PUBLISH.text, 2, queue, KEYS.bell(queue), item)


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
async def open_bells(url: str, line: Line) -> AsyncGenerator[tuple[Bells, list[Line]]]:
    """And the lines that they listen on, as many as are needed by then."""
    lines = list[Line]()

    def line_of(number: int) -> Line:
        while len(lines) <= number:
            lines.append(Line(connection_factory(url), name=f"bells {len(lines)}"))
            lines[-1].start()
        return lines[number]

    try:
        async with asyncio.timeout(20):
            await line_of(0).connected()
        yield Bells(line, line_of, KEYS.bell("")), lines
    finally:
        async with asyncio.timeout(5):
            for one in lines:
                await one.aclose()


@asynccontextmanager
async def open_leases(line: Line, *, seconds: float = 60) -> AsyncGenerator[Leases]:
    store = Store(STORE.unacked, STORE.unacked_index, STORE.queue_prefix, STORE.bell_prefix, seconds)
    leases = Leases(line, store, asyncio.get_running_loop())
    try:
        yield leases
    finally:
        leases.close()


@dataclass(frozen=True)
class IntakeParts:
    """What an intake needs; `bell` is the line that it listens on while it has few queues."""

    line: Line
    bell: Line
    bells: Bells
    leases: Leases


@asynccontextmanager
async def open_parts(url: str) -> AsyncGenerator[IntakeParts]:
    async with open_line(url) as line, open_bells(url, line) as (bells, (bell, *_)), open_leases(line) as leases:
        yield IntakeParts(line, bell, bells, leases)


def evals(redis: Redis) -> int:
    """How many scripts Redis has run."""
    stats: dict[str, Any] = redis.info("commandstats").get("cmdstat_eval", {})
    return int(stats.get("calls", 0))


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


def start_reading(line: Line) -> None:
    """Read them."""
    assert line._link is not None
    transport: Any = line._link._transport
    transport.resume_reading()
