"""The directory of modules: who is in it, whose word counts, and hosts that announce themselves."""

import asyncio
import json
from typing import Any

import pytest
from redis.asyncio import Redis

from support.hosts.announced_host import AnnouncedHost
from toolfleet_registry.contracts.tool_definition import ToolLoadError
from toolfleet_registry.directory.directory import Listing, ModuleDirectory
from toolfleet_registry.directory.entries import ANNOUNCED, AnnouncedModule, ModuleEntry, static_entries
from toolfleet_registry.directory.hosts import announce_key
from toolfleet_registry.directory.known_modules import KnownModules
from toolfleet_registry.directory.requests import ReloadAnswer, ReloadRequests
from toolfleet_registry.directory.watch import ModuleWatch
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.settings import Settings

KEYS = Keys()
KEY, OTHER_KEY = "a secret of more than thirty-two characters", "another one of more than thirty-two characters"
OWLS = ModuleEntry(module="owls", url="http://owls.test")


def directory(redis: Redis, **settings: Any) -> ModuleDirectory:
    return ModuleDirectory(redis, Settings(**settings))


def of_settings(url: str) -> ModuleEntry:
    (entry,) = static_entries(Settings(module_services={"owls": url})).values()
    return entry


async def test_what_was_added_is_read_by_everybody(redis: Redis) -> None:
    """With its lane and its limit; and the revision says that something has changed."""
    one, other = directory(redis), directory(redis)
    slow = OWLS.model_copy(update={"slow": True, "timeout_seconds": 7.5, "scales_from_zero": True})
    before = await one.revision()

    assert await one.replace("owls", "", slow)
    assert (await other.read()).entries == {"owls": slow}
    assert await other.revision() != before


async def test_of_two_changes_at_once_one_happens(redis: Redis) -> None:
    """The other is told that something else is there by now."""
    directories = [directory(redis) for _ in range(8)]
    entries = [OWLS.model_copy(update={"timeout_seconds": float(number + 1)}) for number in range(8)]
    happened = await asyncio.gather(
        *(one.replace("owls", "", entry) for one, entry in zip(directories, entries, strict=True))
    )

    assert sum(happened) == 1
    assert (await directory(redis).read()).entries == {"owls": entries[happened.index(True)]}


async def test_a_later_versions_fields_are_ignored_and_kept(redis: Redis) -> None:
    """Also when the entry is signed again, with another key."""
    signer = directory(redis, signing_key=KEY)
    text = signer._seal.sign(
        json.dumps({"module": "owls", "url": "http://owls.test", "heartbeat": [1, {"of": "a host"}]})
    )
    await redis.hset(KEYS.modules, "owls", text)
    newer = directory(redis, signing_key=OTHER_KEY, signing_keys_old=(KEY,))

    assert (await newer.read()).entries == {"owls": OWLS}
    await newer.sign_again()
    assert '"heartbeat": [1, {"of": "a host"}]' in str(await redis.hget(KEYS.modules, "owls"))
    assert (await directory(redis, signing_key=OTHER_KEY).read()).entries == {"owls": OWLS}


async def test_two_keys_sign_an_entry_in_turns_no_more_than_once(redis: Redis) -> None:
    """As workers of a fleet do that goes from one key to the next."""
    old, new = (
        directory(redis, signing_key=KEY, signing_keys_old=(OTHER_KEY,)),
        directory(redis, signing_key=OTHER_KEY, signing_keys_old=(KEY,)),
    )
    await old.replace("owls", "", OWLS)
    for _ in range(3):
        await new.sign_again()
        await old.sign_again()

    assert await redis.get(KEYS.modules_revision) == "3"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (OWLS.text(), "Its entry is not signed"),
        ("eyJ.. " + OWLS.text(), "Its entry was changed"),
    ],
)
async def test_what_the_fleet_has_not_signed_does_not_count(redis: Redis, text: str, reason: str) -> None:
    """And whoever looks is told why."""
    await redis.hset(KEYS.modules, "owls", text)
    listing = await directory(redis, signing_key=KEY).read()

    assert listing.entries == {}
    assert listing.ignored["owls"].startswith(reason)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"module": "larks", "url": "http://larks.test"}', '{"module": "owls", "url": "ftp://x"}']
)
async def test_what_is_no_entry_hides_no_other(redis: Redis, text: str) -> None:
    """It is ignored, with a reason."""
    await redis.hset(
        KEYS.modules, mapping={"owls": text, "git": ModuleEntry(module="git", url="http://git.test").text()}
    )
    listing = await directory(redis).read()

    assert (set(listing.entries), set(listing.ignored)) == ({"git"}, {"owls"})


