"""Who works at a Redis, and with which lease."""

import pytest
from redis.asyncio import Redis

from toolfleet_registry.errors import SettingsError
from toolfleet_registry.settings import Settings
from toolfleet_tasks.control.startup_checks import Presence


@pytest.fixture
def settings(redis_url: str) -> Settings:
    return Settings(redis_url=redis_url)


@pytest.fixture
def longer(redis_url: str) -> Settings:
    return Settings(redis_url=redis_url, visibility_timeout=7200)


async def test_workers_of_one_lease_work_side_by_side(settings: Settings) -> None:
    """Any number of them, and one may check in again."""
    for _ in range(3):
        await Presence(settings).check_in()


async def test_a_worker_with_another_lease_is_refused(settings: Settings, redis_url: str) -> None:
    """It would put calls back that the others still run: one sentence names who is there, both leases and the setting."""
    await Presence(settings).check_in()

    with pytest.raises(
        SettingsError, match=r"lease fast/60s, and this one fast/5s: set TOOLFLEET_VISIBILITY_TIMEOUT alike"
    ):
        await Presence(Settings(redis_url=redis_url, visibility_timeout=5)).check_in()


async def test_no_worker_works_next_to_one_of_before_with_kombus_transport(settings: Settings, redis: Redis) -> None:
    """That one renews nothing, so that its calls would run twice: it is to end first."""
    await redis.zadd("toolfleet:modes", {"stock/7200s old:1": (await redis.time())[0]})
    await redis.expire("toolfleet:modes", 20)

    with pytest.raises(
        SettingsError, match=r"^The worker old:1 at this Redis uses transport and lease stock/7200s, and"
    ):
        await Presence(settings).check_in()


async def test_the_other_lease_may_come_when_the_last_worker_has_left(settings: Settings, longer: Settings) -> None:
    """At once, and not only when the note has expired."""
    await Presence(settings).check_in()
    await Presence(settings).check_out()

    await Presence(longer).check_in()


async def test_a_worker_that_died_counts_for_twenty_seconds(settings: Settings, longer: Settings, redis: Redis) -> None:
    """Its note is then as if it were not there, whatever others have noted since."""
    await Presence(settings).check_in()
    (note,) = await _notes(redis)
    await redis.zincrby("toolfleet:modes", -21, note)

    await Presence(longer).check_in()

    assert [note.split()[0] for note in await _notes(redis)] == ["fast/7200s"]


async def test_notes_vanish_with_the_last_worker(settings: Settings, redis: Redis) -> None:
    """A fleet that was killed leaves nothing behind for long."""
    await Presence(settings).check_in()

    assert 0 < await redis.ttl("toolfleet:modes") <= 20


async def test_fleets_with_different_prefixes_do_not_see_each_other(redis_url: str) -> None:
    """Two fleets that share a Redis may differ."""
    await Presence(Settings(redis_url=redis_url, key_prefix="a:")).check_in()
    await Presence(Settings(redis_url=redis_url, visibility_timeout=7200, key_prefix="b:")).check_in()

    async with Redis.from_url(redis_url) as redis:
        await redis.flushall()


async def test_with_another_broker_there_is_nothing_to_note(redis_url: str, redis: Redis) -> None:
    """RabbitMQ has its own rules for lost messages."""
    await Presence(Settings(redis_url=redis_url, broker_url="amqp://guest@127.0.0.1:1//")).check_in()

    assert not await redis.exists("toolfleet:modes")


async def _notes(redis: Redis) -> list[str]:
    return [str(note) for note in await redis.zrange("toolfleet:modes", 0, -1)]
