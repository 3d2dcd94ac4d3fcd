"""News of jobs' ends as a job's end writes them, and what delivers them as in a worker of its own."""

import base64
import json
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio import Redis

from toolfleet_registry.contracts.jobs import WakeUp
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.servers import connection_factory
from toolfleet_registry.settings import Settings
from toolfleet_tasks.redis_connection import PipelinedConnection
from toolfleet_tasks.scripts import FILES
from toolfleet_tasks.wakeups.events import wake_body
from toolfleet_tasks.wakeups.outbox import DueWake, WakeupOutbox

SECRET = "whsec_" + base64.b64encode(b"o" * 32).decode()
OTHER_SECRET = "whsec_" + base64.b64encode(b"w" * 32).decode()

WAKES = FILES.functions("wakeups", "wake_put", "completion_put")
_PUT = WAKES + " wake_put(KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4])"
_COMPLETE = WAKES + " completion_put(KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3]))"


def wake(wake_id: str = "job-1", **fields: Any) -> WakeUp:
    """News of a job that has completed."""
    known: dict[str, Any] = {
        "type": "job.completed",
        "wake_id": wake_id,
        "job_id": wake_id.partition(".")[0],
        "timestamp": 1_700_000_000.5,
        "conversation_id": "talk-1",
        "user_id": "ada",
        "message": "The owls are counted.",
        "result": {"status": "completed", "owls": 3},
    }
    return WakeUp(**{**known, **fields})


async def put(
    redis: "Redis",
    wake_id: str = "job-1",
    *,
    kind: str = "continue",
    since: float = 0,
    body: str | None = None,
    keys: Keys = Keys(),  # noqa: B008 - it is frozen
    **fields: Any,
) -> None:
    """As the end of a job; `since` seconds ago."""
    told: Any = kind if kind != "call" else "continue"
    body = wake_body(wake(wake_id, **{"kind": told, **fields})) if body is None else body
    now_ms = int((time.time() - since) * 1000)
    await redis.eval(_PUT, 2, keys.wake(wake_id), keys.wakes_due, wake_id, now_ms, kind, body)


async def complete(
    redis: "Redis",
    wake_id: str = "job-1",
    *,
    conversation_id: str = "talk-1",
    is_older: bool = False,
    **fields: Any,
) -> None:
    """As the end of a job where no core is set; `is_older`: as processes write it that keep all users' in one stream."""
    seconds, user_id = fields.pop("seconds", 600), fields.get("user_id", "ada")
    stream = Keys().completions(conversation_id) if is_older else Keys().completions_of(conversation_id, user_id)
    body = fields.pop("body", None) or wake_body(wake(wake_id, conversation_id=conversation_id, **fields))
    await redis.eval(_COMPLETE, 1, stream, wake_id, body, seconds)


async def complete_many(redis: "Redis", *wake_ids: str, **fields: Any) -> None:
    """`complete` each of them, in one go."""
    async with redis.pipeline(transaction=False) as pipeline:
        for wake_id in wake_ids:
            await complete(pipeline, wake_id, **fields)
        await pipeline.execute()


async def hurry(redis: "Redis", *wake_ids: str, keys: Keys = Keys()) -> None:  # noqa: B008 - it is frozen
    """The time until the next try, or until the end of a lease, passes."""
    for due in (keys.wakes_due, keys.calls_due):
        ids: list[str] = await redis.zrange(due, 0, -1)  # type: ignore[assignment] # without scores
        for wake_id in ids:
            if not wake_ids or wake_id in wake_ids:
                await redis.zadd(due, {wake_id: 1})


async def scores(redis: "Redis", key: str) -> dict[str, float]:
    """A sorted set."""
    answer: Any = await redis.zrange(key, 0, -1, withscores=True)
    return {name: float(score) for name, score in answer}


@asynccontextmanager
async def delivering(
    redis_url: str, core_url: str | None, core_seconds: float = 5.0, **settings: Any
) -> AsyncGenerator[WakeupOutbox]:
    """What one worker delivers."""
    line = PipelinedConnection(connection_factory(redis_url), name="worker")
    line.start()
    known: dict[str, Any] = {"core_url": core_url, "core_secret": SECRET}
    wakes = WakeupOutbox(line, Settings(redis_url=redis_url, **{**known, **settings}), core_seconds=core_seconds)
    try:
        yield wakes
    finally:
        await wakes.aclose()
        await line.aclose()


async def never(wake: DueWake) -> str | None:
    """For those who have no calls to publish."""
    raise AssertionError(f"{wake.wake_id} is no call")


def told(body: bytes) -> dict[str, Any]:
    """A request's body."""
    found = json.loads(body)
    assert isinstance(found, dict)
    return found
