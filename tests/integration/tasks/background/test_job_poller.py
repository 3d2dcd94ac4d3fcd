"""What a worker does with jobs in one tick: it crowds nobody out, loses no call of an end, and holds nothing for long."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from redis.asyncio import Redis

from support.module_server import ModuleServer, serve
from support.modules.raw_module import Peer, raw_module
from support.owls import make_module
from support.waiting import PATIENCE_SECONDS, wait_until, wait_until_equal
from support.workers.wakes import SECRET, hurry, put
from toolfleet import Caller, Conversation, Poll, Schedule, ToolCall, ToolFleet
from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.settings import Settings
from toolfleet_tasks import job_poller, worker_runtime
from toolfleet_tasks.calls.prepare import CallPreparation
from toolfleet_tasks.client.session import Session
from toolfleet_tasks.control import fleet_tasks
from toolfleet_tasks.job_poller import WorkerJobs
from toolfleet_tasks.jobs import engine
from toolfleet_tasks.transport import redis_publisher
from toolfleet_workers.worker_app import make_worker_app

KEYS = Keys()
ECHO = ToolCall(tool_name="owls.echo", arguments={"x": 1})
POLL = Poll(tool_name="owls.echo", interval_seconds=1, until="done")
HERE = Conversation(conversation_id="c")


@pytest.fixture(scope="module")
def module() -> Iterator[ModuleServer]:
    with serve(make_module()) as server:
        yield server


@pytest.fixture
def settings(redis_url: str, module: ModuleServer, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("TOOLFLEET_REDIS_URL", redis_url)
    monkeypatch.setenv("TOOLFLEET_MODULE_SERVICES", json.dumps({"owls": module.url}))
    return Settings(redis_url=redis_url, module_services={"owls": module.url})


@pytest.fixture
async def fleet(settings: Settings) -> AsyncIterator[ToolFleet]:
    async with ToolFleet(settings=settings) as fleet:
        yield fleet


def keeper_of(settings: Settings, **more: Any) -> WorkerJobs:
    return WorkerJobs(make_worker_app(settings.model_copy(update=more)))


async def resume(keeper: WorkerJobs, settings: Settings, *, seconds: float) -> None:
    """Have a worker do what is due, also what follows from it, and end."""
    worker_runtime.start(asyncio.get_running_loop(), broker=str(settings.broker))
    try:
        await keeper.resume(seconds=seconds)
        await worker_runtime.here()._later_ended()
    finally:
        await worker_runtime.stop()


async def all_due(redis: "Redis") -> None:
    """Whatever waits is due now, as it is written and as it is sorted."""
    ids: list[str] = await redis.zrange(KEYS.jobs_due, 0, -1)  # type: ignore[assignment] # without scores
    for job_id in ids:
        at = json.loads(await redis.hget(KEYS.job(job_id), "at") or "{}")
        await redis.hset(KEYS.job(job_id), "at", json.dumps({**at, "due_at": 1.0}))
        await redis.zadd(KEYS.jobs_due, {job_id: 1})


async def with_end(fleet: ToolFleet, redis: "Redis", caller: Caller, then: ToolCall, **schedule: Any) -> str:
    """A reminder that is due, whose end makes a call. Returns that call's id."""
    schedule = schedule or {"at": time.time() + 60}
    job = await fleet.jobs.start(None, None, then, schedule=Schedule(**schedule), caller=caller)
    await all_due(redis)
    return f"{job.job_id}.then.0"


async def _not_now(*_: Any) -> None:
    """Stands for a worker that ends before it delivers anything."""


def test_a_tick_is_dropped_only_when_it_is_old() -> None:
    """Its expiry is a time of beat's clock: a worker's may be as far ahead as any may be, and a control queue behind."""
    for interval, seconds in ((0.1, 330), (1, 330), (60, 900)):
        entry = fleet_tasks.schedule(Settings(jobs_interval_seconds=interval))["resume-jobs"]
        assert entry["options"]["expires"] == seconds


