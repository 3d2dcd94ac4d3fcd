"""What agents and workers know of the profiles that the registry keeps, whatever becomes of Redis."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from support.servers.redis_faults import FaultyRedis, faulty_redis
from support.there import there
from toolfleet_registry.agents.known_profiles import KnownProfiles
from toolfleet_registry.agents.live_profiles import LiveProfiles
from toolfleet_registry.agents.stored_profiles import ProfileCopy, StoredProfiles
from toolfleet_registry.config.agent_profile import AgentProfile
from toolfleet_registry.contracts import Caller
from toolfleet_registry.errors import FleetUnavailable, UnknownAgent
from toolfleet_registry.settings import Settings, load_settings

READER = AgentProfile(permission_at_most="user")
WRITER = AgentProfile(permission_at_most="admin")


@pytest.fixture
def settings(redis_url: str) -> Settings:
    return load_settings(redis_url=redis_url, agents={"both": {"allowed_modules": ["owls"]}})


@pytest.fixture
def stored(settings: Settings) -> Iterator[StoredProfiles]:
    opened = StoredProfiles.of(settings)
    yield opened
    opened.close()


@pytest.fixture
async def live(redis: Redis, settings: Settings) -> LiveProfiles:
    return LiveProfiles(redis, settings, KnownProfiles(settings))


def places(live: LiveProfiles, agent: str) -> list[str]:
    """Where the agent's profiles stand."""
    found = live.known.of(Caller(agent=agent))
    return [] if found is None else [named.place for named in found.profiles]


async def test_what_is_stored_is_taken_over(live: LiveProfiles, stored: StoredProfiles) -> None:
    """With its version, beside what the settings say; a removed one is gone."""
    await live.load()
    with pytest.raises(UnknownAgent):
        places(live, "reader")
    stored.put("reader", READER, by="ada")
    stored.put("both", READER, by="ada")
    stored.put("both", WRITER, by="ada")
    await live.load()

    assert places(live, "reader") == ["registry, version 1"]
    assert places(live, "both") == ["settings", "registry, version 2"]
    stored.remove("reader", by="ada")
    stored.remove("both", by="ada")
    await live.load()
    with pytest.raises(UnknownAgent, match="there is no profile of 'reader'"):
        places(live, "reader")
    assert places(live, "both") == ["settings"]


async def test_a_change_is_announced(redis: Redis, settings: Settings, stored: StoredProfiles) -> None:
    """To agents on their channel, and to workers by the number that they ask for."""
    keys = settings.keys
    async with redis.pubsub() as channel:
        await channel.subscribe(keys.manifests_changed)
        stored.put("reader", READER, by="ada")
        assert await anext(each async for each in channel.listen() if each["type"] == "message")
    assert await redis.get(keys.manifests_revision) == "1"


async def test_an_unreadable_profile_leaves_its_agent_nothing(
    redis: Redis, settings: Settings, live: LiveProfiles, stored: StoredProfiles
) -> None:
    """Also where the settings have one: nobody knows what it would have taken. Others are as before."""
    stored.put("both", READER, by="ada")
    stored.put("reader", READER, by="ada")
    await redis.hset(settings.keys.registry.agents, "both", "{")
    await redis.set(settings.keys.registry.agents_revision, "another")
    await live.load()

    with pytest.raises(UnknownAgent, match=r"its profile in the registry does not count: .* wrong in 1 places"):
        places(live, "both")
    assert live.known.fault("both") is not None
    assert places(live, "reader") == ["registry, version 1"]
    stored.put("both", WRITER, by="ada")
    await live.load()
    assert places(live, "both") == ["settings", "registry, version 2"]


async def test_a_redis_that_was_emptied_changes_nothing(
    redis: Redis, live: LiveProfiles, stored: StoredProfiles
) -> None:
    """What was known stays known, until somebody stores one again."""
    stored.put("reader", READER, by="ada")
    await live.load()
    await redis.flushall()
    await live.load()
    await live.load()
    assert places(live, "reader") == ["registry, version 1"]

    stored.put("writer", WRITER, by="ada")
    await live.load()
    assert places(live, "writer") == ["registry, version 1"]


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[FaultyRedis]:
    with faulty_redis(tmp_path / "redis") as redis:
        yield redis


@pytest.fixture
async def client(faulty: FaultyRedis) -> AsyncIterator[Redis]:
    async with Redis.from_url(faulty.url, socket_timeout=0.3) as client:
        yield client


async def test_a_redis_that_stands_still_changes_nothing(faulty: FaultyRedis, client: Redis) -> None:
    """The reading ends with an error, and what was known stays known."""
    settings = load_settings(redis_url=faulty.url)
    live, stored = LiveProfiles(client, settings, KnownProfiles(settings)), StoredProfiles.of(settings)
    stored.put("reader", READER, by="ada")
    await live.load()
    with faulty.frozen(), pytest.raises(FleetUnavailable):
        await live.load()
    assert places(live, "reader") == ["registry, version 1"]

    stored.remove("reader", by="ada")
    await live.load()
    with pytest.raises(UnknownAgent):
        places(live, "reader")
    stored.close()


async def test_a_registry_elsewhere_has_a_copy_in_the_fleets_redis(
    redis: Redis, redis_url: str, tmp_path: Path
) -> None:
    """It is made anew where Redis has lost it, and left alone where it is as it should be."""
    settings = load_settings(redis_url=redis_url, registry_url=f"sqlite:///{tmp_path / 'registry.db'}")
    live, copy = LiveProfiles(redis, settings, KnownProfiles(settings)), ProfileCopy(redis, settings)
    stored, keys = StoredProfiles.of(settings), settings.keys
    await copy.renew()
    assert await redis.keys("*") == []  # nobody has changed anything
    stored.put("reader", READER, by="ada")
    await live.load()
    with pytest.raises(UnknownAgent):
        places(live, "reader")

    await copy.renew()
    await copy.renew()
    await live.load()
    assert places(live, "reader") == ["registry, version 1"]
    assert await redis.get(keys.manifests_revision) == "1"
    for lost in (["*"], [keys.registry.agents]):
        await redis.delete(*[key for pattern in lost for key in await redis.keys(pattern)])
        await copy.renew()
        other = LiveProfiles(redis, settings, KnownProfiles(settings))
        await other.load()
        assert places(other, "reader") == ["registry, version 1"]
    stored.remove("reader", by="ada")
    await copy.renew()
    await live.load()
    with pytest.raises(UnknownAgent):
        places(live, "reader")
    stored.close()


async def test_a_late_copy_replaces_no_newer_one(redis: Redis, redis_url: str, tmp_path: Path) -> None:
    """Whoever has read the registry before a change, and writes after another has, reads it once more."""
    settings = load_settings(redis_url=redis_url, registry_url=f"sqlite:///{tmp_path / 'registry.db'}")
    stored, copy = StoredProfiles.of(settings), ProfileCopy(redis, settings)
    stored.put("reader", READER, by="ada")
    early = there(stored.texts())
    stored.put("writer", WRITER, by="ada")
    await copy.renew()

    assert not await copy._write("", early)
    assert sorted(await redis.hkeys(settings.keys.registry.agents)) == ["reader", "writer"]
    stored.close()
