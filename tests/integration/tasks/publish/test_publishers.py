"""Whatever a fleet puts into a queue reads alike, whichever publisher has written it."""

import json
from base64 import b64decode
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from redis.asyncio import Redis

from support.published_call import published
from toolfleet_registry.redis.servers import connection_factory
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock
from toolfleet_tasks.app import make_app
from toolfleet_tasks.messages.envelope import FOLLOWERS, TASK, Label, Links
from toolfleet_tasks.messages.signing import seal_of
from toolfleet_tasks.queues import CONTROL
from toolfleet_tasks.redis_connection import PipelinedConnection
from toolfleet_tasks.transport.publisher import Delivered, Publisher
from toolfleet_tasks.transport.redis_publisher import RedisPublisher

SIGNED = 'eyJhbGciOi.signed "text".\u2028'
LABEL = Label("call-1", "owls.count", "(query=…)", "tools.owls", (31, 40))
LINK = {"task": TASK, "args": ["signed"], "options": {"task_id": "call-2"}}
PLACE = {"group": "group-1", "group_index": 3, "root_id": "call-0", "parent_id": "call-0"}


@pytest.fixture(params=["redis", "kombu"])
async def publisher(redis_url: str, request: pytest.FixtureRequest) -> AsyncIterator[Publisher]:
    settings = Settings(redis_url=redis_url, module_services={"owls": "http://owls:1"})
    if request.param == "kombu":
        app = make_app(settings, stores_results=False)
        yield app.publisher
        app.publisher.close()
        return
    connection = PipelinedConnection(connection_factory(redis_url), name="test")
    connection.start()
    yield RedisPublisher(connection, keys=settings.keys, database=0, signing=settings)
    await connection.aclose()


async def written(redis: Redis, queue: str = LABEL.queue) -> tuple[dict[str, Any], Any]:
    """The headers and the body of the one message in a queue."""
    (text,) = await redis.lrange(queue, 0, -1)
    message = json.loads(text)
    return message["headers"], json.loads(b64decode(message["body"]))


async def test_a_call_is_in_its_modules_queue(publisher: Publisher, redis: Redis) -> None:
    """With the nets around its module's own limit, and sealed as the fleet seals."""
    call = published("owls.count", limit_seconds=7)
    assert await publisher.publish(call, seconds=10, limit=0) is None
    headers, body = await written(redis)

    assert (headers["task"], headers["id"], headers["timelimit"]) == (TASK, call.call_id, [17, 8])
    assert seal_of(Settings()).open(body[0][0], task_id=call.call_id) == call


@pytest.mark.parametrize("limits", [(31, 40), (None, None)])
async def test_a_call_that_is_published_again_goes_on_as_it_came(
    publisher: Publisher, redis: Redis, limits: tuple[float | None, float | None]
) -> None:
    """Not a byte of its text changes, and it is not begun before its time."""
    before = fleet_clock.utc_now()
    label = Label(LABEL.call_id, LABEL.shadow, LABEL.args_shown, LABEL.queue, limits)
    await publisher.republish(Delivered(SIGNED, label), delay=2.5, retries=1)
    headers, body = await written(redis)
    delay = datetime.fromisoformat(headers["eta"]) - before

    assert body == [[SIGNED], {}, dict.fromkeys(FOLLOWERS)]
    assert (headers["id"], headers["shadow"], headers["argsrepr"]) == (LABEL.call_id, LABEL.shadow, LABEL.args_shown)
    assert (headers["retries"], headers["timelimit"]) == (1, [limits[1], limits[0]])
    assert (headers["group"], headers["root_id"], headers["parent_id"]) == (None, LABEL.call_id, None)
    assert timedelta(seconds=2.5) <= delay < timedelta(seconds=12.5)


async def test_what_follows_a_call_follows_it_again(publisher: Publisher, redis: Redis) -> None:
    """Its place in a chain, a chord and a group goes on with it."""
    after = {"chain": [LINK], "chord": LINK, "callbacks": [LINK], "errbacks": None}
    links = Links(after, PLACE["group"], PLACE["group_index"], PLACE["root_id"], PLACE["parent_id"])  # type: ignore[arg-type] # as they are
    label = Label(LABEL.call_id, LABEL.shadow, LABEL.args_shown, LABEL.queue, LABEL.limits, links)
    await publisher.republish(Delivered(SIGNED, label), delay=0, retries=1)
    headers, body = await written(redis)

    assert body == [[SIGNED], {}, after]
    assert {name: headers[name] for name in PLACE} == PLACE


async def test_a_task_of_our_own_waits_with_the_others(publisher: Publisher, redis: Redis) -> None:
    """Its arguments are ids, and nobody waits for its result."""
    await publisher.control("toolfleet.evaluate_job", "job-1")
    headers, body = await written(redis, CONTROL)

    assert (headers["task"], headers["ignore_result"]) == ("toolfleet.evaluate_job", True)
    assert body[0] == ["job-1"]
