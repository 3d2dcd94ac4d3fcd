"""The directory of modules: who is in it, whose word counts, and that no two changes undo each other."""

import asyncio
import json
from typing import Any

import pytest
from redis.asyncio import Redis

from toolfleet_registry.directory.directory import ModuleDirectory
from toolfleet_registry.directory.entries import ModuleEntry, static_entries
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
