"""What a running worker makes of the directory of modules: in which order whatever happens."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog
from redis.asyncio import Redis

from support.published_call import published
from support.workers.known_tools import FewTools
from toolfleet_registry.directory.directory import ModuleDirectory
from toolfleet_registry.directory.entries import ModuleEntry, static_entries
from toolfleet_registry.directory.known_modules import KnownModules
from toolfleet_registry.errors import OperationRefused
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.settings import Settings
from toolfleet_tasks.operations.changes import ModuleChanges
from toolfleet_workers.executors.http_client import HttpClient
from toolfleet_workers.executors.http_executor import HttpExecutor
from toolfleet_workers.pool.consumption import ServedModules

OWLS = ModuleEntry(module="owls", url="http://127.0.0.1:1")


class Worker:
    """What a worker's `ServedModules` have had it do."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.known, self.tools = KnownModules(settings), FewTools()
        self.http = HttpExecutor(settings.module_services, client=HttpClient(), max_reply_bytes=1000)
        self.modules = ServedModules(settings, self.known, self.http, self.tools)
        self.modules.consume = self.consume
        self.consumed = set[str]()

    def consume(self, modules: Iterable[str]) -> None:
        self.consumed = set(modules)

    async def look(self) -> None:
        """One look, as there is one every half a second."""
        await self.modules.prepare()


@asynccontextmanager
async def worker(redis_url: str, **settings: Any) -> AsyncGenerator[Worker]:
    made = Worker(Settings(redis_url=redis_url, **settings))
    yield made
    await made.modules.aclose()
    await made.http.aclose()


@pytest.fixture
async def changes(redis: Redis, redis_url: str) -> ModuleChanges:
    return ModuleChanges(redis, Settings(redis_url=redis_url))


async def test_a_worker_serves_what_is_added_for_its_lane(changes: ModuleChanges, redis_url: str) -> None:
    """Its own modules it consumes anyway; what is in another lane is not its own."""
    await changes.add(OWLS)
    await changes.add(ModuleEntry(module="larks", url="http://127.0.0.1:1", slow=True))
    own = {"module_services": {"git": "http://127.0.0.1:1"}}
    async with worker(redis_url, lane="fast", **own) as fast, worker(redis_url, lane="slow") as slow:
        await asyncio.gather(fast.look(), slow.look())

        assert (fast.consumed, slow.consumed) == ({"owls"}, {"larks"})
        assert sorted(fast.tools.asked_anew) == ["larks", "owls"]


async def test_a_module_that_comes_again_elsewhere_is_asked_at_once(changes: ModuleChanges, redis_url: str) -> None:
    """What was known under its name was another one's."""
    async with worker(redis_url) as one:
        await changes.add(OWLS)
        await one.look()
        await changes.remove("owls", drain_seconds=0)
        await one.look()
        assert one.known.ending == one.consumed == {"owls"}
        assert not one.known.served
        await changes.add(OWLS.model_copy(update={"url": "http://127.0.0.1:2"}))
        await one.look()

        assert one.tools.asked_anew == ["owls", "owls"]
        assert one.known.settings.module_services == {"owls": "http://127.0.0.1:2"}


async def test_a_removal_and_a_starting_worker_end_alike_in_whichever_order(
    changes: ModuleChanges, redis_url: str
) -> None:
    """The worker consumes the queue, to end what waits there, and serves the module no more."""
    for number in range(10):
        await changes.add(OWLS.model_copy(update={"timeout_seconds": float(number + 1)}))
        async with worker(redis_url) as one:
            await asyncio.gather(one.look(), changes.remove("owls", drain_seconds=0))
            await one.look()

            assert not one.known.served
            assert one.consumed == {"owls"}


async def test_workers_that_start_at_once_hold_the_same(changes: ModuleChanges, redis_url: str) -> None:
    """However many feed the directory, and whatever is added meanwhile; of two addresses one is in effect in all."""
    names = [f"m{number}" for number in range(5)]
    services = [{"git": f"http://127.0.0.1:{number % 2 + 1}"} for number in range(6)]
    workers = [Worker(Settings(redis_url=redis_url, module_services=each)) for each in services]
    added = [changes.add(ModuleEntry(module=name, url="http://127.0.0.1:1")) for name in names]
    with structlog.testing.capture_logs() as logs:
        await asyncio.gather(*(one.look() for one in workers), *added)
        for one in workers:
            await one.look()

    assert {one.known.settings.module_services["git"] for one in workers} <= {
        "http://127.0.0.1:1",
        "http://127.0.0.1:2",
    }
    assert len({one.known.settings.module_services["git"] for one in workers}) == 1
    assert all(one.consumed == set(names) for one in workers)
    assert [line["module"] for line in logs if line["event"] == "module_conflict"] == ["git"] * 3
    for one in workers:
        await one.modules.aclose()


async def test_what_redis_has_lost_comes_back(changes: ModuleChanges, redis: Redis, redis_url: str) -> None:
    """Workers know what was added, and what they serve by their settings."""
    async with worker(redis_url, module_services={"git": "http://127.0.0.1:1"}) as one:
        await changes.add(OWLS)
        await one.look()
        await redis.flushall()
        await one.look()

        assert one.consumed == {"owls"}
    found = (await ModuleDirectory(redis, Settings()).read()).entries
    assert found.keys() == {"git", "owls"}


