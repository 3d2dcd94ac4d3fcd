"""What a worker knows of the tools, by what it reads in Redis and in the registry, and when."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog
from redis.asyncio import Redis

from support.clocks import HandClock
from support.modules.http_executor import executor_for
from support.modules.raw_module import Peer, http, raw_module
from support.programs.closed_port import closed_port
from support.published_call import published
from support.servers.redis_faults import faulty_redis
from support.servers.silent_server import silent_server
from support.waiting import PATIENCE_SECONDS, wait_until
from toolfleet_registry.catalog import manifest_reader
from toolfleet_registry.contracts import Caller, ModuleManifest, PublishedCall, ToolDefinition, ToolResult
from toolfleet_registry.contracts.attempts import Attempt, Outcome
from toolfleet_registry.live_copy import LiveCopy
from toolfleet_registry.manifests.manifest_cache import ManifestCache, ToolOverride
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.settings import Settings
from toolfleet_workers import tool_cache
from toolfleet_workers.middleware import PermissionCheck
from toolfleet_workers.runner import CallRunner
from toolfleet_workers.tool_cache import ToolCache

SUCCESS = Attempt(Outcome.SUCCESS, ToolResult.ok("owls.count", 7))
EVERYWHERE = frozenset({"owls", "cats"})


async def run(call: PublishedCall) -> Attempt:
    return SUCCESS


def asks() -> PublishedCall:
    return published("owls.count", caller=Caller(permission="guest", allowed_modules="*"))


@pytest.fixture
def clock() -> HandClock:
    return HandClock(1000)


@pytest.fixture
async def known(redis_url: str, clock: HandClock) -> AsyncIterator[ToolCache]:
    services = {"owls": "http://owls.test", "cats": "http://cats.test"}
    known = ToolCache(Settings(redis_url=redis_url, module_services=services), clock=clock)
    yield known
    await known.aclose()


def required(known: ToolCache, name: str) -> str:
    tool = known.find(name)
    assert tool is not None
    return tool.definition.required_permission


async def anew(known: ToolCache) -> bool:
    """Whether there was a look, as before a decision."""
    is_old = known.is_old
    if is_old:
        await known.refresh(reads_all=False)
    return is_old


async def offer(redis: Redis, module: str, **tools: str) -> None:
    """Put a manifest into Redis: method -> what it asks for."""
    definitions = [
        ToolDefinition(name=f"{module}.{name}", required_permission=required) for name, required in tools.items()
    ]
    await ManifestCache(redis, ttl_seconds=60).save(ModuleManifest(module_name=module, tools=definitions))


async def test_a_call_by_a_former_name_finds_its_tool(known: ToolCache, redis: Redis) -> None:
    """As an agent that has not seen the new name publishes it. A name that a tool has now counts more."""
    tools = [
        ToolDefinition(name="owls.tally", former_names=["owls.count"], required_permission="user"),
        ToolDefinition(name="owls.list", former_names=["owls.tally"]),
    ]
    await ManifestCache(redis, ttl_seconds=60).save(ModuleManifest(module_name="owls", tools=tools))
    await known.refresh()

    assert [required(known, name) for name in ("owls.count", "owls.tally")] == ["user", "user"]
    assert not known.lacks("owls.count")


async def test_the_first_question_looks_at_redis(known: ToolCache, redis: Redis) -> None:
    """All modules of the settings are read at once."""
    await offer(redis, "owls", count="admin")
    await offer(redis, "cats", purr="guest")

    assert known.find("owls.count") is None
    await known.refresh()
    assert (required(known, "owls.count"), required(known, "cats.purr")) == ("admin", "guest")


async def test_a_module_says_that_it_is_retried(known: ToolCache, redis: Redis) -> None:
    """As it says in its manifest; nobody else's tools are meant, and of what is not known nothing is."""
    manifest = ModuleManifest(module_name="owls", tools=[], retries_undeclared=True)
    await ManifestCache(redis, ttl_seconds=60).save(manifest)
    await known.refresh()

    assert [known.retries_undeclared(module) for module in ("owls", "cats", "nowhere")] == [True, False, False]


async def test_a_change_is_seen_when_it_is_looked_for(known: ToolCache, redis: Redis, clock: HandClock) -> None:
    """But Redis is asked once a second at most, however many calls are denied."""
    await offer(redis, "owls", count="admin", fly="guest")
    await known.refresh()
    await offer(redis, "owls", count="guest")
    await known.refresh()
    assert required(known, "owls.count") == "admin"

    clock.now += 1
    await known.refresh()
    assert required(known, "owls.count") == "guest"
    assert known.find("owls.fly") is None  # no longer offered


async def test_what_is_old_is_read_anew_aside(known: ToolCache, redis: Redis, clock: HandClock) -> None:
    """After a minute a question begins a look, and is answered at once with what was known."""
    await offer(redis, "owls", count="admin")
    await known.refresh()
    await offer(redis, "owls", count="guest")
    clock.now += 61

    assert required(known, "owls.count") == "admin"
    await known.refresh()
    assert required(known, "owls.count") == "guest"


