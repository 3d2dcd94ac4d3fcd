"""How a call ends when its worker says nothing, or something that it did not decide."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest
from redis.asyncio import Redis

from support.published_call import published
from support.waiting import wait_until
from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.keys import Keys
from toolfleet_registry.redis_servers import connection_factory
from toolfleet_tasks.handle import CallHandle, Follow
from toolfleet_tasks.inbox import Inbox
from toolfleet_tasks.line import Line

RESULT = "celery-task-meta-call-1"
WITNESS = "module_manifest:research"
REVOKED = json.dumps({"status": "REVOKED", "result": {"exc_type": "TaskRevokedError"}})
STARTED = json.dumps({"status": "STARTED", "result": {}})


class Desk:
    """An inbox, and what a call's follower needs beside it."""

    def __init__(self, url: str) -> None:
        self.line = Line(connection_factory(url), name="test")
        self.reads = Line(connection_factory(url), name="reads")
        self.inbox = Inbox(self.line, self.reads, news={}, keys=Keys())
        self.revoked: list[str] = []
        self.tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        return task

    def revoke(self, call_id: str) -> asyncio.Task[None]:
        self.revoked.append(call_id)
        return self.spawn(asyncio.sleep(0))

    async def follow(self, *, seconds: float) -> Follow:
        """A published call that ends in `seconds`."""
        follow = Follow(published(), self.inbox, witness=WITNESS, revoke=self.revoke, spawn=self.spawn)
        await asyncio.wait_for(self.inbox.listening("call-1"), 20)
        follow.published(time.time() + seconds)
        return follow


@pytest.fixture
async def desk(redis: Redis, redis_url: str) -> AsyncIterator[Desk]:
    await redis.set(WITNESS, "x", ex=60)
    desk = Desk(redis_url)
    desk.line.start()
    desk.inbox.start()
    await wait_until(lambda: desk.inbox._run_id and not desk.inbox._is_new.is_set(), "the first look is over")
    yield desk
    await desk.inbox.aclose()
    await desk.line.aclose()
    await asyncio.gather(*desk.tasks)


async def end(follow: Follow) -> ToolResult:
    return await asyncio.wait_for(follow.ending, 20)


@pytest.mark.parametrize(
    ("stored", "has_lost_data", "code", "effect_state"),
    [
        (None, False, "expired", "none"),  # no mark: no worker has begun it
        (None, True, "timed_out", "unknown"),  # there may have been a mark
        (STARTED, False, "timed_out", "unknown"),
        (REVOKED, False, "timed_out", "unknown"),  # our own revocation was faster than we: nobody cancelled it
        ('{"status": "FAILURE", "result": null}', False, "outcome_unknown", "unknown"),
    ],
)
async def test_at_the_deadline_what_is_stored_decides(
    desk: Desk, redis: Redis, stored: str | None, has_lost_data: bool, code: str, effect_state: str
) -> None:
    """The call is taken back, and its result claims no more than Redis knows."""
    if has_lost_data:
        await redis.delete(WITNESS)
    if stored:
        await redis.set(RESULT, stored, ex=60)
    result = await end(await desk.follow(seconds=0.05))

    assert (result.error_code, result.effect_state) == (code, effect_state)
    assert result.audit is not None
    assert desk.revoked == ["call-1"]
    assert not desk.inbox._expected


async def test_who_cancels_hears_that_it_was_cancelled(desk: Desk, redis: Redis) -> None:
    """A revocation before the deadline is what it says, whoever ordered it."""
    follow = await desk.follow(seconds=60)
    handle = CallHandle("call-1", "research.search_docs", follow.ending, follow)
    await handle.cancel()
    await redis.publish(RESULT, REVOKED)

    assert (await handle.result(20)).error_code == "cancelled"
    assert await handle.status() == "done"


async def test_a_result_that_is_there_is_not_refused(desk: Desk, redis: Redis) -> None:
    """A call whose publishing was not confirmed, but which was answered, has its answer."""
    follow = await desk.follow(seconds=60)
    await redis.publish(RESULT, REVOKED)
    await end(follow)
    follow.refuse(ToolResult.refused("x.y", "internal", "not confirmed"))

    assert (await end(follow)).error_code == "cancelled"


async def test_where_a_call_is(desk: Desk, redis: Redis) -> None:
    """What Celery stored last tells; a Redis that does not answer tells nothing."""
    follow = await desk.follow(seconds=60)
    assert await follow.status() == "queued"
    await redis.set(RESULT, STARTED, ex=60)
    assert await follow.status() == "running"
    await desk.line.aclose()
    await desk.reads.aclose()

    assert await follow.status() == "unknown"