async def test_what_was_added_outlives_a_redis_in_the_registrys_store(
    changes: ModuleChanges, redis: Redis, redis_url: str, tmp_path: Path
) -> None:
    """Where one is set: a fleet that starts on an empty Redis has it again, and what was removed stays so."""
    store = f"sqlite:///{tmp_path}/registry.db"
    async with worker(redis_url, registry_url=store) as one:
        await changes.add(OWLS)
        await changes.add(ModuleEntry(module="larks", url="http://127.0.0.1:1"))
        await changes.remove("larks", drain_seconds=0)
        await one.look()
    await redis.flushall()
    async with worker(redis_url, registry_url=store) as another:
        await another.look()

        assert another.known.served == {"owls"}
        assert another.known.ending == {"larks"}


async def test_an_unsigned_module_is_served_by_nobody(redis: Redis, redis_url: str) -> None:
    """Where the fleet signs; and the log says so once."""
    await redis.hset(Keys().modules, "owls", OWLS.text())
    async with worker(redis_url, signing_key="a secret of more than thirty-two characters") as one:
        with structlog.testing.capture_logs() as logs:
            await one.look()
            await one.look()

        assert one.consumed == set()
    assert [line["module"] for line in logs if line["event"] == "module_entry_ignored"] == ["owls"]


@pytest.mark.parametrize(
    ("networks", "url", "is_served"),
    [
        ((), "http://127.0.0.1:1", True),
        ((), "http://169.254.169.254", False),
        ((), "http://[::ffff:169.254.169.254]", False),
        ((), "http://2852039166", False),  # that address as one number
        (("169.254.0.0/16",), "http://169.254.169.254", True),  # somebody means it
        (("10.0.0.0/8",), "http://127.0.0.1:1", False),
    ],
)
async def test_a_module_at_a_refused_address_is_not_served(
    redis: Redis, redis_url: str, networks: tuple[str, ...], url: str, is_served: bool
) -> None:
    """Whoever has put it into Redis."""
    entry = ModuleEntry(module="owls", url=url)
    await ModuleDirectory(redis, Settings()).replace("owls", "", entry)
    async with worker(redis_url, module_networks=networks) as one:
        await one.look()

        assert ("owls" in one.known.served) == is_served


@pytest.mark.parametrize(
    ("networks", "host", "is_allowed"),
    [
        *(
            ((), host, False)
            for host in (
                "127.0.0.1",
                "127.8.8.8",
                "2130706433",  # 127.0.0.1 as one number
                "0.0.0.0",  # noqa: S104 - which is this machine, too
                "10.0.0.7",
                "172.16.0.1",
                "192.168.1.1",
                "100.64.0.1",
                "169.254.169.254",
                "224.0.0.1",
                "[::]",
                "[::1]",
                "[::ffff:127.0.0.1]",
                "[fd00::1]",
                "[ff0e::1]",
            )
        ),
        ((), "8.8.8.8", True),
        ((), "[2001:4860:4860::8888]", True),
        (("127.0.0.0/8",), "127.0.0.1", True),
        (("127.0.0.0/8",), "10.0.0.7", False),
        (("127.0.0.0/8",), "8.8.8.8", False),
    ],
)
async def test_a_module_that_was_added_over_http_is_at_a_public_address(
    redis: Redis, redis_url: str, networks: tuple[str, ...], host: str, is_allowed: bool
) -> None:
    """Or where the setting says: neither added elsewhere nor served there, whoever has put it into Redis."""
    settings = Settings(redis_url=redis_url, module_networks=networks)
    entry = ModuleEntry(module="owls", url=f"http://{host}:1", public_only=True)
    with contextlib.nullcontext() if is_allowed else pytest.raises(OperationRefused, match="its address"):
        await ModuleChanges(redis, settings).add(entry)
    await ModuleDirectory(redis, Settings()).replace("larks", "", entry.model_copy(update={"module": "larks"}))
    async with worker(redis_url, module_networks=networks) as one:
        await one.look()

        assert [name in one.known.served for name in ("owls", "larks")] == [is_allowed] * 2


async def test_a_name_of_a_public_module_is_judged_when_it_is_connected_to(redis: Redis, redis_url: str) -> None:
    """A name service may say something else by then. One that was added on the fleet's own machine is asked there."""
    for module, public_only in (("owls", True), ("larks", False)):
        entry = ModuleEntry(
            module=module, url="http://localhost:1" if public_only else OWLS.url, public_only=public_only
        )
        await ModuleDirectory(redis, Settings()).replace(module, "", entry)
    async with worker(redis_url) as one:
        await one.look()
        attempts = [await one.http.execute(published(f"{name}.hoot"), seconds=5) for name in ("owls", "larks")]

    assert ["does not allow its address" in str(attempt.result.error) for attempt in attempts] == [True, False]


async def test_a_name_is_judged_by_the_address_that_it_has(changes: ModuleChanges, redis_url: str) -> None:
    """When it is connected to: a name service may say something else by then. The module gets no word of the call."""
    async with worker(redis_url, module_networks=("10.0.0.0/8",)) as one:
        await changes.add(OWLS.model_copy(update={"url": "http://localhost:1"}))
        await one.look()
        attempt = await one.http.execute(published("owls.hoot"), seconds=5)

    assert attempt.result.error_code == "module_unreachable"
    assert attempt.result.effect_state == "none"
    assert "does not allow its address" in str(attempt.result.error)


async def test_what_no_settings_name_any_more_is_forgotten(redis: Redis, redis_url: str) -> None:
    """Once that has been so for as long as a manifest lives, by a worker that was there all the time."""
    directory = ModuleDirectory(redis, Settings())
    (git,) = static_entries(Settings(module_services={"git": "http://127.0.0.1:1"})).values()
    await directory.feed([git])
    await directory.leave([git])
    async with worker(redis_url) as one:
        await one.look()
        assert "git" in one.known.names
        one.modules._watch._unfed_since["git"] -= 3601
        one.modules._watch._read_at = 0
        await one.look()
        await one.look()

        assert one.known.names == frozenset()
