"""Hosts that announce themselves: who is heard, who is forgotten, and whose word is none."""

import json
from typing import Any

import pytest
from redis.asyncio import Redis

from support.hosts.announced_host import AnnouncedHost
from toolfleet_registry.directory.announcements import announce_key
from toolfleet_registry.directory.directory import Listing, ModuleDirectory
from toolfleet_registry.directory.entries import ANNOUNCED, AnnouncedModule, ModuleEntry, static_entries
from toolfleet_registry.directory.known_modules import KnownModules
from toolfleet_registry.directory.watch import ModuleWatch
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.settings import Settings

KEYS = Keys()
KEY, OLD_KEY = "a secret of more than thirty-two characters", "another one of more than thirty-two characters"


def directory(redis: Redis, **settings: Any) -> ModuleDirectory:
    return ModuleDirectory(redis, Settings(**settings))


def urls(listing: Listing, module: str = "owls") -> list[str]:
    entry = listing.entries.get(module)
    return [one.url for one in entry.replicas] if isinstance(entry, AnnouncedModule) else []


async def test_a_host_that_announces_is_a_module(redis: Redis) -> None:
    """For everybody who reads; no entry of it is stored."""
    await AnnouncedHost(redis, "a", slow=True, timeout_seconds=3).announce()
    listing = await directory(redis).read()

    entry = listing.entries["owls"]
    assert (entry.origin, entry.url, entry.slow, entry.timeout_seconds) == (ANNOUNCED, "http://a.test", True, 3)
    assert urls(listing) == ["http://a.test"]
    assert not await redis.exists(KEYS.modules)


async def test_only_what_changes_something_is_a_change(redis: Redis) -> None:
    """A mere heartbeat is none; another digest, another address and an end are."""
    host, one = AnnouncedHost(redis, "a"), directory(redis)
    revisions = []
    for fields in ({}, {}, {"digest": "two"}, {"digest": "two"}, {"digest": "two", "url": "http://z.test"}):
        await host.announce(**fields)
        revisions.append(int((await one.revision())[0]))
    await host.leave()

    assert revisions == [1, 1, 2, 2, 3]
    assert int((await one.revision())[0]) == 4


async def test_a_host_that_is_silent_for_too_long_is_gone(redis: Redis) -> None:
    """Whoever asks first drops it, and tells everybody; the module stays known while it is away."""
    gone, stays = AnnouncedHost(redis, "a"), AnnouncedHost(redis, "b")
    await gone.announce()
    await stays.announce()
    one = directory(redis)
    assert urls(await one.read()) == ["http://a.test", "http://b.test"]

    await _silence(redis, gone, seconds=9)
    before = await one.revision()
    assert urls(await one.read()) == ["http://b.test"]
    assert await one.revision() != before
    await _silence(redis, stays, seconds=9)
    listing = await one.read()
    assert (urls(listing), listing.entries["owls"].url) == ([], "http://b.test")


async def test_a_host_that_was_silent_begins_anew(redis: Redis) -> None:
    """It was the first one once; the others are there longer by now."""
    frozen, other = AnnouncedHost(redis, "a"), AnnouncedHost(redis, "b", digest="two")
    await frozen.announce()
    await other.announce()
    one = directory(redis)
    assert urls(await one.read()) == ["http://a.test"]

    await _silence(redis, frozen, seconds=9)
    await frozen.announce()
    listing = await one.read()
    assert urls(listing) == ["http://b.test"]
    assert [each.id for each in listing.hosts.refused] == ["host-a"]


async def test_a_host_that_leaves_is_gone_at_once(redis: Redis) -> None:
    """It learns whether others go on."""
    one, other = AnnouncedHost(redis, "a"), AnnouncedHost(redis, "b")
    await one.announce()
    await other.announce()

    assert await one.leave() == 1
    assert urls(await directory(redis).read()) == ["http://b.test"]
    assert await other.leave() == 0


