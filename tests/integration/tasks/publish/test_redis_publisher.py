"""Publishing over a line: once, in time, and never more claimed than is known."""

import asyncio
import contextlib
import json
import os
import signal
import time
from base64 import b64decode
from collections.abc import AsyncGenerator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.asyncio.client import PubSub

from support.programs.closed_port import closed_port
from support.published_call import published as published_call
from support.waiting import PATIENCE_SECONDS, wait_until
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_registry.contracts import PublishedCall
from toolfleet_registry.errors import NotPublished, PublishUnconfirmed
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.servers import connection_factory
from toolfleet_registry.settings import Settings
from toolfleet_tasks.admission import AdmissionControl, Refusal
from toolfleet_tasks.redis_connection import PipelinedConnection
from toolfleet_tasks.transport.redis_publisher import RedisPublisher, database_of


def published(**fields: Any) -> PublishedCall:
    """A call that waits with the owls."""
    return published_call("owls.count", **fields)


KEY = "0123456789abcdef0123456789abcdef"
KEYED = published(user_id="ada", idempotency_key="k", deadline_at=time.time() + 3600)  # other tests take their time
SHARE, INTENT = Keys().caller_limit("fast", "ada"), Keys().intent("ada", "k")


@contextlib.asynccontextmanager
async def publisher(url: str, prefix: str = "") -> AsyncGenerator[RedisPublisher]:
    connect = connection_factory(url)
    line = PipelinedConnection(connect, name="test")
    line.start()
    yield RedisPublisher(line, keys=Keys(prefix), database=database_of(connect))
    await line.aclose()


async def test_a_call_gets_into_its_queue_and_rings_the_bell(redis: Redis, redis_url: str) -> None:
    """One message, one token; the publisher waits for the line to stand."""
    async with publisher(redis_url) as ours:
        for _ in range(2):
            await ours.publish(published(), seconds=10)

    assert await redis.llen("tools.owls") == 2
    assert await redis.lrange("toolfleet:bell:tools.owls", 0, -1) == ["1"]


async def test_a_prefix_stands_before_every_name(redis: Redis, redis_url: str) -> None:
    """Queue, bell and the channel of revocations are those of the fleet with this prefix."""
    async with publisher(redis_url, "p:") as ours, redis.pubsub() as ear:
        await ear.psubscribe("*")
        await ours.publish(published(), seconds=10)
        await ours.revoke("c1")
        heard = await next_message(ear)

    assert heard["channel"] == "p:/0.celery.pidbox"
    assert sorted(await redis.keys("*")) == ["p:toolfleet:bell:tools.owls", "p:tools.owls"]
    await redis.flushall()


async def test_without_redis_nothing_is_published() -> None:
    """A line that never stood has sent nothing; and a revocation gives up quietly."""
    async with publisher(f"redis://127.0.0.1:{closed_port()}/0") as ours:
        with pytest.raises(NotPublished, match="does not answer"):
            await ours.publish(published(), seconds=0.2)


async def test_without_time_nothing_is_published(redis: Redis, redis_url: str) -> None:
    """A call whose deadline has passed does not leave."""
    async with publisher(redis_url) as ours:
        with pytest.raises(NotPublished):
            await ours.publish(published(), seconds=0)

    assert await redis.llen("tools.owls") == 0


async def test_a_full_redis_says_why(redis: Redis, redis_url: str) -> None:
    """An error of Redis's own: nothing was written."""
    await redis.config_set("maxmemory", 1)
    try:
        async with publisher(redis_url) as ours:
            with pytest.raises(NotPublished, match="OOM"):
                await ours.publish(published(), seconds=10)
    finally:
        await redis.config_set("maxmemory", 0)

    assert await redis.llen("tools.owls") == 0


async def test_no_answer_in_time_confirms_nothing(tmp_path: Path) -> None:
    """What was written to a frozen Redis may be there."""
    with redis_server(tmp_path / "redis") as url:
        async with Redis.from_url(url) as redis, publisher(url) as ours:
            await ours.publish(published(), seconds=10)
            pid = int((await redis.info("server"))["process_id"])
            os.kill(pid, signal.SIGSTOP)
            try:
                with pytest.raises(PublishUnconfirmed):
                    await ours.publish(published(), seconds=0.2)
            finally:
                os.kill(pid, signal.SIGCONT)


async def test_a_connection_lost_before_the_answer_confirms_nothing(redis: Redis, redis_url: str) -> None:
    """Redis may have executed what it did not answer; it is not sent again."""
    async with publisher(redis_url) as ours:
        await ours.publish(published(), seconds=10)
        await redis.client_pause(60_000, all=False)  # whatever may write
        publishing = asyncio.create_task(ours.publish(published(), seconds=10))
        await wait_until(lambda: ours._connection._protocol and ours._connection._protocol._pending, "the call is sent")
        assert ours._connection._protocol is not None
        ours._connection._protocol._transport.abort()
        with pytest.raises(PublishUnconfirmed):
            await publishing
        await redis.client_unpause()


