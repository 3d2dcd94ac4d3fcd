"""Host processes that announce themselves: who comes, who goes, who is frozen, and what Redis has lost."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from redis.asyncio import Redis

from support.command import run
from support.hosts.host_process import OWL_TOOL, folder_host_process
from support.hosts.tool_folder import becomes
from toolfleet_registry.directory.directory import Listing, ModuleDirectory
from toolfleet_registry.directory.entries import AnnouncedModule
from toolfleet_registry.directory.hosts import ANNOUNCE_VARIABLE, announce_key
from toolfleet_registry.settings import Settings

KEY = "a secret of more than thirty-two characters"
NO_REDIS = "redis://127.0.0.1:1"


def signed(redis_url: str) -> dict[str, str]:
    return {"TOOLFLEET_REDIS_URL": redis_url, ANNOUNCE_VARIABLE: announce_key(KEY, "owls")}


def ids(listing: Listing) -> list[str]:
    entry = listing.entries.get("owls")
    return [one.id for one in entry.replicas] if isinstance(entry, AnnouncedModule) else []


async def until(directory: ModuleDirectory, is_so: Callable[[Listing], bool], what: str) -> Listing:
    """What the directory says once it is so."""
    found = list[Listing]()

    async def look() -> bool:
        found[:] = [await directory.read()]
        return is_so(found[0])

    await becomes(look, what)
    return found[0]


async def test_hosts_of_one_folder_are_replicas(redis: Redis, redis_url: str, tmp_path: Path) -> None:
    """One with other tools is refused, until what is saved there makes them the same; whoever ends leaves at once."""
    directory = ModuleDirectory(redis, Settings(signing_key=KEY))
    env = signed(redis_url)
    with folder_host_process(tmp_path / "one", env=env) as one:
        (first,) = ids(await until(directory, lambda found: len(ids(found)) == 1, "the first one is there"))
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "hoot.py").write_text(OWL_TOOL.replace("Hoot.", "Hoot twice."))
        with (
            folder_host_process(tmp_path / "one", env=env),
            folder_host_process(tmp_path / "other", env=env),
        ):
            found = await until(directory, lambda found: len(ids(found)) == 2, "the second one is there")
            assert ids(found)[0] == first
            found = await until(directory, lambda found: bool(found.hosts.refused), "the third one is refused")
            assert "serves other tools than" in found.hosts.refused[0].reason

            (tmp_path / "other" / "hoot.py").write_text(OWL_TOOL)
            await until(directory, lambda found: len(ids(found)) == 3, "it serves the same by now")
            one.process.send_signal(signal.SIGTERM)
            found = await until(directory, lambda found: first not in ids(found), "the first one has left")
            assert len(ids(found)) == 2
            assert one.process.wait() in {0, -signal.SIGTERM}


@pytest.mark.slow
async def test_a_frozen_host_leaves_within_the_ttl_and_comes_back(redis: Redis, redis_url: str, tmp_path: Path) -> None:
    """It is the same one then; and what Redis has lost is there anew."""
    directory = ModuleDirectory(redis, Settings(signing_key=KEY))
    with folder_host_process(tmp_path / "owls", env=signed(redis_url)) as host:
        (before,) = ids(await until(directory, lambda found: len(ids(found)) == 1, "it is there"))
        os.kill(host.process.pid, signal.SIGSTOP)
        await until(directory, lambda found: not ids(found) and "owls" in found.entries, "it is away")
        os.kill(host.process.pid, signal.SIGCONT)
        await until(directory, lambda found: ids(found) == [before], "it is back")
        await redis.flushall()
        await until(directory, lambda found: ids(found) == [before], "Redis knows it again")


async def test_a_host_serves_without_the_fleets_redis(tmp_path: Path) -> None:
    """It says once that nobody knows it, and goes on trying."""
    with folder_host_process(tmp_path / "owls", env={"TOOLFLEET_REDIS_URL": NO_REDIS}) as host:

        async def says_so() -> bool:
            return "owls is not announced: Redis at 127.0.0.1:1 does not answer" in host.said()

        await becomes(says_so, "it says that nobody knows it")
        assert host.process.poll() is None


@pytest.mark.parametrize(
    ("options", "env", "words"),
    [
        (("--address", "::"), {}, "say with --announce-url where others reach it"),
        (("--announce-url", "owls.test"), {}, "--announce-url must be an http:// or https:// URL"),
        ((), {"TOOLFLEET_SIGNING_KEY": KEY}, "`toolfleet modules key owls --announce` prints"),
        ((), {ANNOUNCE_VARIABLE: "short"}, "TOOLFLEET_ANNOUNCE_KEY is no key"),
    ],
    ids=["no address", "no URL", "the fleet's key", "no key"],
)
def test_what_cannot_be_announced_is_one_clear_error(
    tmp_path: Path, options: tuple[str, ...], env: dict[str, str], words: str
) -> None:
    (tmp_path / "owls").mkdir()
    ended = run("host", "folder", "owls", *options, cwd=tmp_path, env={"TOOLFLEET_REDIS_URL": NO_REDIS} | env)

    assert (ended.code, words in " ".join(ended.err.split())) == (2, True), ended