async def test_jobs_leave_room_for_others_in_a_modules_queue(
    fleet: ToolFleet, settings: Settings, redis: "Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an outage everything is due: so much is published that a module has enough to do, and the rest later."""
    monkeypatch.setattr(engine, "_MOST_WAITING", 20)
    monkeypatch.setattr(job_poller, "_CALL_SECONDS", 600.0)  # one kick, however long this takes
    for number in range(150):
        caller = Caller(user_id=f"u{number % 3}", permission="owner", allowed_modules="*")
        await fleet.jobs.start(None, POLL, conversation=HERE, caller=caller)
    await all_due(redis)
    await redis.delete("toolfleet.control")
    await resume(keeper_of(settings), settings, seconds=4)
    waiting, kicks = await redis.llen("tools.owls"), await redis.llen("toolfleet.control")
    answer = fleet.call(ECHO, Caller(permission="owner", allowed_modules="*"))
    task = asyncio.ensure_future(answer)
    await wait_until_equal(lambda: redis.llen("tools.owls"), waiting + 1, "an agent's own call is let in")
    task.cancel()

    assert waiting == 20
    assert kicks == 1


async def test_ticks_that_pile_up_in_a_worker_are_one(
    fleet: ToolFleet, settings: Settings, redis: "Redis", owner: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One works, and once more for all that came meanwhile."""
    working, most, ticks = 0, 0, 0
    real = WorkerJobs._tick

    async def tick(self: WorkerJobs, bench: Any, seconds: float) -> None:
        nonlocal working, most, ticks
        working, ticks = working + 1, ticks + 1
        most = max(most, working)
        await real(self, bench, seconds)
        working -= 1

    monkeypatch.setattr(WorkerJobs, "_tick", tick)
    for _ in range(10):
        await fleet.jobs.start(None, POLL, conversation=HERE, caller=owner)
    await all_due(redis)
    worker_runtime.start(asyncio.get_running_loop(), broker=str(settings.broker))
    try:
        keeper = keeper_of(settings)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.gather(*(keeper.resume(seconds=20) for _ in range(20)))
    finally:
        await worker_runtime.stop()

    assert (most, ticks) == (1, 2)
    assert await redis.llen("tools.owls") == 10


async def test_a_tick_that_waits_hears_of_what_is_made_meanwhile(
    fleet: ToolFleet, settings: Settings, redis: "Redis", owner: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sleeps until the next job is due; a job that is made then, and due before, does not wait for that."""
    rests, real = list[float](), job_poller._is_set

    async def is_set(event: asyncio.Event, *, within: float) -> bool:
        rests.append(within)
        return await real(event, within=within)

    monkeypatch.setattr(job_poller, "_is_set", is_set)
    monkeypatch.setattr(job_poller, "_MOST_LEASE_SECONDS", 3600.0)
    settings = settings.model_copy(update={"jobs_interval_seconds": 3600, "visibility_timeout": 7200})
    await fleet.jobs.start(None, POLL, conversation=HERE, caller=owner)
    (job_id,) = await redis.zrange(KEYS.jobs_due, 0, -1)
    await redis.zadd(KEYS.jobs_due, {str(job_id): (time.time() + 600) * 1000})
    worker_runtime.start(asyncio.get_running_loop(), broker=str(settings.broker))
    try:
        keeper = keeper_of(settings)
        tick = asyncio.ensure_future(keeper.resume(seconds=3600))
        await wait_until(lambda: rests, "it sleeps")
        assert not tick.done()
        await fleet.jobs.start(ECHO, None, conversation=HERE, caller=owner)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await keeper.resume(seconds=3600)
        await wait_until_equal(lambda: redis.llen("tools.owls"), 1, "the call of the new job is published")
        tick.cancel()
    finally:
        await worker_runtime.stop()

    assert rests[0] > 10 * PATIENCE_SECONDS, "it would have slept for much longer"


async def test_a_worker_opens_one_session_for_all_jobs(
    fleet: ToolFleet, settings: Settings, redis: "Redis", owner: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many jobs are due."""
    opened, real = list[Session](), Session.open

    async def opening(self: Session) -> None:
        opened.append(self)
        await real(self)

    for _ in range(20):
        await fleet.jobs.start(None, POLL, conversation=HERE, caller=owner)
    await all_due(redis)
    monkeypatch.setattr(Session, "open", opening)
    await resume(keeper_of(settings), settings, seconds=4)

    assert len(opened) == 1
    assert await redis.llen("tools.owls") == 20


async def test_a_core_that_hangs_does_not_hold_a_tick(settings: Settings, redis: "Redis") -> None:
    """A try that a worker leaves as it ends is made by another one when its lease is over."""

    async def hang(peer: Peer) -> None:
        await peer.request()
        await asyncio.Event().wait()

    await put(redis)
    async with raw_module(hang) as core, asyncio.timeout(PATIENCE_SECONDS):
        await resume(keeper_of(settings, core_url=core.url, core_secret=SECRET), settings, seconds=1)
        assert len(core.requests) == 1

    assert await redis.exists(KEYS.wake("job-1"))


async def test_a_call_of_an_end_waits_for_its_tool(
    fleet: ToolFleet, settings: Settings, redis: "Redis", owner: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that nobody knows just now, while its module restarts, is tried again; and is then made."""
    call_id = await with_end(fleet, redis, owner, ECHO)
    keeper, real = keeper_of(settings), CallPreparation.judge

    def judge(self: CallPreparation, call: ToolCall, caller: Caller, *rest: Any) -> ToolResult:
        return ToolResult.refused(call.tool_name, "unknown_tool", "Unknown tool")

    monkeypatch.setattr(CallPreparation, "judge", judge)
    for _ in range(2):
        await resume(keeper, settings, seconds=2)
    assert await redis.hget(KEYS.wake(call_id), "error") == "Unknown tool"
    monkeypatch.setattr(CallPreparation, "judge", real)
    await hurry(redis)
    await resume(keeper, settings, seconds=2)

    assert await redis.llen("tools.owls") == 1
    assert not await redis.exists(KEYS.wake(call_id))
    assert not await redis.exists(KEYS.dead_wakes)


async def test_a_call_of_an_end_waits_for_a_worker_with_its_key(
    settings: Settings, redis: "Redis", owner: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While keys are changed, a worker that cannot verify it leaves it to one that can."""
    signed = settings.model_copy(update={"signing_key": "a key of at least 32 characters, I think"})
    async with ToolFleet(settings=signed) as fleet:
        job = await fleet.jobs.start(None, None, ECHO, schedule=Schedule(at=time.time()), caller=owner)
    call_id = f"{job.job_id}.then.0"
    keeper, other = keeper_of(signed), keeper_of(signed, signing_key="another one of at least 32 characters, I think")
    with monkeypatch.context() as nobody:
        nobody.setattr(WorkerJobs, "_deliver", _not_now)
        await resume(keeper, settings, seconds=2)
    await resume(other, settings, seconds=2)
    assert "another TOOLFLEET_SIGNING_KEY" in str(await redis.hget(KEYS.wake(call_id), "error"))
    assert not await redis.exists("tools.owls", KEYS.dead_wakes)
    await hurry(redis)
    await resume(keeper, settings, seconds=2)

    assert await redis.llen("tools.owls") == 1
    assert not await redis.exists(KEYS.wake(call_id))


async def test_a_call_of_an_end_is_published_until_it_has_begun(
    settings: Settings, redis: "Redis", redis_url: str, owner: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker of its own may lose the message after it has taken it; what the ledger knows is not published again."""
    broker = f"{redis_url.removesuffix('/0')}/1"
    monkeypatch.setenv("TOOLFLEET_BROKER_URL", broker)
    settings = Settings(redis_url=redis_url, broker_url=broker, module_services=settings.module_services)
    async with ToolFleet(settings=settings) as fleet, Redis.from_url(broker, decode_responses=True) as queues:
        call_id, keeper = await with_end(fleet, redis, owner, ECHO), keeper_of(settings)
        for _ in range(2):
            await resume(keeper, settings, seconds=2)
        assert await queues.llen("tools.owls") == 1
        await queues.flushdb()
        await hurry(redis)
        await resume(keeper, settings, seconds=2)
        assert await queues.llen("tools.owls") == 1
        await redis.hset(KEYS.call(call_id), "begun", "1")
        await redis.expire(KEYS.call(call_id), 60)
        await hurry(redis)
        await resume(keeper, settings, seconds=2)

        assert await queues.llen("tools.owls") == 1
        assert not await redis.exists(KEYS.wake(call_id))


async def test_a_call_of_an_end_with_a_key_is_made_in_each_round(
    fleet: ToolFleet, settings: Settings, redis: "Redis", owner: Caller
) -> None:
    """The key keeps one round's call from being made twice; another round's is another call."""
    then = ECHO.model_copy(update={"idempotency_key": "k"})
    await with_end(fleet, redis, owner, then, cron="0 0 1 1 *")
    keeper = keeper_of(settings)
    for _ in range(2):
        await all_due(redis)
        for _ in range(2):
            await resume(keeper, settings, seconds=2)

    assert await redis.llen("tools.owls") == 2
    assert not await redis.exists(KEYS.dead_wakes)


async def test_a_call_of_an_end_whose_key_stands_for_another_is_done(
    fleet: ToolFleet, settings: Settings, redis: "Redis", owner: Caller
) -> None:
    """Its user has made the call already: that is what was wished for."""
    then = ECHO.model_copy(update={"idempotency_key": "k"})
    await fleet.submit(then, owner)
    call_id = await with_end(fleet, redis, owner, then)
    for _ in range(2):
        await resume(keeper_of(settings), settings, seconds=2)

    assert await redis.llen("tools.owls") == 1
    assert not await redis.exists(KEYS.wake(call_id))
    assert not await redis.exists(KEYS.dead_wakes)


@pytest.mark.parametrize("has_loop", [True, False], ids=["loop", "no-loop"])
async def test_after_its_call_a_job_is_looked_at_in_the_same_worker(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, has_loop: bool
) -> None:
    """Where that has a loop, which costs no message; any other worker is asked else."""
    done: list[tuple[str, ...]] = []

    async def evaluate(job_id: str, *, seconds: float) -> None:
        done.append(("here", job_id))

    async def control_soon(_: Any, task: str, *args: str) -> None:
        done.append((task, *args))

    monkeypatch.setattr(redis_publisher, "control_soon", control_soon)
    task: Any = SimpleNamespace(app=SimpleNamespace(evaluate_job=evaluate, settings=settings))
    if has_loop:
        worker_runtime.start(asyncio.get_running_loop(), broker=str(settings.broker))
    try:
        await redis_publisher.evaluate_soon(task, "j")
    finally:
        await worker_runtime.stop()

    assert done == [("here", "j") if has_loop else ("toolfleet.evaluate_job", "j")]