async def test_settings_replace_what_was_added(redis: Redis) -> None:
    """A name in the settings is never somebody else's."""
    one, static = directory(redis), of_settings("http://mine.test")
    await one.replace("owls", "", OWLS)

    assert await one.feed([static]) == {}
    assert (await one.read()).entries == {"owls": static}


async def test_the_older_of_two_addresses_stays_while_its_process_lives(redis: Redis) -> None:
    """The other process is told which, and its own is in effect once the older one has left."""
    older, newer = of_settings("http://one.test"), of_settings("http://two.test")
    one, two = directory(redis), directory(redis)

    assert await one.feed([older]) == {}
    assert await two.feed([newer]) == {"owls": older}
    assert (await two.read()).entries == {"owls": older}
    assert await two.fed() == {"owls": 2}

    await one.leave([older])
    assert await two.feed([newer]) == {}
    assert (await one.read()).entries == {"owls": newer}


async def test_a_forged_entry_keeps_no_place(redis: Redis) -> None:
    """However live it is said to be, a process's own settings replace it."""
    forged, own = of_settings("http://forged.test"), of_settings("http://mine.test")
    await directory(redis).feed([forged])
    signed = directory(redis, signing_key=KEY)

    assert await signed.feed([own]) == {}
    assert (await signed.read()).entries == {"owls": own}


async def test_no_password_of_an_address_is_in_the_directory(redis: Redis) -> None:
    """Agents read it, and whoever reaches Redis."""
    await directory(redis).feed([of_settings("http://ada:secret@owls.test:81/x")])

    assert (await directory(redis).read()).entries["owls"].url == "http://owls.test:81/x"
    assert "secret" not in str(await redis.hgetall(KEYS.modules))


ERROR = ToolLoadError(file="/owls/a.py", error_type="SyntaxError")


async def test_an_answer_is_for_all_requests_since_the_last(redis: Redis) -> None:
    """Those who ask together have one reload; one who asks later has nothing of it."""
    requests = ReloadRequests(redis, KEYS)
    seen = await requests.latest()
    asked = [await requests.ask() for _ in range(3)]
    begun = ReloadAnswer(module="owls")
    done = ReloadAnswer(module="owls", is_done=True, tools=3, errors=[ERROR])

    await requests.answer(seen, asked[-1], "one", begun)
    assert [list(await requests.answers(each)) for each in asked] == [[begun]] * 3
    await requests.answer(seen, asked[-1], "one", done)
    await requests.answer(asked[0], asked[-1], "two", ReloadAnswer(module="crows"))

    assert [[each.module for each in await requests.answers(each)] for each in asked] == [
        ["owls"],
        ["crows", "owls"],
        ["crows", "owls"],
    ]
    assert (await requests.answers(asked[0]))[0] == done
    assert await requests.answers(await requests.ask()) == []


async def test_a_count_that_redis_has_lost_is_begun_anew(redis: Redis) -> None:
    """A host that has seen more answers the one that it finds; and answers do not stay."""
    requests = ReloadRequests(redis, KEYS)
    number = await requests.ask()

    await requests.answer(900, number, "one", ReloadAnswer(module="owls"))

    assert [each.module for each in await requests.answers(number)] == ["owls"]
    assert 0 < await redis.ttl(KEYS.registry.reload_answers(number)) <= 600


async def test_what_is_no_answer_is_none(redis: Redis) -> None:
    """Whoever has written it; and of a thousand errors the first hundred are told."""
    requests = ReloadRequests(redis, KEYS)
    number = await requests.ask()
    await redis.hset(KEYS.registry.reload_answers(number), "x", "{")
    await requests.answer(0, number, "one", ReloadAnswer(module="owls", errors=[ERROR] * 1000))

    (answer,) = await requests.answers(number)
    assert len(answer.errors) == 100


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
    assert "sent again" in listing.hosts.refused[0].reason
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
        (
            announce_key(KEY, "crows"),
            {"signing_key": KEY},
            "its heartbeat was changed, or signed with another key",
        ),
        (
            announce_key(OTHER_KEY, "owls"),
            {"signing_key": KEY},
            "its heartbeat was changed, or signed with another key",
        ),
        (announce_key(KEY, "owls"), {}, "its heartbeat is signed and cannot be verified here"),
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
    await AnnouncedHost(redis, "old", key=announce_key(OTHER_KEY, "owls")).announce()
    await AnnouncedHost(redis, "new", key=announce_key(KEY, "owls")).announce()

    assert len(urls(await directory(redis, signing_key=KEY, signing_keys_old=(OTHER_KEY,)).read())) == 2


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
