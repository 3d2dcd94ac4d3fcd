"""`toolfleet modules list` of modules whose hosts announce themselves, on a real Redis, without workers."""

import asyncio
import json

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from support.command import Run
from support.hosts.announced_host import AnnouncedHost
from toolfleet_registry.redis.keys import Keys

KEYS = Keys()


@pytest.fixture
def hosts(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Three hosts of one module, of which the last one serves other tools, and what one worker finds of them."""
    monkeypatch.setenv("TOOLFLEET_REDIS_URL", redis_url)
    asyncio.run(_announce(redis_url))
    with Redis.from_url(redis_url) as redis:
        now = redis.time()[0]
        note = json.dumps({"owls": {"host-a": [3, 0, 0], "host-b": [1, 7, 12.5]}})
        redis.hset(KEYS.hosts.counts, "somewhere:1", f"{now} {note}")
        redis.expire(KEYS.hosts.counts, 60)
    return redis_url


async def _announce(redis_url: str, *, leaves: bool = False) -> None:
    async with AsyncRedis.from_url(redis_url) as redis:
        for name, digest in (("a", "one"), ("b", "one"), ("c", "two")):
            host = AnnouncedHost(redis, name, digest=digest)
            await host.announce()
            if leaves:
                await host.leave()


def test_each_address_has_its_numbers(run: Run, hosts: str) -> None:
    """Those of all workers together; who is refused is listed, with the reason."""
    (owls,) = json.loads(run("modules", "list", "--json").out)

    assert (owls["origin"], owls["url"]) == ("announced", "http://a.test")
    assert owls["replicas"] == [
        {"id": "host-a", "url": "http://a.test", "in_flight": 3, "failures": 0, "ejected_seconds": 0},
        {"id": "host-b", "url": "http://b.test", "in_flight": 1, "failures": 7, "ejected_seconds": 12.5},
    ]
    reason = "serves other tools than http://a.test, which is there longer"
    assert owls["refused_hosts"] == [{"id": "host-c", "url": "http://c.test", "reason": reason}]
    shown = " ".join(run("modules", "list").out.split())
    assert "owls http://a.test serves 3 0" in shown
    assert "owls http://b.test left alone for 12 s 1 7" in shown
    assert "owls http://c.test refused - - serves other tools" in shown


def test_a_module_whose_hosts_are_all_gone_is_away(run: Run, hosts: str) -> None:
    asyncio.run(_announce(hosts, leaves=True))
    (owls,) = json.loads(run("modules", "list", "--json").out)

    assert (owls["state"], owls["replicas"], owls["url"]) == ("away", [], "http://c.test")
