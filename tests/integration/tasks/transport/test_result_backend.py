"""The result backend in a call, over the line: what is stored, and what happens while Redis cannot take it."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest
from celery import Celery, uuid
from celery.app.task import Context
from celery.exceptions import ImproperlyConfigured, TimeLimitExceeded
from celery.result import AsyncResult
from kombu.exceptions import EncodeError
from redis import Redis
from structlog.testing import capture_logs

from support.servers.redis_faults import FaultyRedis
from support.waiting import PATIENCE_SECONDS, wait_until
from toolfleet_registry.settings import Settings
from toolfleet_tasks import redis_connection, worker_runtime
from toolfleet_tasks.app import FleetApp, make_app
from toolfleet_tasks.greenlet_bridge import Bridge
from toolfleet_tasks.results.verifier import ANNOUNCED_AT_MOST
from toolfleet_tasks.transport.result_backend import FleetBackend, FleetSentinelBackend, ResultRefused

T = TypeVar("T")
CALLS = 100
MEBIBYTE = 2**20


@asynccontextmanager
async def worker_app(**settings: Any) -> AsyncGenerator[FleetApp]:
    """The fleet's app as in a worker: with lines, on this loop."""
    worker_runtime.start(asyncio.get_running_loop())
    try:
        yield make_app(Settings(**settings))
    finally:
        await worker_runtime.stop()


@pytest.fixture
async def app(redis_url: str) -> AsyncIterator[FleetApp]:
    async with worker_app(redis_url=redis_url) as app:
        yield app


@pytest.fixture
async def shaky_app(faulty: FaultyRedis) -> AsyncIterator[FleetApp]:
    async with worker_app(redis_url=faulty.url) as app:
        yield app


async def in_call(function: Callable[..., T], *args: Any) -> T:
    """Run Celery's synchronous code as a job of the pool does."""
    return await Bridge(function, *args)


async def store(app: FleetApp, call_id: str, result: Any, state: str = "SUCCESS") -> None:
    await in_call(app.backend.store_result, call_id, result, state)


def stored(redis: Redis, call_id: str) -> dict[str, Any]:
    meta: dict[str, Any] = json.loads(str(redis.get(f"celery-task-meta-{call_id}")))
    return meta


async def loop_goes_on() -> None:
    """Take fifty turns of the loop. One that waited for Redis would take none."""
    for _ in range(50):
        await asyncio.sleep(0)


def test_the_app_has_it() -> None:
    """Whatever the broker is, for one Redis and for sentinels, with the URL that the settings have."""
    one = make_app(Settings(redis_url="redis://ada:hoot%2Fhoot@localhost:1234/5"))
    sentinels = make_app(Settings(redis_url="sentinel://a:1,b:2/3", sentinel_master="owl"))
    rabbit = make_app(Settings(redis_url="redis://localhost", broker_url="amqp://localhost"))

    assert isinstance(one.backend, FleetBackend)
    assert isinstance(rabbit.backend, FleetBackend)
    params: Any = one.backend.connparams
    assert (params["port"], params["db"], params["username"], params["password"]) == (1234, 5, "ada", "hoot/hoot")
    assert isinstance(sentinels.backend, FleetSentinelBackend)
    hosts: Any = sentinels.backend.connparams["hosts"]
    assert [host["host"] for host in hosts] == ["a", "b"]


def test_on_a_unix_socket_it_is_the_fleets_as_well() -> None:
    """With the path and the database of the URL."""
    app = make_app(Settings(redis_url="unix:///run/redis.sock?db=4"))

    assert isinstance(app.backend, FleetBackend)
    params: Any = app.backend.connparams
    assert (params["path"], params["db"]) == ("/run/redis.sock", 4)


@pytest.mark.parametrize(
    "conf", [{"result_serializer": "pickle"}, {"result_compression": "gzip"}, {"result_expires": 0}]
)
def test_what_the_script_could_not_tell_is_refused(conf: dict[str, Any]) -> None:
    """A success must be recognised by its first bytes, and every result must expire."""
    app = make_app(Settings(redis_url="redis://localhost"))
    app.conf.update(conf)

    with pytest.raises(ImproperlyConfigured, match="plain JSON"):
        _ = app.backend


async def test_stock_celery_reads_what_it_stores(app: FleetApp, redis_url: str) -> None:
    """A value, and an exception with its class and arguments."""
    stock: Any = Celery(backend=redis_url, set_as_current=False)
    await store(app, "well", {"owls": [1, None, "ü"]})
    await store(app, "badly", ValueError("no owls"), "FAILURE")

    assert await asyncio.to_thread(AsyncResult("well", app=stock).get, timeout=PATIENCE_SECONDS) == {
        "owls": [1, None, "ü"]
    }
    with pytest.raises(ValueError, match="no owls"):
        await asyncio.to_thread(AsyncResult("badly", app=stock).get, timeout=PATIENCE_SECONDS)
    stock.close()


@pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")  # stock Celery's
async def test_it_stores_the_same_fields_as_stock_celery(app: FleetApp, redis_url: str, redis: Redis) -> None:
    """In the same order, but for the time."""
    stock: Any = Celery(backend=redis_url, set_as_current=False)
    request = Context(group="flock", parent_id="parent")
    for state in ("STARTED", "SUCCESS", "FAILURE", "REVOKED"):
        ours, theirs = uuid(), uuid()
        result = {"pid": 1} if state == "STARTED" else ValueError("x") if state != "SUCCESS" else "x"
        await in_call(app.backend.store_result, ours, result, state, None, request)
        stock.backend.store_result(theirs, result, state, request=request)
        expected, found = stored(redis, theirs), stored(redis, ours)
        for meta in (expected, found):
            meta["task_id"] = ""
            meta["date_done"] = bool(meta["date_done"])
        assert (list(found), found) == (list(expected), expected)
    stock.close()


async def test_a_success_is_never_overwritten(app: FleetApp, redis: Redis) -> None:
    """Neither by a late failure nor by a second start."""
    await store(app, "once", "first")
    for state in ("STARTED", "FAILURE", "REVOKED", "SUCCESS"):
        await store(app, "once", "second", state)

    assert stored(redis, "once")["result"] == "first"


async def test_what_the_ledger_has_stored_is_not_written_again(app: FleetApp, redis: Redis) -> None:
    """It stands there already, in the step that ended the call; a failure of Celery's own is written all the same."""
    request = Context(is_stored=True)
    await in_call(app.backend.store_result, "ledger", "x", "SUCCESS", None, request)
    await in_call(app.backend.store_result, "celery", ValueError("x"), "FAILURE", None, request)

    assert redis.get("celery-task-meta-ledger") is None
    assert stored(redis, "celery")["status"] == "FAILURE"


async def test_results_are_announced_and_starts_are_not(app: FleetApp, redis: Redis) -> None:
    """On the channel with the name of the key; a result over 256 kB by its id only."""
    with redis.pubsub(ignore_subscribe_messages=True) as heard:
        heard.psubscribe("celery-task-meta-*")
        await wait_until(lambda: redis.pubsub_numpat() == 1, "it listens")
        await store(app, "small", {"pid": 1}, "STARTED")
        await store(app, "small", "x" * 10)
        await store(app, "large", "x" * ANNOUNCED_AT_MOST)
        messages = list[Any]()
        while len(messages) < 2:
            messages += filter(None, [heard.get_message(timeout=PATIENCE_SECONDS)])

    small, large = messages
    assert (small["channel"], small["data"]) == ("celery-task-meta-small", redis.get("celery-task-meta-small"))
    assert large["channel"] == "celery-task-meta-large"
    assert json.loads(large["data"]) == {"status": "STORED", "task_id": "large"}
    assert stored(redis, "large")["status"] == "SUCCESS"


async def test_the_key_prefix_is_put_before_key_and_channel(redis_url: str, redis: Redis) -> None:
    """As Celery does, and as the fleet's clients expect it."""
    async with worker_app(redis_url=redis_url, key_prefix="acme") as app:
        await store(app, "a", 1)
        key = app.settings.keys.result("a")
        assert json.loads(str(redis.get(key)))["result"] == 1
        assert 0 < int(redis.ttl(key)) <= app.settings.result_ttl_seconds
        redis.delete(key)


async def test_a_call_reads_over_the_line(app: FleetApp, redis: Redis) -> None:
    """As Celery does before it runs a call that was delivered twice."""
    assert await in_call(lambda: AsyncResult("call", app=app).state) == "PENDING"
    await store(app, "call", 1)

    assert await in_call(lambda: AsyncResult("call", app=app).state) == "SUCCESS"


@pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")  # stock Celery's
def test_outside_of_a_worker_it_is_the_stock_backend(redis_url: str, redis: Redis) -> None:
    """No line, no loop: beat and clients write and read as ever."""
    app = make_app(Settings(redis_url=redis_url))
    app.backend.store_result("plain", 1, "SUCCESS")

    assert (stored(redis, "plain")["result"], AsyncResult("plain", app=app).state) == (1, "SUCCESS")
    app.close()


async def test_what_is_no_json_fails_the_call(app: FleetApp, redis: Redis) -> None:
    """With the error that Celery's tracer turns into a failure."""
    with pytest.raises(EncodeError):
        await store(app, "odd", object())

    assert redis.get("celery-task-meta-odd") is None


async def test_a_frozen_redis_holds_up_nothing_but_the_calls(shaky_app: FleetApp, faulty: FaultyRedis) -> None:
    """A hundred calls wait for it, and end when it answers; the loop goes on meanwhile."""
    await store(shaky_app, "warm", 1)
    with faulty.frozen():
        stores = [asyncio.create_task(store(shaky_app, f"call-{n}", n)) for n in range(CALLS)]
        await loop_goes_on()
        assert not any(task.done() for task in stores)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.gather(*stores)

    assert [stored(faulty.look, f"call-{n}")["result"] for n in range(CALLS)] == list(range(CALLS))