async def test_what_nobody_needs_of_gone_hosts_is_removed(redis: Redis) -> None:
    """Of a module that is away the latest is kept, and of one that is there nothing but its hosts."""
    hosts = [AnnouncedHost(redis, name) for name in "abc"]
    for host in hosts:
        await host.announce()
        await host.leave()
    await redis.hset(KEYS.hosts.announced, "crows host-xxxx", "1 mark garbage")
    one = directory(redis)

    await one.forget_hosts((await one.read()).hosts)
    assert list(await redis.hkeys(KEYS.hosts.announced)) == ["owls host-c"]
    await hosts[0].announce()
    await one.forget_hosts((await one.read()).hosts)
    assert list(await redis.hkeys(KEYS.hosts.announced)) == ["owls host-a"]


async def test_replays_and_forgeries_keep_nobody_alive(redis: Redis) -> None:
    """Whoever writes into Redis without a key can hold up no host: not by its last words, nor by words of its own."""
    key = announce_key(KEY, "owls")
    host, member = AnnouncedHost(redis, "a", key=key), "owls host-a"
    one = directory(redis, signing_key=KEY)
    await host.announce()
    first = await redis.hget(KEYS.hosts.announced, member)
    last = await host.announce()
    assert urls(await one.read()) == ["http://a.test"]

    await redis.hset(KEYS.hosts.announced, member, first or "")
    listing = await one.read()
    assert "somebody repeats" in listing.hosts.refused[0].reason
    assert urls(listing) == ["http://a.test"], "what was heard since then holds"
    # As old as one that was kept for long: signed rightly, and of another time.
    await host.announce(at=last.at - 20, counter=9)
    listing = await one.read()
    assert urls(listing) == []
    assert listing.hosts.refused[0].reason.startswith("its heartbeat is an old one")


@pytest.mark.parametrize(
    ("key", "settings", "reason"),
    [
        ("", {"signing_key": KEY}, "its heartbeat is not signed"),
        (announce_key(KEY, "crows"), {"signing_key": KEY}, "its heartbeat was changed, or signed with another key"),
        (announce_key(OLD_KEY, "owls"), {"signing_key": KEY}, "its heartbeat was changed, or signed with another key"),
        (announce_key(KEY, "owls"), {}, "its heartbeat is signed, and nobody can verify it here"),
    ],
    ids=["unsigned", "another module's key", "another fleet's key", "a key in a fleet without"],
)
async def test_who_signs_wrongly_is_refused_and_hides_nobody(
    redis: Redis, key: str, settings: dict[str, Any], reason: str
) -> None:
    """However long it has been there."""
    await AnnouncedHost(redis, "wrong", key=key).announce()
    right = announce_key(KEY, "owls") if settings else ""
    await AnnouncedHost(redis, "right", key=right).announce()
    listing = await directory(redis, **settings).read()

    assert urls(listing) == ["http://right.test"]
    assert [each.reason.startswith(reason) for each in listing.hosts.refused] == [True]


async def test_hosts_of_two_keys_serve_one_module_while_a_fleet_changes_its_key(redis: Redis) -> None:
    """Some have the new one already, others still the one before."""
    await AnnouncedHost(redis, "old", key=announce_key(OLD_KEY, "owls")).announce()
    await AnnouncedHost(redis, "new", key=announce_key(KEY, "owls")).announce()

    assert len(urls(await directory(redis, signing_key=KEY, signing_keys_old=(OLD_KEY,)).read())) == 2


@pytest.mark.parametrize(
    "value",
    ["", "1", "1 mark {", "1 mark []", "x mark {}", "9" * 400 + " mark {}", "1 mark " + "{" * 9000, "1 mark \0"],
)
async def test_what_is_no_heartbeat_hides_no_other(redis: Redis, value: str) -> None:
    """It is listed, with a reason."""
    await AnnouncedHost(redis, "a").announce()
    now = await redis.zscore(KEYS.hosts.heartbeats, "owls host-a")
    await redis.hset(KEYS.hosts.announced, "owls host-b", value)
    await redis.zadd(KEYS.hosts.heartbeats, {"owls host-b": now or 0})
    listing = await directory(redis).read()

    assert urls(listing) == ["http://a.test"]
    assert [each.id for each in listing.hosts.refused] == ["host-b"]


