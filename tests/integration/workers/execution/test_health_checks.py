"""A worker that cannot reach a module: what it leaves to others, until when, and what it does where nobody else is there."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from support.published_call import published
from support.waiting import wait_until
from toolfleet_registry.contracts import PublishedCall
from toolfleet_registry.contracts.attempts import Health
from toolfleet_registry.directory.known_modules import KnownModules
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock
from toolfleet_tasks import worker_runtime
from toolfleet_tasks.ledger.claims import Claim, NotClaimed
from toolfleet_tasks.ledger.ledger import Ledger
from toolfleet_tasks.presence import note_of
from toolfleet_tasks.redis_connection import RedisConnectionClosed
from toolfleet_workers.execution import health_checks
from toolfleet_workers.execution.health_checks import HealthChecks, checks_of

KEYS = Keys()
MODULE, QUEUE = "research", "tools.research"
BREAKER, SLOTS = KEYS.breaker(MODULE), KEYS.slots("fast")
CALL = published()


@dataclass
class Modules:
    """What a worker's runner sees of modules."""

    health: Health = Health.AWAY
    looks: int = 0

    def replica_for(self, call: PublishedCall) -> str:
        del call
        return ""

    async def probe(self, module: str, *, seconds: float) -> Health:
        del module, seconds
        self.looks += 1
        return self.health


@pytest.fixture
def modules() -> Modules:
    return Modules()


@pytest.fixture
async def here(redis: Redis, redis_url: str) -> AsyncIterator[worker_runtime.WorkerRuntime]:
    """The lines of a worker."""
    here = worker_runtime.start(asyncio.get_running_loop(), broker=redis_url)
    yield here
    await worker_runtime.stop()


@pytest.fixture
async def ledger(here: worker_runtime.WorkerRuntime, redis_url: str) -> AsyncIterator[Ledger]:
    ledger = Ledger(here.to_broker(), Settings(redis_url=redis_url), writes_results=True)
    yield ledger
    await ledger.claims.aclose()


@pytest.fixture
def checks(here: worker_runtime.WorkerRuntime, ledger: Ledger, modules: Modules, redis_url: str) -> HealthChecks:
    runner: Any = modules
    return HealthChecks(here, Settings(redis_url=redis_url), runner, ledger)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue from which nobody takes anything for a moment is stuck; a line of two is long."""
    monkeypatch.setattr(health_checks, "_STUCK_SECONDS", 0.2)
    monkeypatch.setattr(health_checks, "_QUEUE_LENGTH", 2)


async def with_another(redis: Redis) -> None:
    """Another worker of the lane lives, which can connect as far as anybody knows."""
    await redis.zadd(SLOTS, {note_of(1, "other:1"): fleet_clock.now()})
    await redis.expire(SLOTS, 60)


async def half_open(redis: Redis, *, tokens: int) -> None:
    """The module has just come back; so many calls may begin."""
    seconds, micros = await redis.time()
    now = seconds * 1000 + micros // 1000
    state = {"failures": 20, "open_until": now, "half_at": now, "let_in_at": now, "pause": 60_000, "tokens": tokens}
    await redis.hset(BREAKER, mapping=dict[Any, Any](state))
    await redis.expire(BREAKER, 60)


def call(number: int, **fields: Any) -> PublishedCall:
    return published(call_id=f"call-{number}", **fields)


async def test_a_worker_that_is_cut_off_leaves_the_queue_until_it_can_connect(
    redis: Redis, here: worker_runtime.WorkerRuntime, checks: HealthChecks, modules: Modules
) -> None:
    """And is told again then; of two that work on a module's calls it keeps itself away, and says nothing of the module."""
    ended: list[bool] = []
    here.resting.on_end.append(lambda: ended.append(True))
    await with_another(redis)
    await checks.missed(CALL)
    await checks.missed(CALL)
    assert QUEUE in here.resting
    put_off = await checks.claim(CALL, deaths=None)
    await wait_until(lambda: modules.looks > 1, "it looks, and again")
    assert QUEUE in here.resting
    assert not await redis.hexists(BREAKER, "open_until")
    modules.health = Health.WELL
    await wait_until(lambda: ended, "it has found the module")

    assert isinstance(put_off, NotClaimed)
    assert put_off.reason == "away"
    assert QUEUE not in here.resting
    assert not await redis.exists(BREAKER)
    assert isinstance(await checks.claim(CALL, deaths=None), Claim)