async def test_a_state_is_read_without_its_result(app: FleetApp) -> None:
    """Every worker looks at the state of a call that is revoked; the result may be large."""
    await store(app, "call", "x" * MEBIBYTE)

    assert await Bridge(app.backend.get_state, "call") == "SUCCESS"
    assert await Bridge(app.backend.get_state, "unheard-of") == "PENDING"


async def test_what_nobody_can_wait_for_is_stored_later(shaky_app: FleetApp, faulty: FaultyRedis) -> None:
    """A call that is turned away in a timer of Celery's, outside of any job: the loop goes on, the end is stored."""
    with faulty.frozen():
        shaky_app.backend.store_result("revoked-call", None, "REVOKED")

    await wait_until(lambda: faulty.look.exists("celery-task-meta-revoked-call") == 1, "its end is stored")
    assert stored(faulty.look, "revoked-call")["status"] == "REVOKED"


async def test_a_restart_of_redis_loses_no_result(shaky_app: FleetApp, faulty: FaultyRedis) -> None:
    """A call that was told so before has its result there, and the others wait until Redis is back."""
    stores = [asyncio.create_task(store(shaky_app, f"call-{n}", n)) for n in range(CALLS)]
    await asyncio.wait(stores, return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE_SECONDS)
    with faulty.restarted():
        stores += [asyncio.create_task(store(shaky_app, f"call-{n}", n)) for n in range(CALLS, 2 * CALLS)]
        await loop_goes_on()
        assert not any(task.done() for task in stores[CALLS:])
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.gather(*stores)

    assert [stored(faulty.look, f"call-{n}")["result"] for n in range(2 * CALLS)] == list(range(2 * CALLS))


async def test_a_full_redis_is_waited_for(
    shaky_app: FleetApp, faulty: FaultyRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Out of memory is no answer: the result is stored when there is room again."""
    monkeypatch.setattr(redis_connection, "_PATIENCE_SECONDS", 0.05)
    with faulty.full():
        task = asyncio.create_task(store(shaky_app, "call", 1))
        await wait_until(lambda: faulty.refusals() > 2, "it was refused, again and again")
        assert not task.done()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await task

    assert stored(faulty.look, "call")["status"] == "SUCCESS"


async def test_a_missing_right_is_waited_for(
    shaky_app: FleetApp, faulty: FaultyRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until somebody gives the user of Redis what it lacks: until then the call's effect must not be forgotten."""
    monkeypatch.setattr(redis_connection, "_REPAIR_SECONDS", 0.05)
    faulty.look.execute_command("ACL SETUSER default -set")
    with capture_logs() as logs:
        task = asyncio.create_task(store(shaky_app, "call", 1))
        await wait_until(
            lambda: [entry["event"] for entry in logs].count("result_forbidden") > 2, "it was refused, again and again"
        )
    assert not task.done()
    faulty.look.execute_command("ACL SETUSER default +set")
    async with asyncio.timeout(PATIENCE_SECONDS):
        await task

    assert stored(faulty.look, "call")["status"] == "SUCCESS"


@pytest.fixture
def small_values(shaky_app: FleetApp, faulty: FaultyRedis) -> None:
    """Redis closes the connection on a value over a mebibyte."""
    faulty.look.config_set("proto-max-bulk-len", MEBIBYTE)


@pytest.mark.usefixtures("small_values")
async def test_a_result_too_large_for_redis_is_refused(shaky_app: FleetApp, faulty: FaultyRedis) -> None:
    """With one sentence, which Celery stores as the call's failure; what else is under way is stored."""
    big = asyncio.create_task(store(shaky_app, "big", "x" * 2 * MEBIBYTE))
    others = [asyncio.create_task(store(shaky_app, f"call-{n}", n)) for n in range(CALLS)]
    async with asyncio.timeout(2 * PATIENCE_SECONDS):
        with pytest.raises(ResultRefused, match="Redis refuses to store the result"):
            await big
        await asyncio.gather(*others)

    assert {stored(faulty.look, f"call-{n}")["status"] for n in range(CALLS)} == {"SUCCESS"}


@pytest.mark.usefixtures("small_values")
async def test_a_failure_too_large_for_redis_is_shortened(shaky_app: FleetApp, faulty: FaultyRedis) -> None:
    """The call ends with a failure that says why."""
    async with asyncio.timeout(2 * PATIENCE_SECONDS):
        await store(shaky_app, "big", ValueError("x" * 2 * MEBIBYTE), "FAILURE")

    meta = stored(faulty.look, "big")
    assert (meta["status"], meta["result"]["exc_type"]) == ("FAILURE", "ResultRefused")


async def test_a_key_of_another_kind_holds_nobody_up(app: FleetApp, redis: Redis) -> None:
    """No call starts whose state cannot be stored, and a failure that cannot is logged."""
    redis.rpush("celery-task-meta-taken", "somebody's")
    with pytest.raises(ResultRefused):
        await store(app, "taken", {"pid": 1}, "STARTED")
    await store(app, "taken", TimeLimitExceeded(1), "FAILURE")
    redis.delete("celery-task-meta-taken")