async def test_a_change_is_heard_of_within_seconds(known: ToolCache, redis: Redis, clock: HandClock) -> None:
    """A question begins a look aside, which asks for one number; and reads all only if that has changed."""
    await offer(redis, "owls", count="admin")
    await known.refresh()
    clock.now += 3
    before = await looks(redis)
    known.find("owls.count")
    await wait_until(lambda: not known._copy.is_reading, "the look is over")
    assert await looks(redis) == before

    await offer(redis, "owls", count="guest")
    clock.now += 3
    assert required(known, "owls.count") == "admin"
    await wait_until(lambda: required(known, "owls.count") == "guest", "the change is known")
    assert await looks(redis) == before + 1


async def test_an_idle_worker_looks_before_it_decides(known: ToolCache, redis: Redis, clock: HandClock) -> None:
    """What changed while nobody asked is known before the next call; it costs one number if nothing has."""
    await offer(redis, "owls", count="guest")
    assert (await anew(known), required(known, "owls.count")) == (True, "guest")
    await offer(redis, "owls", count="admin")

    clock.now += 1
    assert not await anew(known)
    clock.now += 5
    assert (await anew(known), required(known, "owls.count")) == (True, "admin")

    before = await looks(redis)
    clock.now += 5
    assert (await anew(known), await looks(redis)) == (True, before)


async def test_what_an_operator_closes_is_known(known: ToolCache, redis: Redis, clock: HandClock) -> None:
    """From the verdicts beside the manifest."""
    manifest = ModuleManifest(module_name="owls", tools=[ToolDefinition(name="owls.count")])
    cache = ManifestCache(redis, ttl_seconds=60)
    await cache.save(manifest)
    assert await PermissionCheck(known, EVERYWHERE)(asks(), run) is SUCCESS
    loaded = (await cache.load(["owls"]))["owls"]
    await cache.replace(loaded, {"owls.count": ToolOverride(is_disabled=True)})
    clock.now += 61

    attempt = await PermissionCheck(known, EVERYWHERE)(asks(), run)
    assert attempt.result.error == "Tool 'owls.count' is disabled by an operator."


async def test_what_was_known_stays_known(known: ToolCache, redis: Redis, clock: HandClock) -> None:
    """A manifest that has expired, or a Redis that was emptied, opens nothing."""
    await offer(redis, "owls", count="admin")
    await known.refresh()
    await redis.delete(Keys().module_manifest("owls"))
    clock.now += 61
    await known.refresh()

    assert required(known, "owls.count") == "admin"


async def test_many_questions_are_one_look(known: ToolCache, redis: Redis) -> None:
    """However many calls begin at once."""
    before = await looks(redis)
    for _ in range(100):
        known.find("owls.count")
    await asyncio.gather(*(known.refresh() for _ in range(100)))

    assert await looks(redis) == before + 1


async def looks(redis: Redis) -> int:
    """How often manifests were ever read from this Redis."""
    return int((await redis.info("commandstats")).get("cmdstat_mget", {"calls": 0})["calls"])


async def test_a_redis_that_is_away_opens_nothing() -> None:
    """The failure is logged, once."""
    url = f"redis://127.0.0.1:{closed_port()}/0"
    known = ToolCache(Settings(redis_url=url, module_services={"owls": "http://owls.test"}))
    with structlog.testing.capture_logs() as lines:
        for _ in range(3):
            assert (await PermissionCheck(known, EVERYWHERE)(asks(), run)).result.error_code == "busy"
    assert [line["event"] for line in lines].count("manifests_not_read") == 1
    await known.aclose()


async def test_what_has_changed_is_known_when_redis_is_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that would be refused in the moment after a look in vain waits for the next one, with all that come then."""
    monkeypatch.setattr(tool_cache, "_CHECK_PAUSE_SECONDS", 0.0)
    with faulty_redis(tmp_path / "redis") as server:
        known = ToolCache(Settings(redis_url=server.url, module_services={"owls": "http://owls.test"}))
        async with Redis.from_url(server.url) as client:
            await offer(client, "owls", count="admin")
        await known.prepare()
        check = PermissionCheck(known, EVERYWHERE)
        with server.restarted():
            assert (await check(asks(), run)).result.error_code == "permission_denied"
        async with Redis.from_url(server.url) as client:
            await offer(client, "owls", count="guest")
            before = await looks(client)
            assert await asyncio.gather(*(check(asks(), run) for _ in range(10))) == [SUCCESS] * 10
            assert await looks(client) == before + 1
        await known.aclose()


async def test_a_module_is_asked_again_when_redis_is_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though its answer came when Redis was away, so that nobody knew that it had been asked: it was the same worker."""
    monkeypatch.setattr(manifest_reader, "_MARGIN_SECONDS", 3600)
    answer = asyncio.Event()

    async def offers(peer: Peer) -> None:
        await peer.request()
        await answer.wait()
        await peer.send(http(b'{"module_name": "owls", "tools": [{"name": "owls.count", "description": ""}]}'))

    with faulty_redis(tmp_path / "redis") as server, structlog.testing.capture_logs() as lines:
        async with raw_module(offers) as module:
            known = ToolCache(Settings(redis_url=server.url, module_services={"owls": module.url}))
            await known.prepare()
            known.inquire("owls.count")
            await wait_until(lambda: module.requests, "the module is asked")
            with server.restarted():
                answer.set()
                await wait_until(lambda: "manifest_not_fetched" in {line["event"] for line in lines}, "it was in vain")

            def is_known() -> bool:
                known.inquire("owls.count")
                return known.find("owls.count") is not None

            await wait_until(is_known, "it was asked again")
            await known.aclose()