async def test_a_heartbeat_under_anothers_name_counts_for_nobody(redis: Redis) -> None:
    """Neither for the host that it names, nor for the one whose place it has."""
    await AnnouncedHost(redis, "a").announce()
    value = await redis.hget(KEYS.hosts.announced, "owls host-a")
    await redis.hset(KEYS.hosts.announced, "crows host-a", value or "")
    now = await redis.zscore(KEYS.hosts.heartbeats, "owls host-a")
    await redis.zadd(KEYS.hosts.heartbeats, {"crows host-a": now or 0})
    listing = await directory(redis).read()

    assert list(listing.entries) == ["owls"]
    assert listing.hosts.refused[0].reason == "its heartbeat is another one's"


async def test_settings_and_what_was_added_come_first(redis: Redis) -> None:
    """The hosts are listed with the reason, and serve once that is gone."""
    one, host = directory(redis), AnnouncedHost(redis, "a")
    await host.announce()
    (static,) = static_entries(Settings(module_services={"owls": "http://mine.test"})).values()
    await one.feed([static])
    listing = await one.read()
    assert listing.entries == {"owls": static}
    assert "settings" in listing.hosts.refused[0].reason

    await one.leave([static])
    assert urls(await one.read()) == ["http://a.test"]
    added = ModuleEntry(module="owls", url="http://added.test")
    await one.replace("owls", (await one.entry("owls"))[0], added)
    listing = await one.read()
    assert (listing.entries, urls(listing)) == ({"owls": added}, [])
    assert listing.hosts.refused[0].reason == "this module was added at http://added.test"
    await one.replace("owls", (await one.entry("owls"))[0], added.model_copy(update={"removed_at": 1.0}))
    assert urls(await one.read()) == ["http://a.test"]


async def test_no_stored_entry_says_that_it_was_announced(redis: Redis) -> None:
    """It would have replicas that nobody has heard of."""
    entry = {
        "module": "owls",
        "url": "http://x.test",
        "origin": ANNOUNCED,
        "replicas": [{"id": "x", "url": "http://x"}],
    }
    await redis.hset(KEYS.modules, "owls", json.dumps(entry))
    listing = await directory(redis).read()

    assert (listing.entries, set(listing.ignored)) == ({}, {"owls"})


async def test_a_worker_follows_hosts(redis: Redis, redis_url: str) -> None:
    """They come, change, die and come back, and what it knows is as Redis has it; its networks hold for each address."""
    settings = Settings(redis_url=redis_url, module_networks=("10.0.0.0/8",))
    known = KnownModules(settings)
    watch = ModuleWatch(settings, known, on_poll=_look)
    hosts = [AnnouncedHost(redis, "a", url="http://127.0.0.1:1"), AnnouncedHost(redis, "b", url="http://10.0.0.1")]
    for host in hosts:
        await host.announce()
    await watch.prepare()

    assert [one.url for one in known.replicas["owls"]] == ["http://10.0.0.1"]
    assert known.settings.module_services == {"owls": "http://10.0.0.1"}
    assert known.guards["owls"]("127.0.0.1") is False
    await _silence(redis, hosts[1], seconds=9)
    await redis.incr(KEYS.modules_revision)
    await watch.prepare()
    assert "owls" not in known.replicas
    await watch.aclose()


async def _look() -> None:
    """A worker does more than to feed."""


async def _silence(redis: Redis, host: AnnouncedHost, *, seconds: float) -> None:
    """Have it be as if Redis had last heard the host so long ago."""
    await redis.zincrby(KEYS.hosts.heartbeats, -seconds * 1000, f"owls {host.id}")
