"""What a caller hears of a call's progress while connections come and go."""

import asyncio
import contextlib
import copy
import pickle
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from support.waiting import PATIENCE_SECONDS, wait_until, wait_until_equal
from toolfleet_registry.contracts.call_context import Progress
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.servers import connection_factory
from toolfleet_registry.settings import Settings
from toolfleet_tasks.calls.pending_call import CallStatus
from toolfleet_tasks.redis_connection import PipelinedConnection
from toolfleet_tasks.results.listener import ChannelWatch, ResultListener, follow_progress
from toolfleet_tasks.results.verifier import Verifier

KEY = "toolfleet:progress:call-1"


class Follower:
    """Notes what it hears of the call, until `ending`."""

    def __init__(self, listener: ResultListener) -> None:
        self.heard: list[str] = []
        self.ending: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self._follow(listener))

    async def _follow(self, listener: ResultListener) -> None:
        async with contextlib.aclosing(follow_progress(listener, "call-1", self.ending)) as steps:
            async for step in steps:
                self.heard.append(step.message)

    async def hears(self, message: str) -> None:
        await wait_until(lambda: message in self.heard, f"{message} is heard")


@pytest.fixture
async def listener(redis_url: str) -> AsyncIterator[ResultListener]:
    line, reads = (
        PipelinedConnection(connection_factory(redis_url), name="test"),
        PipelinedConnection(connection_factory(redis_url), name="reads"),
    )
    listener = ResultListener(line, reads, Verifier(line, Settings()), handlers={}, keys=Keys())
    line.start()
    await line.connected()
    listener.start()
    yield listener
    await listener.aclose()
    await line.aclose()


async def say(redis: Redis, message: str) -> int:
    """As a worker does; returns how many connections heard it."""
    content = Progress(message=message).model_dump_json()
    await redis.set(KEY, content, ex=60)
    return int(await redis.publish(KEY, content))


async def test_what_was_missed_is_made_good_after_a_reconnect(listener: ResultListener, redis: Redis) -> None:
    """The latest word is read when the channel is subscribed to anew, and what comes later is heard."""
    await say(redis, "before")
    follower = Follower(listener)
    await follower.hears("before")
    await redis.client_kill_filter(_type="pubsub")
    await say(redis, "meanwhile")
    await follower.hears("meanwhile")
    await say(redis, "after")
    await follower.hears("after")
    follower.ending.set_result(None)
    await asyncio.wait_for(follower.task, PATIENCE_SECONDS)

    assert follower.heard == ["before", "meanwhile", "after"]


async def test_a_strangers_message_is_no_progress(listener: ResultListener, redis: Redis) -> None:
    """What cannot be read is skipped, and the same thing said twice is said once."""
    await redis.set(KEY, "nonsense", ex=60)
    follower = Follower(listener)
    await wait_until(lambda: KEY.encode() in listener.watches, "it follows")
    await wait_until_equal(lambda: say(redis, "one"), 1, "it is heard")
    await redis.publish(KEY, '{"fraction": 7, "message": "x"}')
    await say(redis, "one")
    await say(redis, "two")
    await follower.hears("two")
    follower.ending.set_result(None)
    await asyncio.wait_for(follower.task, PATIENCE_SECONDS)

    assert follower.heard == ["one", "two"]


async def test_nobody_is_subscribed_for_whom_nobody_asks(listener: ResultListener, redis: Redis) -> None:
    """The subscription comes with the first who follows and goes with the last."""
    assert await say(redis, "unheard") == 0
    first, second = Follower(listener), Follower(listener)
    await first.hears("unheard")
    await second.hears("unheard")
    first.task.cancel()
    assert await say(redis, "heard") == 1
    await second.hears("heard")
    second.task.cancel()
    await asyncio.wait({first.task, second.task})
    await wait_until_equal(lambda: say(redis, "nobody"), 0, "nobody hears it")

    assert list(listener.watches) == []


async def test_what_is_read_late_does_not_replace_what_was_heard(redis_url: str) -> None:
    """The two come over different connections: the one that was read may be the older one."""
    wanted: list[bytes] = []
    heard: list[bytes] = []
    watches = ChannelWatch(PipelinedConnection(connection_factory(redis_url), name="test"), wanted.append)
    with watches.watching(b"k", heard.append):
        watches.subscribed(b"k")
        watches.announced(b"k", b"new")
        watches.found(b"k", b"old")

    assert (heard, wanted) == ([b"new"], [b"k"])


def _pickled(status: CallStatus) -> Any:
    return pickle.loads(pickle.dumps(status))  # noqa: S301 - our own


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, _pickled])
def test_a_status_is_text_with_more_in_it(copied: Callable[[CallStatus], CallStatus]) -> None:
    """It compares, hashes and prints as the text; a copy has the progress, too."""
    status = CallStatus("running", Progress(fraction=0.5))
    other = copied(status)

    assert (status, f"{status}", hash(status), status == "running") == ("running", "running", hash("running"), True)
    assert (other, other.progress) == ("running", Progress(fraction=0.5))