async def test_an_old_call_is_put_off_by_redis_only(
    redis: Redis, checks: HealthChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After half a minute the ledger is asked, as it may have ended; a worker that cannot connect begins nothing even so."""
    monkeypatch.setattr(health_checks, "_PASS_SECONDS", 7)
    await with_another(redis)
    await checks.missed(CALL)
    old = call(2, published_at=fleet_clock.now() - 31, deadline_at=fleet_clock.now() + 60)
    claims = [await checks.claim(each, deaths=None) for each in (call(1), old)]

    assert [(it.reason, it.rest_seconds) for it in claims if isinstance(it, NotClaimed)] == [("away", 7), ("away", 0.1)]


@pytest.mark.usefixtures("impatient")
async def test_a_worker_goes_on_where_nobody_stands_in_for_it(
    redis: Redis, here: worker_runtime.WorkerRuntime, checks: HealthChecks
) -> None:
    """Others live, and take nothing from the queue: rather than leave calls there it tries them."""
    await with_another(redis)
    await redis.lpush(QUEUE, "a message")
    await redis.expire(QUEUE, 60)
    await checks.missed(CALL)
    assert QUEUE in here.resting
    await wait_until(lambda: QUEUE not in here.resting, "it goes on")

    claim = await checks.claim(CALL, deaths=None)
    assert isinstance(claim, Claim)
    assert claim.granted == "go"


@pytest.mark.usefixtures("impatient")
async def test_a_queue_that_others_take_from_is_left_to_them(
    redis: Redis, here: worker_runtime.WorkerRuntime, checks: HealthChecks, modules: Modules
) -> None:
    """However long: what is next in it changes."""
    await with_another(redis)
    await checks.missed(CALL)
    for number in range(3):
        await redis.lpush(QUEUE, f"message {number}")
        await redis.expire(QUEUE, 60)
        looks = modules.looks
        await wait_until(lambda: modules.looks > looks, "it looks")  # noqa: B023 - awaited
        assert QUEUE in here.resting
        await redis.delete(QUEUE)


async def test_a_redis_that_refuses_a_look_ends_no_watch(
    redis: Redis,
    here: worker_runtime.WorkerRuntime,
    checks: HealthChecks,
    modules: Modules,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is looked at again, and the queue is left alone meanwhile."""
    await with_another(redis)
    result, faults = checks._prober.probe, [ResponseError("LOADING"), TimeoutError()]

    async def fails_at_first(module: str, *, is_unreached: bool) -> Any:
        if faults:
            assert QUEUE in here.resting
            raise faults.pop()
        return await result(module, is_unreached=is_unreached)

    monkeypatch.setattr(checks._prober, "probe", fails_at_first)
    modules.health = Health.WELL
    await checks.missed(CALL)
    await wait_until(lambda: QUEUE not in here.resting, "it has looked at last")
    assert not faults


async def test_a_fault_of_our_own_leaves_no_queue_alone_for_ever(
    here: worker_runtime.WorkerRuntime, checks: HealthChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch ends, and the next call that misses begins another one."""

    async def breaks(module: str, *, is_unreached: bool) -> Any:
        raise AssertionError(module, is_unreached)

    monkeypatch.setattr(checks._prober, "probe", breaks)
    for _ in range(2):
        await checks.missed(CALL)
        assert QUEUE in here.resting
        await wait_until(lambda: QUEUE not in here.resting, "it is consumed again")


async def test_what_was_heard_in_an_earlier_trouble_does_not_count(
    here: worker_runtime.WorkerRuntime, checks: HealthChecks, modules: Modules
) -> None:
    """A module is not ready for half a minute anew each time, also if the worker has last looked on behalf of all."""
    modules.health = Health.NOT_READY
    await checks.missed(CALL)
    await wait_until(lambda: checks._prober._unready_since, "it says that it is not ready")
    modules.health = Health.WELL
    await wait_until(lambda: not checks._watches, "it is well")

    assert QUEUE not in here.resting
    assert checks._prober._unready_since == {}


@pytest.mark.parametrize(("seconds", "rests"), [(1.5, True), (60, False)])
async def test_calls_of_a_module_that_all_leave_alone_wait_in_the_queue_for_a_moment(
    redis: Redis, here: worker_runtime.WorkerRuntime, checks: HealthChecks, seconds: float, rests: bool
) -> None:
    """If it is one only: else they are taken and refused. A miss in the meantime makes it the worker's own trouble as well."""
    open_until = round((await redis.time())[0] * 1000 + seconds * 1000)
    state = {"failures": 20, "open_until": open_until, "pause": 60_000}
    await redis.hset(BREAKER, mapping=dict[Any, Any](state))
    await redis.expire(BREAKER, 60)
    await with_another(redis)
    claim = await checks.claim(CALL, deaths=None)
    assert not isinstance(claim, Claim) or claim.granted == "open"
    watch = checks._watches[MODULE]
    await wait_until(lambda: watch.pause > 0.1, "it has looked")
    assert (QUEUE in here.resting, watch.is_unreached) == (rests, False)
    await checks.missed(CALL)

    assert watch.is_unreached
    assert checks._watches == {MODULE: watch}


async def test_a_worker_that_closes_looks_no_more(
    here: worker_runtime.WorkerRuntime, checks: HealthChecks, modules: Modules, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether its lines close while it looks, or it is told before."""

    async def closed(module: str, *, is_unreached: bool) -> Any:
        assert module == MODULE and is_unreached  # noqa: PT018
        raise RedisConnectionClosed("closed", sent=False)

    with monkeypatch.context() as patch:
        patch.setattr(checks._prober, "probe", closed)
        await checks.missed(CALL)
        await wait_until(lambda: not checks._watches, "it is over")
    await checks.missed(CALL)
    await asyncio.sleep(0)  # it has begun to wait for its first look
    await checks.aclose()

    assert checks._watches == {}
    assert modules.looks == 0


@pytest.mark.usefixtures("impatient")
async def test_calls_of_a_module_that_is_back_wait_for_their_turn(redis: Redis, checks: HealthChecks) -> None:
    """As many as have room here, in the order they came; the others come again; one that is cancelled makes room."""
    await half_open(redis, tokens=0)
    claims = [asyncio.create_task(checks.claim(call(number), deaths=None)) for number in range(2)]
    await wait_until(lambda: checks._queues and checks._queues[MODULE].count == 2, "both wait")
    sent_away = await checks.claim(call(2), deaths=None)
    claims[0].cancel()
    await asyncio.gather(claims[0], return_exceptions=True)
    claims.append(asyncio.create_task(checks.claim(call(3), deaths=None)))
    await redis.hincrby(BREAKER, "tokens", 1)
    first = await claims[1]
    assert not claims[2].done()
    await redis.hincrby(BREAKER, "tokens", 1)
    second = await claims[2]

    assert isinstance(sent_away, NotClaimed)
    assert (sent_away.reason, sent_away.rest_seconds) == ("queued", health_checks._FULL_QUEUE_SECONDS)
    assert all(isinstance(claim, Claim) and claim.granted == "go" for claim in (first, second))
    assert checks._queues == {}


async def test_a_loop_has_one_view_of_its_modules(
    here: worker_runtime.WorkerRuntime, ledger: Ledger, redis_url: str
) -> None:
    """All its calls share what it knows; outside of a worker's pool no call runs."""

    class App:
        settings, runner = Settings(redis_url=redis_url), Modules()
        modules = KnownModules(settings)

    first = checks_of(App, ledger)
    assert isinstance(first, HealthChecks)
    assert checks_of(App, ledger) is first
    await here.aclose()
    await worker_runtime.stop()
    with pytest.raises(RuntimeError, match="in a worker only"):
        checks_of(App, ledger)
