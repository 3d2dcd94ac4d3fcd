"""Who works at a Redis, and with which transport."""

import pytest
from redis.asyncio import Redis

from toolfleet_registry.errors import SettingsError
from toolfleet_registry.settings import Settings
from toolfleet_tasks.presence.transport_check import Presence


@pytest.fixture
def fast(redis_url: str) -> Settings:
    return Settings(redis_url=redis_url, fast_transport=True)


@pytest.fixture
def stock(redis_url: str) -> Settings:
    return Settings(redis_url=redis_url, fast_transport=False)


async def test_workers_of_one_mode_work_side_by_side(fast: Settings) -> None:
    """Any number of them, and one may check in again."""
    for _ in range(3):
        await Presence(fast).check_in()


async def test_a_worker_of_another_mode_is_refused(fast: Settings, stock: Settings) -> None:
    """In one sentence that names who is there, both modes and the setting."""
    await Presence(fast).check_in()

    with pytest.raises(SettingsError, match=r"lease fast/60s, and this one stock/7200s: set TOOLFLEET_FAST_TRANSPORT"):
        await Presence(stock).check_in()


async def test_a_worker_with_another_lease_is_refused(redis_url: str) -> None:
    """It would put calls back that the others still run."""
    await Presence(Settings(redis_url=redis_url, fast_transport=True)).check_in()

    with pytest.raises(SettingsError, match="VISIBILITY_TIMEOUT alike"):
        await Presence(Settings(redis_url=redis_url, fast_transport=True, visibility_timeout=5)).check_in()


async def test_the_other_mode_may_come_when_the_last_worker_has_left(fast: Settings, stock: Settings) -> None:
    """At once, and not only when the note has expired."""
    await Presence(fast).check_in()
    await Presence(fast).check_out()

    await Presence(stock).check_in()


async def test_a_worker_that_died_counts_for_twenty_seconds(fast: Settings, stock: Settings, redis: Redis) -> None:
    """Its note is then as if it were not there, whatever others have noted since."""
    await Presence(fast).check_in()
    (note,) = await _notes(redis)
    await redis.zincrby("toolfleet:modes", -21, note)

    await Presence(stock).check_in()

    assert [note.split()[0] for note in await _notes(redis)] == ["stock/7200s"]


async def test_notes_vanish_with_the_last_worker(fast: Settings, redis: Redis) -> None:
    """A fleet that was killed leaves nothing behind for long."""
    await Presence(fast).check_in()

    assert 0 < await redis.ttl("toolfleet:modes") <= 20


async def test_fleets_with_different_prefixes_do_not_see_each_other(redis_url: str) -> None:
    """Two fleets that share a Redis may differ."""
    await Presence(Settings(redis_url=redis_url, fast_transport=True, key_prefix="a:")).check_in()
    await Presence(Settings(redis_url=redis_url, fast_transport=False, key_prefix="b:")).check_in()

    async with Redis.from_url(redis_url) as redis:
        await redis.flushall()


async def test_with_another_broker_there_is_nothing_to_note(redis_url: str, redis: Redis) -> None:
    """RabbitMQ has its own rules for lost messages."""
    await Presence(Settings(redis_url=redis_url, broker_url="amqp://guest@127.0.0.1:1//")).check_in()

    assert not await redis.exists("toolfleet:modes")


async def _notes(redis: Redis) -> list[str]:
    return [str(note) for note in await redis.zrange("toolfleet:modes", 0, -1)]
