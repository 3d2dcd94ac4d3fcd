"""Publishing without blocking, once, and never for a caller who has gone."""

import asyncio
import contextlib
import threading
from collections.abc import Generator

import pytest
from redis.asyncio import Redis

from support.programs.closed_port import closed_port
from support.waiting import PATIENCE_SECONDS, wait_until_equal
from toolfleet_registry.contracts import Caller, PublishedCall
from toolfleet_registry.errors import NotPublished
from toolfleet_registry.settings import Settings
from toolfleet_tasks.admission import Refusal
from toolfleet_tasks.app import make_app
from toolfleet_tasks.transport.kombu_publisher import KombuPublisher

CALL = PublishedCall(
    call_id="c1",
    tool_name="owls.echo",
    arguments={"secret": "hunter2"},
    user_id=None,
    caller=Caller(),
    effect=None,
    limit_seconds=30,
    published_at=1e9,
    deadline_at=4e9,
)


@contextlib.contextmanager
def publisher(url: str, broker_url: str | None = None) -> Generator[KombuPublisher]:
    settings = Settings(redis_url=url, broker_url=broker_url, module_services={"owls": "http://owls:1"})
    app = make_app(settings, stores_results=False)
    app.conf.broker_connection_timeout = 0.5
    yield app.publisher
    app.publisher.close()


async def test_a_call_gets_into_its_queue(redis: Redis, redis_url: str) -> None:
    """One message, under the call's id and its tool's name; no value of an argument is shown to who looks on."""
    with publisher(redis_url) as ours:
        await ours.publish(CALL, seconds=10)
    (message,) = map(str, await redis.lrange("tools.owls", 0, -1))

    assert '"id": "c1"' in message
    assert '"shadow": "owls.echo"' in message
    assert "secret=" in message
    assert "hunter2" not in message.partition('"headers"')[2]


async def test_who_has_gone_is_not_published(redis: Redis, redis_url: str) -> None:
    """A call whose caller is cancelled before its turn comes is left out."""
    with publisher(redis_url) as ours:
        go_on = threading.Event()
        for _ in range(4):
            ours._threads.submit(go_on.wait)  # every thread is at something
        waiting = asyncio.create_task(ours.publish(CALL, seconds=10))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        go_on.set()
        await ours.publish(CALL.model_copy(update={"call_id": "c2"}), seconds=10)

    assert await redis.llen("tools.owls") == 1


@pytest.mark.parametrize("broker", ["redis://127.0.0.1:{}/0", "amqp://guest:guest@127.0.0.1:{}//"])
async def test_without_a_broker_nothing_is_published(broker: str) -> None:
    """A refused connection is told apart from a lost answer: nothing can have been sent. Its reason is for people to read."""
    url = broker.format(closed_port())
    with publisher("redis://127.0.0.1:1/0", url) as ours, pytest.raises(NotPublished, match=r"^nobody listens there$"):
        await ours.publish(CALL, seconds=10)


async def test_without_a_broker_revoking_gives_up() -> None:
    """A revocation is tried once: no thread of ours waits for a broker that stays away."""
    with publisher(f"redis://127.0.0.1:{closed_port()}/0") as ours:
        await asyncio.wait_for(ours.revoke("c1"), PATIENCE_SECONDS)


async def test_a_full_queue_takes_nothing_more(redis: Redis, redis_url: str) -> None:
    """The broker is asked now and then, and what was published here since is added."""
    with publisher(redis_url) as ours:
        ends = [await ours.publish(CALL, seconds=10, limit=3) for _ in range(5)]
        await redis.delete("tools.owls")
        ask = lambda: ours.publish(CALL, seconds=10, limit=3)  # noqa: E731
        await wait_until_equal(ask, None, "the queue is seen to be empty")

    full = Refusal("backlog", count=3)
    assert ends == [None, None, None, full, full]
    assert await redis.llen("tools.owls") == 1
