"""A host that listens for requests to read its files anew: also after Redis was away, and whatever its reload does."""

from pathlib import Path

import pytest
from redis.asyncio import Redis

from support.servers.redis_faults import faulty_redis
from support.waiting import wait_until, wait_until_answered
from toolfleet_cli.hosting import hosts as folder_host
from toolfleet_cli.hosting.hosts import _AWAY_SECONDS, _LISTEN_SECONDS, ReloadListener
from toolfleet_modules.hosts.folder.folder_host import FolderHost
from toolfleet_modules.hosts.folder.generation import FolderOptions
from toolfleet_registry.directory.requests import ReloadAnswer, ReloadRequests, reload_tools
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.settings import Settings


class Reloaded(FolderHost):
    """A host without a folder that counts its reloads."""

    def __init__(self, *, is_broken: bool = False) -> None:
        super().__init__(FolderOptions("owls", None))
        self.is_broken = is_broken
        self.reloads = list[bool]()

    async def reload(self, *, is_forced: bool = False) -> bool:
        self.reloads.append(is_forced)
        if self.is_broken:
            raise RuntimeError("planted")
        return False


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is worth waiting for here, in most tests."""
    monkeypatch.setattr(folder_host, "_LISTEN_SECONDS", 0.02)
    monkeypatch.setattr(folder_host, "_AWAY_SECONDS", 0.05)


async def _answered(requests: ReloadRequests, number: int) -> ReloadAnswer:
    answers: list[ReloadAnswer] = []

    async def look() -> bool:
        answers[:] = await requests.answers(number)
        return any(each.is_done for each in answers)

    await wait_until_answered(look, "the host has answered")
    return answers[0]


@pytest.mark.parametrize("is_broken", [False, True], ids=["it works", "it raises"])
async def test_each_request_is_one_forced_reload(redis: Redis, redis_url: str, is_broken: bool) -> None:
    """One that was made before the host began is none of its; whoever asks gets an answer in any case."""
    host, requests = Reloaded(is_broken=is_broken), ReloadRequests(redis, Keys())
    before = await requests.ask()
    async with ReloadListener(Settings(redis_url=redis_url), host).running():
        await _until_it_listens(host, requests)
        reloads = len(host.reloads)
        answer = await _answered(requests, await requests.ask())

    assert (answer.module, answer.is_done, answer.errors) == ("owls", True, [])
    assert host.reloads[reloads:] == [True]
    assert await requests.answers(before) == []


async def test_a_redis_that_is_away_ends_nothing(redis: Redis, redis_url: str) -> None:
    """The host listens again when it is back; without one, it serves all the same."""
    async with ReloadListener(Settings(), Reloaded()).running():
        pass
    host, requests = Reloaded(), ReloadRequests(redis, Keys())
    async with ReloadListener(Settings(redis_url=redis_url), host).running():
        await _until_it_listens(host, requests)
        for client in await redis.client_list():
            if client["id"] != str(await redis.client_id()):
                await redis.client_kill_filter(_id=client["id"])

        assert (await _answered(requests, await requests.ask())).is_done


async def test_who_asks_when_redis_is_back_hears_of_each_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A host is heard in the time that hosts have to begin, also if it was Redis whom it has just asked in vain."""
    monkeypatch.setattr(folder_host, "_LISTEN_SECONDS", _LISTEN_SECONDS)
    monkeypatch.setattr(folder_host, "_AWAY_SECONDS", _AWAY_SECONDS)
    caplog.set_level("DEBUG", logger="toolfleet.host")
    with faulty_redis(tmp_path / "redis") as server:
        host, settings = Reloaded(), Settings(redis_url=server.url)
        async with ReloadListener(settings, host).running(), Redis.from_url(server.url) as redis:
            await _until_it_listens(host, ReloadRequests(redis, Keys()))
            reloads = len(host.reloads)
            with server.restarted():
                await wait_until(lambda: "A reload cannot be requested" in caplog.text, "it has asked in vain")
            answers = await reload_tools(settings, seconds=10)

    assert [(each.module, each.is_done) for each in answers] == [("owls", True)]
    assert len(host.reloads) == reloads + 1


async def _until_it_listens(host: Reloaded, requests: ReloadRequests) -> None:
    """It hears of those that are asked since."""
    number = 0

    async def hears() -> object:
        nonlocal number
        number = await requests.ask()
        return host.reloads

    await wait_until_answered(hears, "it listens")
    await _answered(requests, number)