async def test_revocations_of_one_tick_leave_together(redis: Redis, redis_url: str) -> None:
    """A thousand callers who give up at once are one message to every worker."""
    async with publisher(redis_url) as ours, redis.pubsub() as ear:
        await ear.subscribe("/0.celery.pidbox")
        await next_message(ear, kind="subscribe")
        await asyncio.gather(*(ours.revoke(f"c{number}") for number in range(1000)))
        heard = await next_message(ear)

    order = json.loads(b64decode(json.loads(heard["data"])["body"]))
    assert (order["method"], len(order["arguments"]["task_id"])) == ("revoke", 1000)


async def test_who_is_cancelled_holds_up_no_revocation(redis: Redis, redis_url: str) -> None:
    """Neither those of its own tick nor later ones are lost with the first one."""
    async with publisher(redis_url) as ours, redis.pubsub() as ear:
        await ear.subscribe("/0.celery.pidbox")
        await next_message(ear, kind="subscribe")
        first, second = (asyncio.create_task(ours.revoke(call_id)) for call_id in ("c1", "c2"))
        await asyncio.sleep(0)
        first.cancel()
        await second
        heard = [await next_message(ear)]
        alone = asyncio.create_task(ours.revoke("c3"))
        await asyncio.sleep(0)
        alone.cancel()
        await asyncio.wait([alone])
        await ours.revoke("c4")
        heard.append(await next_message(ear))

    assert first.cancelled()
    assert [revoked(message) for message in heard] == [["c1", "c2"], ["c3", "c4"]]


def revoked(message: dict[str, Any]) -> list[str]:
    order: dict[str, Any] = json.loads(b64decode(json.loads(message["data"])["body"]))
    return list(order["arguments"]["task_id"])


async def next_message(ear: PubSub, *, kind: str = "message") -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            heard: dict[str, Any] = await ear.get_message(timeout=PATIENCE_SECONDS) or {}
            if str(heard.get("type", "")).endswith(kind):
                return heard


async def test_a_full_queue_takes_nothing(redis: Redis, redis_url: str) -> None:
    """So many may wait, then the publisher is told how many do; without a limit any number may."""
    async with publisher(redis_url) as ours:
        ends = [await ours.publish(published(), seconds=10, limit=2) for _ in range(3)]
        await ours.publish(published(), seconds=10)

    assert ends == [None, None, Refusal("backlog", count=2)]
    assert await redis.llen("tools.owls") == 3


async def test_with_an_entrance_a_call_is_judged_and_published_at_once(redis: Redis, redis_url: str) -> None:
    """One command for each; what is refused leaves nothing in the queue, and rings no bell."""
    connect = connection_factory(redis_url)
    line = PipelinedConnection(connect, name="test")
    line.start()
    await line.connected()
    admission = AdmissionControl(Settings(redis_url=redis_url, calls_per_caller=1))
    ours = RedisPublisher(line, keys=Keys(), database=0, admission=admission)
    await ours.publish(published(call_id="c0"), seconds=10)  # Redis learns the script
    await redis.flushall()
    await redis.config_resetstat()
    first = await ours.publish(published(call_id="c1"), seconds=10)
    assert await redis.lrange("toolfleet:bell:tools.owls", 0, -1) == ["1"]
    await redis.delete("toolfleet:bell:tools.owls")
    second = await ours.publish(published(call_id="c2"), seconds=10)
    await line.aclose()
    asked = (await redis.info("commandstats"))["cmdstat_evalsha"]["calls"]

    assert (first, second, asked) == (None, Refusal("share", count=1), 2)
    assert await redis.llen("tools.owls") == 1
    assert not await redis.exists("toolfleet:bell:tools.owls")


@contextlib.asynccontextmanager
async def judging(url: str) -> AsyncGenerator[RedisPublisher]:
    """A publisher with an entrance."""
    connect = connection_factory(url)
    line = PipelinedConnection(connect, name="test")
    line.start()
    await line.connected()
    yield RedisPublisher(line, keys=Keys(), database=0, admission=AdmissionControl(Settings(redis_url=url)))
    await line.aclose()


@pytest.mark.parametrize("name", [SHARE, INTENT, "tools.owls", Keys().slots("fast"), Keys().breaker("owls")])
async def test_what_cannot_be_judged_or_pushed_leaves_nothing_in_the_queue(
    redis: Redis, redis_url: str, name: str
) -> None:
    """A key is of the wrong type: nobody is told that nothing happened while the message waits, and nothing is counted."""
    if name == INTENT:
        await redis.rpush(name, "x")
    else:
        await redis.set(name, "x")
    async with judging(redis_url) as ours:
        with pytest.raises(NotPublished, match="WRONGTYPE"):
            await ours.publish(KEYED, seconds=10, limit=5)

    assert [key for key in await redis.keys("*") if key not in {name, Keys().notify_key("tools.owls")}] == []
    await redis.delete(name)