async def test_a_registry_that_is_back_says_what_is_approved(tmp_path: Path) -> None:
    """That it did not answer is not kept for an answer."""
    with faulty_redis(tmp_path / "redis") as server:
        known = ToolCache(Settings(redis_url=server.url, module_services={"owls": "http://owls.test"}))
        tool = ToolDefinition(name="owls.count")
        async with Redis.from_url(server.url) as client:
            await offer(client, "owls", count="guest")
        await known.prepare()
        with server.restarted():
            assert not await known.is_approved(tool)
        assert await known.is_approved(tool)
        await known.aclose()


async def test_a_redis_that_is_silent_delays_few_calls_and_those_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever comes while a look hangs waits for the rest of that second, not for one of his own."""
    waits, real = list[float](), LiveCopy.wait

    async def wait(self: LiveCopy, seconds: float) -> None:
        waits.append(seconds)
        await real(self, seconds)

    monkeypatch.setattr(LiveCopy, "wait", wait)
    async with silent_server() as server:
        url = f"{server.url.replace('http', 'redis')}0"
        known = ToolCache(Settings(redis_url=url, module_services={"owls": "http://owls.test"}))
        check = PermissionCheck(known, EVERYWHERE)
        async with asyncio.timeout(PATIENCE_SECONDS):
            for _ in range(10):
                assert (await check(asks(), run)).result.error_code == "busy"
            await known.aclose()

    assert 0 < sum(waits) <= tool_cache._PATIENCE_SECONDS, "all of them together"


async def test_a_worker_is_prepared_when_manifests_and_registry_are_read(redis: Redis, redis_url: str) -> None:
    """Where a module's manifest has expired, what the registry keeps is read; a registry that is away is asked again."""
    away = f"redis://127.0.0.1:{closed_port()}/0"
    services = {"owls": "http://owls.test"}
    known = ToolCache(Settings(redis_url=redis_url, registry_url=away, module_services=services))
    with structlog.testing.capture_logs() as lines:
        preparing = asyncio.create_task(known.prepare())
        await wait_until(lambda: any(line["event"] == "registry_not_read" for line in lines), "it has been asked")
        assert not preparing.done()
        await offer(redis, "owls", count="guest")
        await preparing
    assert required(known, "owls.count") == "guest"
    await known.aclose()


async def test_pauses_grow_while_nobody_knows(known: ToolCache, redis: Redis, clock: HandClock) -> None:
    """From a quarter of a second on, with the time for which the module has been asked about."""
    await known.refresh()
    pauses = list[float]()
    for _ in range(9):
        pauses.append(known.inquire("owls.count"))
        clock.now += pauses[-1]
    assert pauses == [0.25, 0.25, 0.5, 1, 2, 4, 8, 15, 15]

    await offer(redis, "owls", count="guest")
    await known.refresh()
    assert known.inquire("owls.fly") == 0.25
    await known.aclose()


async def test_a_tool_is_lacking_only_for_a_fresh_manifest(known: ToolCache, redis: Redis, clock: HandClock) -> None:
    """One that was found long ago says nothing of a tool that is new."""
    await offer(redis, "owls", count="guest")
    await known.refresh()
    assert known.lacks("owls.fly")
    assert not known.lacks("owls.count")
    assert not known.lacks("cats.purr")

    old = json.loads(str(await redis.get(Keys().module_manifest("owls"))))
    await redis.set(Keys().module_manifest("owls"), json.dumps({**old, "discovered_at": time.time() - 60}), ex=60)
    clock.now += 61
    await known.refresh()
    assert not known.lacks("owls.fly")


async def test_the_runner_closes_it(redis_url: str) -> None:
    """Whatever holds connections beside the executor ends with the runner."""
    known = ToolCache(Settings(redis_url=redis_url, module_services={"owls": "http://owls.test"}))
    async with executor_for("http://owls.test") as executor:
        runner = CallRunner(executor, [PermissionCheck(known, EVERYWHERE)], closing=[known.aclose])
        known.find("owls.count")
        await runner.aclose()

    assert [task for task in asyncio.all_tasks() if task.get_name() == "toolfleet-live-copy"] == []


async def test_what_is_closed_looks_no_more(known: ToolCache) -> None:
    """Whoever still waits for it to be prepared waits until the worker has ended."""
    await known.aclose()
    preparing = asyncio.create_task(known.prepare())
    await asyncio.sleep(0)
    preparing.cancel()

    assert not known._copy.is_reading
    assert known._sources is None
