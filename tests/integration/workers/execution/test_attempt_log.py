"""A worker's log messages: published before the attempt's end is, and never in its way for long."""

import asyncio
import json
import time
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from support.published_call import published
from support.waiting import PATIENCE_SECONDS
from toolfleet_registry.contracts.call_context import current_log
from toolfleet_registry.settings import Settings
from toolfleet_tasks import worker_runtime
from toolfleet_workers.execution import attempt_reports
from toolfleet_workers.execution.attempt_reports import AttemptLog, LogWriter

CHANNEL = "toolfleet:progress-log:{}"


@pytest.fixture
async def settings(redis_url: str) -> AsyncIterator[Settings]:
    """Those of a worker whose pool runs."""
    worker_runtime.start(asyncio.get_running_loop(), broker=redis_url)
    yield Settings(redis_url=redis_url)
    await worker_runtime.stop()


def log_of(settings: Settings, call_id: str) -> AttemptLog:
    return AttemptLog(published(call_id=call_id, deadline_at=time.time() + 60), "info", settings)


def say(data: object) -> None:
    sink = current_log()
    if sink is not None:
        sink.say("info", data)


async def test_all_that_is_said_is_published_when_the_attempt_has_ended(settings: Settings, redis: Redis) -> None:
    """On the loop and in threads, in order; what comes later is nobody's, and nothing is kept."""
    async with redis.pubsub() as listening:
        await listening.subscribe(CHANNEL.format("c1"))
        await listening.get_message(timeout=PATIENCE_SECONDS)
        log = log_of(settings, "c1")
        say(1)
        await asyncio.to_thread(say, 2)
        say("half \ud800")
        await log.end()
        say(4)
        following = log_of(settings, "c1")
        say(5)
        await following.end()
        heard = [await listening.get_message(timeout=PATIENCE_SECONDS) for _ in range(4)]

    texts = [json.loads(each["data"] or "")["data"] for each in heard if each is not None]
    assert texts == [1, 2, "'half \\ud800'…", 5]
    assert await redis.exists(CHANNEL.format("c1")) == 0


async def test_without_redis_an_attempt_ends_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second later at most; what was said is dropped, and no more of it is held than has room."""
    monkeypatch.setattr(attempt_reports, "_PATIENCE_SECONDS", 3600.0)  # nothing else ends it
    settings = Settings(redis_url="redis://127.0.0.1:1/0")
    here = worker_runtime.start(asyncio.get_running_loop())
    try:
        async with asyncio.timeout(2 * PATIENCE_SECONDS):
            logs = list[AttemptLog]()
            for number in range(60):
                logs.append(log_of(settings, f"c{number}"))
                for _ in range(201):
                    say("x" * 5_000)
            await logs[-1].end()
        assert here.part(LogWriter, settings)._bytes <= 16 * 2**20
    finally:
        await worker_runtime.stop()


async def test_where_no_pool_runs_log_messages_are_dropped() -> None:
    """Nor is there anybody to talk to once the attempt has ended."""
    log = log_of(Settings(redis_url="redis://127.0.0.1:1/0"), "c1")
    say("anybody?")
    await log.end()

    assert current_log() is None
