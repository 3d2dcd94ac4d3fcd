"""News that wait or are dead, as the outbox leaves them in Redis."""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

from redis.asyncio import Redis

from support.workers.wakes import put, wake
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.wakeups.events import wake_body
from toolfleet_tasks.wakeups.webhook_feed import REGISTRY

SECRET_CALL = '{"job_id":"job-1","tool_name":"owls.echo","is_secret":true}'
RECEIVER = "0123456789abcdef"
"""A receiver of webhooks; ids of its events end with `@` and this."""


def event_body(wake_id: str) -> str:
    """An event of the registry, as the outbox keeps it."""
    data = {"id": wake_id.partition("@")[0], "kind": "disabled", "tool_name": "git.push", "at": 1.5}
    payload = {"type": "registry.disabled", "timestamp": 1.5, "data": data}
    return json.dumps({"wake_id": wake_id, "kind": REGISTRY, "payload": payload}, separators=(",", ":"))


async def bury(
    redis: Redis, wake_id: str, *, kind: str = "continue", at: float | None = None, old: bool = False
) -> None:
    """Have news die at `at`. `old`: where events of the registry lay before they had a place of their own."""
    keys, at_ms = Keys(), round((time.time() if at is None else at) * 1000)
    body = {"call": SECRET_CALL, REGISTRY: event_body(wake_id)}.get(kind) or wake_body(wake(wake_id, kind=kind))
    kept: dict[str, Any] = {"kind": kind, "body": body, "tries": "3", "error": "ConnectError: refused"}
    text = json.dumps({**kept, "first_at": str(at_ms - 100_000), "died_at": str(at_ms)})
    names = keys.dead_wakes, keys.dead_wakes_order, keys.dead_wakes_bytes
    if kind == REGISTRY and not old:
        names = keys.dead_webhooks(), keys.dead_webhooks("-order"), keys.dead_webhooks("-bytes")
    await redis.hset(names[0], wake_id, text)
    await redis.zadd(names[1], {wake_id: at_ms})
    await redis.incrby(names[2], len(text))


def maker(redis_url: str) -> Callable[..., None]:
    """Makes news that wait, or with `dead=True` that nobody has accepted, outside of any event loop."""

    async def make(wake_id: str, *, dead: bool = False, kind: str = "continue", **more: Any) -> None:
        async with Redis.from_url(redis_url) as redis:
            await (bury if dead else put)(redis, wake_id, kind=kind, **more)

    return lambda *args, **kwargs: asyncio.run(make(*args, **kwargs))
