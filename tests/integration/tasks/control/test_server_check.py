"""What a process says of the Redis that it is given, and where a worker does not start."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis as SyncRedis
from redis.asyncio import Redis
from structlog.testing import capture_logs

from support.fleet import TestBed, program
from support.servers.redis_setups import behind_sentinels, with_a_restricted_user
from support.waiting import wait_until_sync
from toolfleet import ToolFleet
from toolfleet_cli.local.environment import beat_command
from toolfleet_cli.local.fleet import local_fleet
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.settings import Settings
from toolfleet_registry.system.process import this_process
from toolfleet_tasks.app import make_app
from toolfleet_tasks.control.server_check import faults_in, faults_of, require_fit, say_faults
from toolfleet_tasks.control.startup_checks import require_redis

GOOD = {"redis_version": "7.2.4", "maxmemory_policy": "noeviction", "aof_enabled": 1, "aof_last_write_status": "ok"}


@pytest.fixture(autouse=True)
def _new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(this_process(), "_parts", {})


@pytest.fixture
async def evicting(redis: Redis, redis_url: str) -> Any:
    await redis.config_set("maxmemory-policy", "volatile-lru")
    yield redis_url
    await redis.config_set("maxmemory-policy", "noeviction")


@pytest.mark.parametrize(
    ("said", "words", "is_fatal"),
    [
        ({"maxmemory_policy": "volatile-lru"}, "maxmemory-policy volatile-lru", True),
        ({"maxmemory_policy": "allkeys-lfu"}, "maxmemory-policy allkeys-lfu", True),
        ({"maxmemory_policy": None}, "does not say whether it deletes keys", False),
        ({"redis_version": "6.0.16"}, "too old (6.0.16): the fleet needs 6.2", True),
        ({"redis_version": "5.0"}, "too old", True),
        ({"aof_enabled": 0}, "keeps no append-only file", False),
        ({"aof_last_write_status": "err"}, "cannot write its append-only file", False),
        ({"connected_slaves": 1, "slave0": {"state": "online", "lag": 11}}, "1 of the 1 replicas of Redis lag", False),
        ({"connected_slaves": 1, "slave0": {"state": "wait_bgsave", "lag": 0}}, "1 of the 1 replicas", False),
    ],
)
def test_each_fault_is_one_sentence(said: dict[str, Any], words: str, *, is_fatal: bool) -> None:
    """And says what to do, where that is known."""
    (fault,) = faults_in({**GOOD, **said}, "Redis", allows_eviction=False)

    assert words in fault.text
    assert fault.is_fatal is is_fatal


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"redis_version": "6.2.0"},
        {"redis_version": "10.0.1"},
        {"redis_version": "hosted"},  # nobody knows
        {"connected_slaves": 1, "slave0": {"state": "online", "lag": 1}},
    ],
)
def test_nothing_is_said_of_a_good_server(said: dict[str, Any]) -> None:
    """Who reads warnings every day reads none."""
    assert faults_in({**GOOD, **said}, "Redis", allows_eviction=False) == []


async def test_a_server_of_toolfleet_up_is_good(redis_url: str) -> None:
    """As it is started by us."""
    assert await faults_of(Settings(redis_url=redis_url)) == []


async def test_a_worker_does_not_start_at_a_redis_that_evicts(evicting: str) -> None:
    """Unless somebody says that it may; then it says so at each start."""
    with pytest.raises(SettingsError, match=r"maxmemory-policy volatile-lru.*TOOLFLEET_ALLOW_EVICTION=1"):
        await require_fit(Settings(redis_url=evicting))
    with capture_logs() as logs:
        await require_fit(Settings(redis_url=evicting, allow_eviction=True))

    (line,) = logs
    assert "TOOLFLEET_ALLOW_EVICTION has workers start all the same" in line["reason"]


async def test_the_brokers_redis_is_looked_at_as_well(evicting: str) -> None:
    """It holds the queues, which could be deleted."""
    with pytest.raises(SettingsError, match="The broker's Redis deletes keys"):
        await require_fit(Settings(broker_url=evicting))


async def test_an_agent_says_it_and_goes_on(evicting: str) -> None:
    """Once a process, however often it opens a fleet; it has nothing to lose there."""
    with capture_logs() as logs:
        for _ in range(2):
            async with ToolFleet(settings=Settings(redis_url=evicting)):
                pass

    assert [line["event"] for line in logs].count("redis_not_as_it_should_be") == 1


async def test_what_a_user_may_not_ask_is_said(tmp_path: Path) -> None:
    """The worker starts: the one who may not ask may still work."""
    with with_a_restricted_user(tmp_path) as setup:
        setup.look.acl_setuser("fleet", enabled=True, reset_passwords=False, commands=["-info"])
        with capture_logs() as logs:
            await require_fit(Settings(**setup.settings))

    (line,) = logs
    assert "does not say how it is set up" in line["reason"]
    assert "`+info`" in line["reason"]


async def test_the_master_that_sentinels_name_is_looked_at(tmp_path: Path) -> None:
    """Whichever that is now."""
    with behind_sentinels(tmp_path) as setup:
        setup.look.config_set("maxmemory-policy", "allkeys-lru")
        setup.look.config_set("appendonly", "no")
        faults = await faults_of(Settings(**setup.settings))

    assert [fault.is_fatal for fault in faults] == [True, False]
    assert "append-only file" in faults[1].text


async def test_a_redis_that_is_away_is_no_reason_to_end(tmp_path: Path) -> None:
    """An agent's start, or beat's, says that nobody has looked."""
    with capture_logs() as logs:
        await say_faults(Settings(redis_url="redis://127.0.0.1:1/0"))

    assert [line["event"] for line in logs] == ["redis_not_looked_at"]


@pytest.fixture
def bad(redis_url: str) -> Iterator[str]:
    """Evicts, and keeps no file."""
    with SyncRedis.from_url(redis_url) as redis:
        redis.config_set("maxmemory-policy", "volatile-ttl")
        redis.config_set("appendonly", "no")
        yield redis_url
        redis.config_set("maxmemory-policy", "noeviction")
        redis.config_set("appendonly", "yes")


def test_a_worker_that_must_not_start_says_why(bad: str) -> None:
    """In one sentence, before it takes anything."""
    with pytest.raises(SystemExit, match="maxmemory-policy volatile-ttl"):
        require_redis(make_app(Settings(redis_url=bad)))


def test_a_fleet_on_one_machine_starts_nothing_there(bad: str, tmp_path: Path) -> None:
    """Its workers would end again and again; what else is wrong is said before."""
    said = list[str]()
    with (
        pytest.raises(SettingsError, match="maxmemory-policy volatile-ttl"),
        local_fleet(tmp_path, settings=Settings(redis_url=bad), announce=said.append),
    ):
        pass

    (text,) = said
    assert "keeps no append-only file" in text


def test_beat_says_it_and_goes_on(bad: str, tmp_path: Path) -> None:
    """It keeps nothing there that could be lost."""
    bed = TestBed(bad, (), tmp_path)
    with program(bed, beat_command(), "beat", ready="redis_not_as_it_should_be") as beat:
        wait_until_sync(lambda: beat.said().count("redis_not_as_it_should_be") == 2, "it has said both")
        assert beat.process.poll() is None
