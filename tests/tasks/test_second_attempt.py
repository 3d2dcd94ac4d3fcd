"""The retry's message, as the worker publishes it over its line."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from redis.asyncio import Redis

from support.published_call import published
from toolfleet_registry.settings import Settings
from toolfleet_tasks import lines
from toolfleet_tasks.second_attempt import publish_again


@pytest.mark.parametrize(
    ("limits", "found"), [(None, [None, None]), ([None, None], [None, None]), ([40, 31], [40, 31])]
)
async def test_a_retry_has_the_limits_of_the_first_attempt(
    redis: Redis, redis_url: str, limits: list[Any] | None, found: list[Any]
) -> None:
    """Also of one that somebody published without limits."""
    request = SimpleNamespace(timelimit=limits, delivery_info={"routing_key": "tools.owls"}, reply_to=None, retries=0)
    task: Any = SimpleNamespace(
        app=SimpleNamespace(settings=Settings(redis_url=redis_url, fast_transport=True)), request=request
    )
    lines.start(asyncio.get_running_loop())
    try:
        await publish_again(task, published(), 0.5)
    finally:
        await lines.stop()
    (message,) = await redis.lrange("tools.owls", 0, -1)
    headers = json.loads(message)["headers"]

    assert (headers["timelimit"], headers["retries"]) == (found, 1)
