"""A worker's one writer of progress: the latest of each call, seldom, and never in anybody's way."""

import asyncio
import json
import time
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from support.published_call import published
from support.waiting import wait_until, wait_until_equal
from toolfleet_registry.contracts.call_context import Progress, progress_of, report, report_to
from toolfleet_registry.settings import Settings
from toolfleet_tasks import worker_runtime
from toolfleet_workers.execution import attempt_reports
from toolfleet_workers.execution.attempt_reports import Reports

KEY = "toolfleet:progress:{}"


@pytest.fixture
async def settings(redis_url: str) -> AsyncIterator[Settings]:
    """Those of a worker whose pool runs."""
    worker_runtime.start(asyncio.get_running_loop(), broker=redis_url)
    yield Settings(redis_url=redis_url)
    await worker_runtime.stop()


def reports_of(settings: Settings, call_id: str, *, seconds: float = 60) -> Reports:
    return Reports(published(call_id=call_id, deadline_at=time.time() + seconds), settings)


async def stored(redis: Redis, call_id: str) -> object:
    text = await redis.get(KEY.format(call_id))
    return None if text is None else json.loads(text)["message"]


async def stored_in_the_end(redis: Redis, call_id: str, message: str) -> None:
    await wait_until_equal(lambda: stored(redis, call_id), message, "it is stored")


async def writes(redis: Redis) -> int:
    """How many announcements there were since the server started."""
    return int((await redis.info("commandstats")).get("cmdstat_publish", {}).get("calls", 0))


async def test_of_many_reports_the_latest_is_written(settings: Settings, redis: Redis) -> None:
    """A thousand words of ten calls are a handful of writes, and each call's last word is there, until its deadline."""
    calls = [reports_of(settings, f"c{number}") for number in range(10)]
    before = await writes(redis)
    for number in range(100):
        for call in calls:
            call.take(Progress(message=str(number)))
        await asyncio.sleep(0)
    for call in calls:
        await stored_in_the_end(redis, call.call.call_id, "99")

    assert 10 <= await writes(redis) - before <= 20
    assert 0 < await redis.ttl(KEY.format("c3")) <= 60


async def test_after_the_end_nothing_is_written(settings: Settings, redis: Redis) -> None:
    """Neither what comes later nor what had not been written yet; the next call is."""
    ended, going_on = reports_of(settings, "ended"), reports_of(settings, "going-on")
    ended.take(Progress(message="first"))
    await stored_in_the_end(redis, "ended", "first")
    ended.take(Progress(message="second"))
    going_on.take(Progress(message="mine"))
    ended.is_over = True
    ended.take(Progress(message="third"))
    await stored_in_the_end(redis, "going-on", "mine")

    assert await stored(redis, "ended") == "first"


async def test_a_call_past_its_deadline_leaves_no_key(settings: Settings, redis: Redis) -> None:
    """A key without an end in sight would stay for ever."""
    late, other = reports_of(settings, "late", seconds=-1), reports_of(settings, "other")
    late.take(Progress(message="x"))
    other.take(Progress(message="y"))
    await stored_in_the_end(redis, "other", "y")

    assert await stored(redis, "late") is None


async def test_a_redis_that_refuses_is_told_no_more_than_the_latest(settings: Settings, redis: Redis) -> None:
    """What it does not take is dropped, nothing piles up, and once there is room again it goes on."""
    call = reports_of(settings, "call")
    call.take(Progress(message="before"))
    await stored_in_the_end(redis, "call", "before")
    here = worker_runtime.current()
    assert here is not None
    board = here.part(attempt_reports.ProgressBoard, settings)
    await redis.config_set("maxmemory", 1)
    try:
        call.take(Progress(message="lost"))
        await wait_until(lambda: board._is_dropping, "it is refused")
        for number in range(1000):
            call.take(Progress(message=str(number)))
        assert len(board._listed) <= 1
    finally:
        await redis.config_set("maxmemory", 0)
    await wait_until(lambda: not board._listed, "the rest is gone")
    call.take(Progress(message="after"))
    await stored_in_the_end(redis, "call", "after")


async def test_a_report_between_two_of_the_boards_steps_stops_nothing(settings: Settings, redis: Redis) -> None:
    """A thread that reports while its last word is fetched is listed once more, without news; the next word still comes."""
    call = reports_of(settings, "raced")
    call.take(Progress(message="first"))
    assert call.fetch() is not None
    call.take(Progress(message="from a thread"))
    call._latest = None  # what the loop goes on with: it fetches that, too
    await wait_until(lambda: not call._is_listed, "the board has seen that there is nothing")
    call.take(Progress(message="next"))

    await stored_in_the_end(redis, "raced", "next")


async def test_a_tools_broken_words_do_no_harm(settings: Settings, redis: Redis) -> None:
    """Half a character of one call ends nobody's progress."""
    broken, whole = reports_of(settings, "broken"), reports_of(settings, "whole")
    broken.take(Progress.model_construct(fraction=None, message="\ud800"))
    whole.take(Progress(message="fine"))

    await stored_in_the_end(redis, "whole", "fine")


async def test_where_no_pool_runs_progress_is_dropped() -> None:
    """Nor is there anything to report to outside of a call."""
    report(0.5, "nobody")
    reports = Reports(published(), Settings(redis_url="redis://127.0.0.1:1/0"))
    report_to(reports.take)
    report(0.5, "somebody")

    assert reports._latest == Progress(fraction=0.5, message="somebody")
    assert not reports._is_listed


@pytest.mark.parametrize(
    ("said", "kept"), [(2, 1.0), (-1, 0.0), (float("nan"), None), (float("inf"), 1.0), (10**400, 1.0), (None, None)]
)
def test_what_is_reported_is_made_to_fit(said: float | None, kept: float | None) -> None:
    """A function that counts badly does not fail for it."""
    assert progress_of(said, "x" * 1000) == Progress(fraction=kept, message="x" * 500)
