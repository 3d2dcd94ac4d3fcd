"""Beat's thread that feeds the directory of modules, on a real Redis."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.servers.redis_faults import FaultyRedis, faulty_redis
from support.waiting import wait_until_sync
from toolfleet_registry.directory import watch
from toolfleet_registry.settings import Settings
from toolfleet_tasks.control.beat import ModuleFeed


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyRedis]:
    """With feedings that follow sooner."""
    monkeypatch.setattr(watch, "FEED_SECONDS", 0.2)
    with faulty_redis(tmp_path / "redis") as server:
        yield server


@pytest.fixture
def settings(server: FaultyRedis) -> Settings:
    return Settings(redis_url=server.url, module_services={"owls": "http://owls.test"})


def is_fed(server: FaultyRedis, settings: Settings) -> bool:
    return "owls" in server.look.hkeys(settings.keys.modules) and bool(feeds(server, settings))


def feeds(server: FaultyRedis, settings: Settings) -> list[str]:
    """What is fed of the module now."""
    return [member for member in map(str, server.look.zrange(settings.keys.module_feeds, 0, -1)) if "owls " in member]


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "toolfleet-modules"]


def test_a_redis_that_was_away_is_fed_again(server: FaultyRedis, settings: Settings) -> None:
    """Also if it has forgotten everything meanwhile."""
    feed = ModuleFeed(settings)
    feed.start()
    wait_until_sync(lambda: is_fed(server, settings), "the directory is fed")
    server.look.delete(settings.keys.modules, settings.keys.module_feeds, settings.keys.modules_revision)
    with server.restarted():
        assert [thread.is_alive() for thread in threads()] == [True]
    wait_until_sync(lambda: is_fed(server, settings), "it is fed again")
    feed.end()


def test_its_end_stops_the_thread_and_its_feeding(server: FaultyRedis, settings: Settings) -> None:
    """Other settings may count from then on; and the module stays known, for others may serve it."""
    feed = ModuleFeed(settings)
    feed.start()
    wait_until_sync(lambda: is_fed(server, settings), "the directory is fed")
    feed.end()

    assert threads() == []
    assert feeds(server, settings) == []
    assert server.look.hkeys(settings.keys.modules) == ["owls"]


def test_it_ends_at_once_and_while_redis_is_away(server: FaultyRedis, settings: Settings) -> None:
    """One that has hardly begun feeds no more; and one that waits for a Redis holds up nobody."""
    short = ModuleFeed(settings)
    short.start()
    short.end()
    assert threads() == []

    feed = ModuleFeed(settings)
    feed.start()
    with server.frozen():
        feed.end()
        assert threads() == []
    feed.end()
