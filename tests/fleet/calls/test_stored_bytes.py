"""What results take in Redis: their texts go once they were had, and no user's fill it."""

import signal
from collections.abc import AsyncIterator, Iterator

import pytest
from redis.asyncio import Redis

from support.fleet import TestBed
from support.module_server import ModuleServer, Request, holding, serve
from support.published_call import published
from support.waiting import PATIENCE_SECONDS, wait_until_answered
from support.worker_process import WorkerProcess
from toolfleet import Caller, ToolCall, ToolFleet, ToolResult
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.results import receipts

KEYS = Keys()
KEY = "a secret of more than thirty-two characters"
LARGE = 600_000
BUDGET = 2_000_000


async def _fill(request: Request) -> dict[str, object]:
    return {"success": True, "result": "x" * int(request["arguments"]["size"])}


@pytest.fixture(scope="module")
def owls() -> Iterator[ModuleServer]:
    module = ModuleServer("owls")
    module.add("fill", _fill, effect="read")
    module.add("fill_once", _fill, effect="once")
    with serve(module):
        yield module


@pytest.fixture(scope="module")
def bed(owls: ModuleServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    more = {"stored_bytes_per_caller": BUDGET, "backlog_bytes": 3_000_000, "signing_key": KEY}
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield TestBed(url, (owls,), tmp_path_factory.mktemp("logs"), more)


@pytest.fixture(scope="module")
def worker(bed: TestBed) -> Iterator[WorkerProcess]:
    with bed.worker() as worker:
        yield worker


@pytest.fixture
async def redis(bed: TestBed) -> AsyncIterator[Redis]:
    async with Redis.from_url(bed.redis_url, decode_responses=True) as client:
        yield client


@pytest.fixture
async def fleet(bed: TestBed, worker: WorkerProcess, owls: ModuleServer, redis: Redis) -> AsyncIterator[ToolFleet]:
    owls.forget()
    await redis.delete(KEYS.stored("ada"), KEYS.stored("ada") + ":bytes")
    async with ToolFleet(settings=bed.settings) as fleet:
        yield fleet


def fill(size: int, key: str | None = None, tool: str = "fill") -> ToolCall:
    return ToolCall(tool_name=f"owls.{tool}", arguments={"size": size}, idempotency_key=key)


async def is_short(redis: Redis, key: str) -> bool:
    return bool(await redis.strlen(key) < 10_000)


async def is_gone(redis: Redis, key: str) -> bool:
    return not await redis.exists(key)


async def succeeds(fleet: ToolFleet, caller: Caller) -> bool:
    return (await fleet.call(fill(3), caller)).success


def id_of(result: ToolResult) -> str:
    return result.audit.call_id


@pytest.mark.parametrize("size", [10, 10_000, LARGE])
async def test_a_result_that_was_had_leaves_redis(
    fleet: ToolFleet, redis: Redis, owner: Caller, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its text is dropped within seconds; that it ended, and how, its record says as long as before."""
    monkeypatch.setattr(receipts, "_PAUSE_SECONDS", 0.05)
    call_id = id_of(await fleet.call(fill(size), owner))
    await wait_until_answered(lambda: is_gone(redis, KEYS.result(call_id)), "its text is dropped")

    record = await redis.hgetall(KEYS.call(call_id))
    assert record["state"] == "done"
    assert all(len(value) < 1000 for value in record.values())
    assert await redis.ttl(KEYS.call(call_id)) > 3600
    assert int(await redis.get(KEYS.stored("ada") + ":bytes") or 0) == 0


async def test_a_repeat_after_that_is_told_that_it_was_done(
    fleet: ToolFleet, redis: Redis, owner: Caller, owls: ModuleServer
) -> None:
    """It is never executed, and says so with a code of its own; a short result comes as it was."""
    first = await fleet.call(fill(LARGE, "large", "fill_once"), owner)
    await wait_until_answered(lambda: is_short(redis, KEYS.result(id_of(first))), "its text is dropped")
    again = await fleet.call(fill(LARGE, "large", "fill_once"), owner)
    short = [await fleet.call(fill(3, "short", "fill_once"), owner) for _ in range(2)]

    assert (again.success, again.error_code, again.effect_state) == (False, "result_dropped", "done")
    assert again.hint is not None
    assert "do not repeat it" in again.hint
    assert id_of(again) == id_of(first)
    assert [result.result for result in short] == ["xxx", "xxx"]
    assert len(owls.calls("fill_once")) == 2


async def test_a_text_stays_for_those_who_wait_for_it(
    fleet: ToolFleet, redis: Redis, owner: Caller, owls: ModuleServer
) -> None:
    """Its own caller has had it, and another one's agent has not: it is dropped when that one has, or waits no more."""
    with holding(owls, "fill_once"):
        handle = await fleet.submit(fill(LARGE, "waited for", "fill_once"), owner)
        call_id = handle.id
        await redis.sadd(KEYS.readers(call_id), "other")
        await redis.expire(KEYS.readers(call_id), 60)
    assert (await handle.result()).success

    async def was_had() -> object:
        return await redis.hget(KEYS.call(call_id), "had")

    await wait_until_answered(was_had, "its own caller has had it")
    assert await redis.strlen(KEYS.result(call_id)) > LARGE

    reader = published(call_id="other", user_id="ada")
    (await fleet._sessions.opened())._receipts.read(reader, call_id)
    await wait_until_answered(lambda: is_short(redis, KEYS.result(call_id)), "its text is dropped")


async def test_a_caller_with_too_many_bytes_is_told_busy(
    fleet: ToolFleet, redis: Redis, owner: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is executed then; once its results were had, there is room again, and others never lack it."""
    monkeypatch.setattr(receipts.Receipts, "_flush", lambda self: None)  # an agent that does not confirm
    for _ in range(4):
        assert (await fleet.call(fill(LARGE), owner)).success
    refused = await fleet.call(fill(3), owner)
    other = await fleet.call(fill(3), Caller(user_id="bob", permission="owner", allowed_modules="*"))
    monkeypatch.undo()

    assert (refused.error_code, refused.effect_state, refused.retryable) == ("busy", "none", True)
    assert "bytes" in str(refused.error)
    assert other.success

    (await fleet._sessions.opened())._receipts._flush()
    await wait_until_answered(lambda: succeeds(fleet, owner), "there is room again")


async def test_a_queue_is_full_by_its_bytes_as_well(
    fleet: ToolFleet, worker: WorkerProcess, redis: Redis, owner: Caller
) -> None:
    """Some dozens of large calls are as many as may wait."""
    queue = KEYS.queue("tools.owls")
    worker.send_signal(signal.SIGSTOP)  # it would take them, as it looks into its queues every second
    try:
        await redis.lpush(queue, *["x" * 200_000] * 20)
        refused = await fleet.call(fill(3), owner)
        await redis.delete(queue)
    finally:
        worker.send_signal(signal.SIGCONT)

    assert (refused.error_code, refused.effect_state) == ("busy", "none")
    assert "bytes wait" in str(refused.error)


@pytest.mark.load
async def test_sixty_large_results_that_were_had_leave_nothing(
    bed: TestBed, worker: WorkerProcess, redis: Redis, owner: Caller
) -> None:
    """One user's 420 MB are under 50 MB in Redis within a minute."""
    settings = bed.settings.model_copy(update={"stored_bytes_per_caller": 256 * 2**20})
    async with ToolFleet(settings=settings) as fleet:
        for _ in range(60):
            result = await fleet.call(fill(7_000_000), owner, timeout=60)
            assert result.success, result
        await wait_until_answered(lambda: uses_little(redis), "it uses little", seconds=3 * PATIENCE_SECONDS)


async def uses_little(redis: Redis) -> bool:
    return bool((await redis.info("memory"))["used_memory"] < 50 * 2**20)
