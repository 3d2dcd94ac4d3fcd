"""How a fleet is doing, as an operator sees it: read from a real Redis, and in bounded time."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from support.module_server import ModuleServer
from support.streams.stream_server import stream_server
from support.waiting import PATIENCE_SECONDS, wait_until
from toolfleet import Caller, Settings, ToolCall, ToolFleet
from toolfleet_registry import metric_families
from toolfleet_registry.directory.directory import ModuleDirectory, ProbeFailure
from toolfleet_registry.directory.entries import ModuleEntry
from toolfleet_registry.errors import FleetUnavailable, SettingsError
from toolfleet_tasks.operations import fleet_facts, fleet_status
from toolfleet_tasks.operations.fleet_facts import FleetMetrics, FleetReader, age_of, lane_load
from toolfleet_tasks.operations.fleet_status import FleetStatus, read_status
from toolfleet_tasks.presence import ConsumerNotes, LaneCapacity

KEY = "0123456789abcdefghijklmnopqrstuvwxyz"


@pytest.fixture(params=[None, KEY], ids=["plain", "signed"])
def settings(request: pytest.FixtureRequest, redis_url: str, owls: ModuleServer) -> Settings:
    """In whatever form calls travel on Redis."""
    services = {"owls": owls.url, "gone": "http://127.0.0.1:1"}
    return Settings(
        redis_url=redis_url,
        module_services=services,
        slow_modules=frozenset({"gone"}),
        signing_key=request.param,
    )


@pytest.fixture
async def fleet(settings: Settings) -> AsyncIterator[ToolFleet]:
    async with ToolFleet(settings=settings) as fleet:
        await fleet.modules.refresh()
        yield fleet


async def test_it_says_what_waits_and_for_how_long(
    fleet: ToolFleet, settings: Settings, owner: Caller, redis: Redis
) -> None:
    """The calls of each queue, the age of the oldest, and who could run them."""
    await LaneCapacity(settings.model_copy(update={"lane": "fast"}), count=7).note()
    notes = ConsumerNotes(settings, lambda: ["tools.owls"])
    notes.start()
    await wait_until(lambda: notes._queues is not None, "the worker is noted")
    asked_at = time.time()
    handles = [await fleet.submit(ToolCall(tool_name="owls.echo"), owner, timeout=60) for _ in range(3)]
    await redis.rpush("tools.owls", "x" * 100_000)  # none that is brought: the next one stands for it
    status = await read_status(settings)
    await asyncio.to_thread(notes.leave, restarts=False)
    for handle in handles:
        await handle.cancel()

    (queue,) = status.queues
    assert (queue.queue, queue.lane, queue.waiting, queue.workers) == ("tools.owls", "fast", 4, 1)
    assert queue.oldest_seconds is not None
    assert 0 <= queue.oldest_seconds <= time.time() - asked_at + 1
    fast, slow = status.lanes
    assert (fast.lane, len(fast.workers), fast.slots, fast.modules) == ("fast", 1, 7, ("owls",))
    assert (slow.lane, slow.workers, slow.slots, slow.modules) == ("slow", (), 0, ("gone",))
    assert [(one.module, one.trouble) for one in status.troubles] == [("gone", "unreachable")]
    assert (status.held, status.dead_letters, status.jobs, status.wakes) == (0, 0, 0, 0)


@pytest.fixture
def plain(redis_url: str) -> Settings:
    """A fleet that nobody has used yet."""
    services = {str(name): "http://127.0.0.1:1" for name in "abcde"}
    return Settings(redis_url=redis_url, module_services=services)


async def test_modules_in_trouble_are_named_with_it(plain: Settings, redis: Redis) -> None:
    """By what calls have seen of them, and else by what the last look has."""
    keys, (seconds, _) = plain.keys, await redis.time()
    now = seconds * 1000
    breakers: dict[str, Any] = {
        "a": {"failures": 3},
        "b": {"failures": 20, "open_until": now + 60_000, "pause": 60_000},
        "c": {
            "failures": 20,
            "open_until": now - 1,
            "half_at": now - 1,
            "tokens": 4,
            "let_in_at": now - 1,
            "pause": 1000,
        },
    }
    for module, fields in breakers.items():
        await redis.hset(keys.breaker(module), mapping=fields)
        await redis.expire(keys.breaker(module), 60)
    for module, age in {"a": 0, "b": 0, "c": 0, "d": 1000, "e": 100}.items():
        await redis.set(keys.module_manifest(module), "{}", ex=int(plain.manifest_ttl_seconds) - age)
    found = {trouble.module: trouble for trouble in (await read_status(plain)).troubles}

    assert {name: (one.trouble, one.failures) for name, one in found.items()} == {
        "a": ("failing", 3),
        "b": ("away", 20),
        "c": ("recovering", 20),
        "d": ("stale", 0),
    }
    assert 50 < (found["b"].seconds or 0) <= 60
    assert 990 < (found["d"].seconds or 0) < 1100


async def test_local_functions_that_cannot_be_run_are_in_trouble_and_no_modules_metric(
    plain: Settings, redis: Redis
) -> None:
    """Their breaker opens where a worker cannot import them."""
    fleet = plain.model_copy(update={"local_tools": "owls_at_home"})
    await redis.hset(fleet.keys.breaker("local"), mapping={"failures": 2})
    await redis.expire(fleet.keys.breaker("local"), 60)
    found = {one.module: one.trouble for one in (await read_status(fleet)).troubles}
    async with FleetReader.of(fleet) as reader:
        samples = await FleetMetrics(reader, fleet).samples()

    assert found["local"] == "failing"
    assert {one.labels for one in samples if one.family == metric_families.BREAKER} == {(name,) for name in "abcde"}


async def test_calls_that_wait_in_lines_wait_in_their_queue_and_want_no_workers(plain: Settings, redis: Redis) -> None:
    """Nor are they in the metric of the queue: an alert says that workers should take what is there."""
    load_key = plain.keys.line_load(plain.keys.queue("tools.a"))
    await redis.hset(load_key, mapping={"calls": 5, "bytes": 500})
    await redis.expire(load_key, 60)
    async with FleetReader.of(plain) as reader:
        load = lane_load(await reader.read(), "fast", usual_slots=1)
        samples = await FleetMetrics(reader, plain).samples()

    assert [(one.queue, one.waiting, one.oldest_seconds) for one in (await read_status(plain)).queues] == [
        ("tools.a", 5, None)
    ]
    assert load is not None
    assert load.wanted == 0
    assert {one.value for one in samples if one.family == metric_families.QUEUE_WAITING} == {0}


@pytest.mark.parametrize("has_store", [False, True])
async def test_a_module_of_the_fleets_own_name_is_checked_without_a_store(
    plain: Settings, redis: Redis, tmp_path: Path, has_store: bool
) -> None:
    """It may have been added before the name was reserved."""
    fleet = plain.model_copy(update={"artifact_store": f"file://{tmp_path}"}) if has_store else plain
    entry = ModuleEntry(module="artifacts", url="http://127.0.0.1:1")
    await ModuleDirectory(redis, plain).replace("artifacts", "", entry)
    load_key = plain.keys.line_load(plain.keys.queue("tools.artifacts"))
    await redis.hset(load_key, mapping={"calls": 5, "bytes": 500})
    await redis.expire(load_key, 60)
    status = await read_status(fleet)

    assert ("artifacts" in {one.module for one in status.troubles}) is not has_store
    assert [one.waiting for one in status.queues if one.queue == "tools.artifacts"] == ([] if has_store else [5])


async def test_a_module_that_cannot_be_looked_at_is_called_as_in_the_list_of_modules(
    plain: Settings, redis: Redis
) -> None:
    """With what went wrong; also one whose manifest is young, and whose last look has failed."""
    failures = {"a": "answered with status 404", "b": "cannot connect", "d": "no answer"}
    noted = {module: ProbeFailure(error, at=0) for module, error in failures.items()}
    await ModuleDirectory(redis, plain).failures.note(noted, ())
    for module in "de":
        await redis.set(plain.keys.module_manifest(module), "{}", ex=int(plain.manifest_ttl_seconds))
    found = {one.module: (one.trouble, one.error) for one in (await read_status(plain)).troubles}

    assert found == {
        "a": ("answers 404", "answered with status 404"),
        "b": ("unreachable", "cannot connect"),
        "c": ("unknown", None),
        "d": ("stale", "no answer"),
    }


async def test_what_has_died_and_what_is_to_come_is_counted(plain: Settings, redis: Redis) -> None:
    """Dead letters, jobs and those that should have been looked at, wake-ups, and what was no call."""
    keys, (seconds, _) = plain.keys, await redis.time()
    await redis.zadd(keys.dead_order, {"x": 1, "y": 2})
    await redis.zadd(keys.jobs_due, {"x": (seconds - 60) * 1000, "y": seconds * 1000, "z": (seconds + 60) * 1000})
    await redis.zadd(keys.wakes_due, {"x": 1})
    await redis.zadd(keys.calls_due, {"y": 1})
    await redis.zadd(keys.dead_wakes_order, {"z": 1})
    await redis.zadd(keys.dead_webhooks("-order"), {"7@0123456789abcdef": 1})
    await redis.lpush(keys.quarantine, "a", "b", "c")
    status = await read_status(plain)

    assert (status.dead_letters, status.jobs, status.overdue_jobs) == (2, 3, 1)
    assert (status.wakes, status.dead_wakes, status.dead_webhooks, status.quarantined) == (2, 1, 1, 3)


async def test_neither_strange_nor_large_messages_disturb_it(plain: Settings, redis: Redis) -> None:
    """Where the oldest cannot be read, nothing is said of its age."""
    await redis.lpush("tools.a", "x" * 100_000, json.dumps({"body": "W10="}))
    await redis.set("tools.b", "no list", ex=60)
    await redis.lpush("tools.c", b"\xff")
    await redis.lpush("tools.d", *["x" * 100_000] * 5)
    status = await read_status(plain)
    await redis.delete("tools.b")

    assert [(queue.queue, queue.waiting, queue.oldest_seconds) for queue in status.queues] == [
        ("tools.d", 5, None),
        ("tools.a", 2, None),
        ("tools.c", 1, None),
    ]


@pytest.mark.parametrize("message", [b"", b"{}", b"[1]", b'{"body": 3}', b'{"body": "W10="}', b'{"body": "W1syXV0="}'])
def test_the_age_of_what_is_no_call_is_not_known(message: bytes) -> None:
    """And it is no error."""
    assert age_of(message, 1.0) is None


async def test_a_redis_that_is_frozen_is_an_error_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes connections and says nothing; it is named, and nobody waits for more than three seconds."""
    assert fleet_status._SECONDS < 3  # beside what the command takes to start
    monkeypatch.setattr(fleet_status, "_SECONDS", 0.2)

    async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async with stream_server(silent) as port:
        with pytest.raises(FleetUnavailable, match=f"Redis at 127.0.0.1:{port} does not answer"):
            await read_status(Settings(redis_url=f"redis://127.0.0.1:{port}/0"))
    with pytest.raises(FleetUnavailable, match=r"Redis at 127\.0\.0\.1:1 does not answer"):
        await read_status(Settings(redis_url="redis://127.0.0.1:1/0"))


async def test_a_broker_that_is_away_is_said_in_time(plain: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another Redis, or RabbitMQ; the rest is shown."""
    monkeypatch.setattr(fleet_facts, "BROKER_SECONDS", 0.5)
    for url in ("redis://127.0.0.1:1/0", "amqp://127.0.0.1:1//"):
        async with asyncio.timeout(PATIENCE_SECONDS):
            status = await read_status(plain.model_copy(update={"broker_url": url}))
        assert str(status.broker_error).startswith("The broker does not answer: ")
        assert (status.queues, status.held, status.dead_letters) == ((), None, 0)


async def test_without_a_fleet_it_says_what_to_set() -> None:
    """As the other commands do."""
    with pytest.raises(SettingsError, match="set TOOLFLEET_REDIS_URL"):
        await read_status(Settings())


def test_an_empty_fleet_is_a_status_too(plain: Settings) -> None:
    """Everything is zero, and its modules are not known yet."""
    status: FleetStatus = asyncio.run(read_status(plain))

    assert status.queues == ()
    assert [trouble.trouble for trouble in status.troubles] == ["unknown"] * 5