@contextlib.asynccontextmanager
async def user_without(redis: Redis, url: str, command: str) -> AsyncGenerator[str]:
    """The address for a user of Redis that may do anything but this."""
    await redis.execute_command("ACL", "SETUSER", "partly", "on", ">pw", "~*", "&*", "+@all", f"-{command}")
    try:
        yield url.replace("redis://", "redis://partly:pw@")
    finally:
        await redis.execute_command("ACL", "DELUSER", "partly")


@pytest.mark.parametrize("command", ["zadd", "pexpire", "set", "lpush", "evalsha"])
async def test_without_a_right_nothing_is_published(redis: Redis, redis_url: str, command: str) -> None:
    """Whichever step of the script the user of Redis may not do: what was done before it is taken back."""
    async with user_without(redis, redis_url, command) as url, judging(url) as ours:
        with pytest.raises(NotPublished):
            await ours.publish(KEYED, seconds=10, limit=5)

    assert await redis.keys("*") == []


async def test_an_error_after_the_push_confirms_nothing(redis: Redis, redis_url: str) -> None:
    """A script that fails on its way is not undone: the message lies in the queue."""
    async with user_without(redis, redis_url, "exists") as url, publisher(url) as ours:
        with pytest.raises(PublishUnconfirmed):
            await ours.publish(published(), seconds=10)

    assert await redis.llen("tools.owls") == 1


async def test_what_comes_after_its_end_is_not_let_in(redis: Redis, redis_url: str) -> None:
    """A frozen Redis may read an old connection last, after the call was ended over a new one: nothing is written."""
    await redis.hset(Keys().call(KEYED.call_id), "state", "done")
    await redis.expire(Keys().call(KEYED.call_id), 60)
    async with judging(redis_url) as ours:
        with pytest.raises(PublishUnconfirmed):
            await ours.publish(KEYED, seconds=10)

    assert await redis.keys("*") == [Keys().call(KEYED.call_id)]


@contextlib.asynccontextmanager
async def admitting(url: str) -> AsyncGenerator[RedisPublisher]:
    """A publisher of an agent whose calls go where their results come from."""
    connect, settings = connection_factory(url), Settings(redis_url=url, signing_key=KEY)
    line = PipelinedConnection(connect, name="test")
    line.start()
    await line.connected()
    admission = AdmissionControl(settings)
    yield RedisPublisher(line, keys=Keys(), database=0, signing=settings, admission=admission)
    await line.aclose()


def readers(*, are_all: bool) -> Any:
    """What an agent knows of workers."""
    return SimpleNamespace(are_all=are_all, is_wanted=True)


async def forms(redis: Redis) -> list[str]:
    """In which form each message waits, the first one first."""
    items = reversed(await redis.lrange("tools.owls", 0, -1))
    return ["apart" if "sealed" in json.loads(item) else "usual" for item in items]


async def test_arguments_stand_apart_while_every_worker_reads_that(redis: Redis, redis_url: str) -> None:
    """Not those of a job's step, which nobody could publish again for an older worker."""
    async with admitting(redis_url) as ours:
        await ours.publish(published(call_id="c1"), seconds=10)
        ours.readers = readers(are_all=True)
        await ours.publish(published(call_id="c2"), seconds=10)
        await ours.publish(published(call_id="c3", job_id="j"), seconds=10)
        await ours.publish(published(call_id="c4", arguments={"text": "\ud800"}), seconds=10)

    assert await forms(redis) == ["usual", "apart", "usual", "usual"]


async def test_what_an_older_worker_cannot_read_is_published_once_more(redis: Redis, redis_url: str) -> None:
    """In the form that all versions read, under the same id: the ledger has it run once."""
    step = published(call_id="c2", job_id="j")
    async with admitting(redis_url) as ours:
        ours.readers = readers(are_all=True)
        await ours.publish(published(call_id="c1"), seconds=10)
        await ours.publish_for_all([published(call_id="c1"), step])

    assert await forms(redis) == ["apart", "usual"]
    ids = {json.loads(item)["headers"]["id"] for item in await redis.lrange("tools.owls", 0, -1)}
    assert ids == {"c1"}


async def test_a_call_that_was_not_confirmed_before_is_published_once_more_as_well(
    redis: Redis, redis_url: str
) -> None:
    """It may be in its queue in the newest form, and is not put there again."""
    async with admitting(redis_url) as ours:
        ours.readers = readers(are_all=True)
        await ours.publish(published(call_id="c1"), seconds=10)
        await ours.publish_for_all([])
        ours.readers = readers(are_all=False)
        await ours.publish(published(call_id="c1"), seconds=10, again=True)

    assert await forms(redis) == ["apart", "usual"]


async def test_a_call_that_leaves_just_then_is_published_once_more_as_well(redis: Redis, redis_url: str) -> None:
    """The word of an older worker may come before the answer about a call that had left in the newest form."""
    async with admitting(redis_url) as ours:
        ours.readers = readers(are_all=True)
        posting = asyncio.ensure_future(ours.publish(published(call_id="c1"), seconds=10))
        await asyncio.sleep(0)
        await ours.publish_for_all([])
        await posting

    assert await forms(redis) == ["apart", "usual"]
