"""The beat job puts manifests into Redis, once a time slot."""

from collections.abc import Iterator

import pytest
from redis.asyncio import Redis

from support.module_server import ModuleServer, serve
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.settings import Settings
from toolfleet_tasks.control.fleet_tasks import REFRESH, refresh_manifests, schedule
from toolfleet_tasks.queues import CONTROL


@pytest.fixture
def cats() -> Iterator[ModuleServer]:
    with serve(ModuleServer("cats")) as module:
        yield module


def settings_for(redis_url: str, module: ModuleServer) -> Settings:
    return Settings(redis_url=redis_url, module_services={module.name: module.url})


async def test_manifests_get_into_redis(redis: Redis, redis_url: str, cats: ModuleServer) -> None:
    """What a module offers is in the cache afterwards, with its TTL."""
    assert await refresh_manifests(settings_for(redis_url, cats))

    assert 3500 < await redis.ttl(Keys().module_manifest("cats")) <= 3600


async def test_two_beats_do_the_work_once(redis: Redis, redis_url: str, cats: ModuleServer) -> None:
    """In one time slot the modules are asked once, however often the job comes; the next slot asks again."""
    settings = settings_for(redis_url, cats)
    done = [await refresh_manifests(settings, now=now) for now in (600.0, 601.0, 899.9, 900.0)]

    assert done == [True, False, False, True]
    assert cats.looks == 2


def test_a_tick_that_was_not_served_is_dropped(redis_url: str, cats: ModuleServer) -> None:
    """The job goes to the control queue and expires before the next one comes."""
    entry = schedule(settings_for(redis_url, cats))["refresh-manifests"]

    assert entry == {"task": REFRESH, "schedule": 300, "options": {"queue": CONTROL, "expires": 600}}
