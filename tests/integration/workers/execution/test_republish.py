"""The message of a call that is published again, as the worker does it over its line."""

import asyncio
import json
from base64 import b64decode
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from celery.app.task import Context
from redis.asyncio import Redis

from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock
from toolfleet_tasks import worker_runtime
from toolfleet_tasks.call_task import links_of
from toolfleet_workers.execution.running_task import publish_again

SIGNED = 'eyJhbGciOi.signed "text".\u2028'


@pytest.fixture
async def settings(redis_url: str) -> AsyncIterator[Settings]:
    worker_runtime.start(asyncio.get_running_loop())
    yield Settings(redis_url=redis_url)
    await worker_runtime.stop()


def task_of(settings: Settings, **fields: Any) -> Any:
    """A task in the middle of a call."""
    request: dict[str, Any] = {
        "id": "call-1",
        "args": [SIGNED],
        "shadow": "owls.count",
        "argsrepr": "(query=…)",
        "timelimit": [40, 31],
        "delivery_info": {"routing_key": "tools.owls"},
        "reply_to": None,
        "retries": 0,
    }
    said = Context(**{**request, **fields})
    return SimpleNamespace(app=SimpleNamespace(settings=settings), request=said, links=links_of(said))


async def published(redis: Redis) -> dict[str, Any]:
    (text,) = await redis.lrange("tools.owls", 0, -1)
    message: dict[str, Any] = json.loads(text)
    return message


@pytest.mark.parametrize(
    ("limits", "found"), [(None, [None, None]), ([None, None], [None, None]), ([40, 31], [40, 31])]
)
async def test_a_retry_has_the_limits_of_the_first_attempt(
    settings: Settings, redis: Redis, limits: list[Any] | None, found: list[Any]
) -> None:
    """Also of one that somebody published without limits."""
    await publish_again(task_of(settings, timelimit=limits), 0.5, retries=1)
    headers = (await published(redis))["headers"]

    assert (headers["timelimit"], headers["retries"]) == (found, 1)


async def test_a_retry_is_the_message_that_came(settings: Settings, redis: Redis) -> None:
    """Whoever signed it signed that: the text goes on byte by byte, under the same id and the same name in Flower."""
    await publish_again(task_of(settings), 0.5, retries=1)
    message = await published(redis)
    headers = message["headers"]

    assert json.loads(b64decode(message["body"]))[0] == [SIGNED]
    assert (headers["id"], headers["shadow"], headers["argsrepr"]) == ("call-1", "owls.count", "(query=…)")


async def test_a_call_that_is_put_off_is_no_retry(settings: Settings, redis: Redis) -> None:
    """One that another worker is at comes back later, and Flower counts no further attempt."""
    before = fleet_clock.utc_now()
    await publish_again(task_of(settings, retries=1), 2.5, retries=1)
    headers = (await published(redis))["headers"]
    delay = datetime.fromisoformat(headers["eta"]) - before

    assert headers["retries"] == 1
    assert timedelta(seconds=2.5) <= delay < timedelta(seconds=12.5)


async def test_a_retry_is_followed_by_what_follows_the_call(settings: Settings, redis: Redis) -> None:
    """Its place in a chain or a chord goes on with it."""
    link = {"task": "toolfleet.execute", "args": ["signed"], "options": {"task_id": "call-2"}}
    place = {"group": "group-1", "group_index": 3, "root_id": "call-0", "parent_id": "call-0"}
    await publish_again(
        task_of(settings, chain=[link], chord=link, callbacks=None, errbacks=None, **place), 0, retries=1
    )
    message = await published(redis)

    after = {"chain": [link], "chord": link, "callbacks": None, "errbacks": None}
    assert json.loads(b64decode(message["body"])) == [[SIGNED], {}, after]
    assert {name: message["headers"][name] for name in place} == place
