"""Getting a call into its queue: once, whatever happens to the connection, or told why not, with no worker but the test."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from typing import Any
from urllib.parse import urlsplit

import pytest
from redis.asyncio import Redis

from support.module_server import ModuleServer
from support.programs.closed_port import closed_port
from support.servers.redis_faults import FaultyRedis
from support.streams.tcp_proxy import TcpProxy, tcp_proxy
from support.waiting import PATIENCE_SECONDS, wait_until
from support.workers.hand_worker import HandWorker, hand_worker
from toolfleet import Caller, ToolCall, ToolFleet, ToolResult
from toolfleet_registry.settings import Settings
from toolfleet_tasks.calls import dispatcher
from toolfleet_tasks.client.session import Session

ADA = Caller(user_id="ada", permission="owner", allowed_modules="*")
ECHO = ToolCall(tool_name="owls.echo", arguments={"n": 1})
KEYED = ToolCall(tool_name="owls.echo", arguments={"n": 1}, idempotency_key="k")
WRITES = ("READONLY", "OOM", "NOREPLICAS")


@pytest.fixture(params=["here", "elsewhere"])
def settings(faulty: FaultyRedis, owls: ModuleServer, request: pytest.FixtureRequest) -> Settings:
    """Of a fleet whose queues are where its results are, or in another database."""
    broker = None if request.param == "here" else f"{faulty.url.rpartition('/')[0]}/1"
    return Settings(redis_url=faulty.url, broker_url=broker, module_services={"owls": owls.url})


@pytest.fixture
def here(faulty: FaultyRedis, owls: ModuleServer) -> Settings:
    return Settings(redis_url=faulty.url, module_services={"owls": owls.url})


@pytest.fixture
async def worker(faulty: FaultyRedis) -> AsyncIterator[HandWorker]:
    async with hand_worker(Settings(redis_url=faulty.url)) as worker:
        yield worker


@pytest.fixture
async def taker(settings: Settings) -> AsyncIterator[HandWorker]:
    """The worker of a fleet whose queues may be elsewhere."""
    async with hand_worker(settings) as taker:
        yield taker


def session_of(fleet: ToolFleet) -> Session:
    session = fleet._sessions.here()
    assert session is not None
    return session


@contextlib.asynccontextmanager
async def warm(settings: Settings) -> AsyncGenerator[ToolFleet]:
    """A fleet whose Redis knows the scripts."""
    async with ToolFleet(settings=settings) as fleet:
        await fleet.modules.refresh()
        handle = await fleet.submit(ECHO, ADA)
        await handle.cancel()
        async with Redis.from_url(str(settings.redis_url)) as redis:
            await redis.delete("tools.owls")
        yield fleet


async def finished(worker: HandWorker, call: "asyncio.Task[ToolResult]") -> ToolResult:
    """The result of a call that waits in its queue, once, and is run."""
    await worker.finish(await worker.take())
    result = await asyncio.wait_for(call, PATIENCE_SECONDS)
    assert await worker.queued() == []
    return result


def scripts_run(faulty: FaultyRedis) -> int:
    stats = faulty.look.info("commandstats")
    return sum(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"] for command in ("eval", "evalsha"))


def abort(session: Session) -> None:
    """Cut the agent's connection, with whatever was sent over it and not answered."""
    link = session._connection._protocol
    assert link is not None
    link._transport.abort()


@pytest.mark.parametrize("call", [ECHO, KEYED])
async def test_a_call_that_got_in_unheard_is_published_once(
    here: Settings, faulty: FaultyRedis, worker: HandWorker, monkeypatch: pytest.MonkeyPatch, call: ToolCall
) -> None:
    """Redis has executed the script, and its answer is lost with the connection: the next one finds the call let in."""
    async with warm(here) as fleet:
        session, before = session_of(fleet), scripts_run(faulty)
        monkeypatch.setattr(session._connection._protocol, "_take", lambda frame: None)  # nothing is heard any more
        calling = asyncio.create_task(fleet.call(call, ADA, timeout=20))
        await worker.until_queued()
        abort(session)
        await wait_until(lambda: scripts_run(faulty) >= before + 2, "it is published again")
        assert (await finished(worker, calling)).success


@contextlib.asynccontextmanager
async def through(proxy: TcpProxy, settings: Settings) -> AsyncGenerator[ToolFleet]:
    """A fleet whose connections lead through a proxy."""
    url = f"redis://127.0.0.1:{proxy.port}/0"
    async with warm(settings.model_copy(update={"redis_url": url})) as fleet:
        yield fleet


async def test_a_call_that_did_not_get_in_is_published_again(here: Settings, worker: HandWorker) -> None:
    """It was sent, and Redis has never read it; the next connection brings it, long before its deadline."""
    with tcp_proxy(urlsplit(str(here.redis_url)).port or 0) as proxy:
        async with through(proxy, here) as fleet:
            session = session_of(fleet)
            proxy.go_deaf()
            calling = asyncio.create_task(fleet.call(ECHO, ADA, timeout=20))
            await wait_until(
                lambda: session._connection._protocol and session._connection._protocol._pending, "the call is sent"
            )
            abort(session)
            assert (await finished(worker, calling)).success


async def test_a_repeat_that_finds_another_call_under_its_key_ends_as_that_one(
    here: Settings, worker: HandWorker
) -> None:
    """Its own first message was never read; meanwhile another agent's call has the key."""
    with tcp_proxy(urlsplit(str(here.redis_url)).port or 0) as proxy:
        async with through(proxy, here) as fleet, warm(here) as other:
            session = session_of(fleet)
            proxy.go_deaf()
            repeat = asyncio.create_task(fleet.call(KEYED, ADA, timeout=20))
            await wait_until(
                lambda: session._connection._protocol and session._connection._protocol._pending, "the call is sent"
            )
            first = asyncio.create_task(other.call(KEYED, ADA, timeout=20))
            await worker.until_queued()
            abort(session)
            results = [await finished(worker, first), await asyncio.wait_for(repeat, PATIENCE_SECONDS)]

    assert [result.success for result in results] == [True, True]
    assert results[0].result == results[1].result


async def test_what_a_frozen_redis_reads_late_is_one_message(
    here: Settings, faulty: FaultyRedis, worker: HandWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sent several times over one connection, as no answer came in time: one message; and the caller has its result."""
    monkeypatch.setattr(dispatcher, "_PUBLISH_SECONDS", 0.1)
    async with warm(here) as fleet:
        session = session_of(fleet)
        with faulty.frozen():
            handle = await asyncio.wait_for(fleet.submit(ECHO, ADA, timeout=60), PATIENCE_SECONDS)
            await wait_until(lambda: len(session._connection._protocol._pending) >= 3, "it was sent again")  # type: ignore[union-attr] # it is there
        calling = asyncio.create_task(handle.result())
        assert (await finished(worker, calling)).success


async def test_what_is_refused_when_it_is_published_again_ends_so(here: Settings, faulty: FaultyRedis) -> None:
    """It was never let in, and will not be: what Redis may still read of it finds its end."""
    settings = here.model_copy(update={"backlog_limit": 1})
    with tcp_proxy(urlsplit(faulty.url).port or 0) as proxy:
        async with through(proxy, settings) as fleet:
            session = session_of(fleet)
            proxy.go_deaf()
            submitting = asyncio.create_task(fleet.submit(ECHO, ADA, timeout=20))
            await wait_until(
                lambda: session._connection._protocol and session._connection._protocol._pending, "the call is sent"
            )
            faulty.look.lpush("tools.owls", "another's")
            abort(session)
            handle = await asyncio.wait_for(submitting, PATIENCE_SECONDS)
            result = await handle.result(PATIENCE_SECONDS)
    state = faulty.look.hget(settings.keys.call(handle.id), "state")

    assert (result.error_code, result.effect_state, result.retryable) == ("busy", "none", True)
    assert (state, faulty.look.llen("tools.owls")) == ("done", 1)


async def test_who_is_cancelled_before_its_turn_leaves_nothing(
    settings: Settings, faulty: FaultyRedis, taker: HandWorker
) -> None:
    """Nothing was published, nothing is counted, and nobody waits for it."""
    async with ToolFleet(settings=settings) as fleet:
        await fleet.modules.refresh()
        session = session_of(fleet)
        window = session._dispatcher._back.window
        taken = sum(window.take() for _ in range(1000))
        calls: list[asyncio.Task[Any]] = [asyncio.create_task(fleet.call(ECHO, ADA)) for _ in range(5)]
        calls += [asyncio.create_task(fleet.submit(KEYED, ADA)) for _ in range(5)]
        await wait_until(lambda: session._dispatcher._back.crowd.total == 10, "all wait")
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        for _ in range(taken):
            window.leave()
        assert (session._dispatcher._back.crowd.total, len(session._listener._expected), window._free) == (0, 0, taken)

    assert await taker.queued() == []
    assert faulty.look.keys("toolfleet:share:*") + faulty.look.keys("toolfleet:intent:*") == []


async def test_a_crowd_in_an_agent_is_told_at_once(here: Settings, worker: HandWorker) -> None:
    """More than may wait are `busy`; those that wait are served."""
    settings = here.model_copy(update={"calls_per_caller": 1})
    async with warm(settings) as fleet:
        session_of(fleet)._dispatcher._back.crowd.limit = 4
        calls = [asyncio.create_task(fleet.call(ECHO, ADA, timeout=30)) for _ in range(9)]
        while sum(call.done() for call in calls) < 6:
            await asyncio.wait([call for call in calls if not call.done()], return_when=asyncio.FIRST_COMPLETED)
        busy = [call.result() for call in calls if call.done()]
        for _ in range(3):
            await worker.finish(await worker.take())
        results = await asyncio.wait_for(asyncio.gather(*calls), PATIENCE_SECONDS)

    assert {(result.error_code, result.effect_state, result.retry_after_seconds) for result in busy} == {
        ("busy", "none", 1.0)
    }
    assert sum(result.success for result in results) == 3


def unavailable(result: ToolResult) -> bool:
    assert (result.error_code, result.effect_state, result.retryable) == ("fleet_unavailable", "none", True), result
    assert result.hint
    return result.retry_after_seconds is not None and result.retry_after_seconds > 0


@contextlib.contextmanager
def taking_nothing(faulty: FaultyRedis, how: str) -> Generator[None]:
    """A Redis that reads and does not write."""
    if how == "READONLY":
        faulty.look.replicaof("127.0.0.1", closed_port())
    elif how == "OOM":
        faulty.look.config_set("maxmemory", 1)
    else:
        faulty.look.config_set("min-replicas-to-write", 1)
    try:
        yield
    finally:
        faulty.look.replicaof("NO", "ONE")
        faulty.look.config_set("maxmemory", 0)
        faulty.look.config_set("min-replicas-to-write", 0)


@pytest.mark.parametrize("how", WRITES)
async def test_a_redis_that_takes_nothing_is_named(settings: Settings, faulty: FaultyRedis, how: str) -> None:
    """The call surely did nothing, and the result says when to come back; once Redis is well, calls get in again."""
    async with ToolFleet(settings=settings) as fleet:
        await fleet.modules.refresh()
        session_of(fleet)._dispatcher._back.patience_seconds = 1
        await (await fleet.submit(ECHO, ADA)).cancel()
        with taking_nothing(faulty, how):
            results = [await asyncio.wait_for(fleet.call(KEYED, ADA, timeout=10), PATIENCE_SECONDS) for _ in range(2)]
        handle = await asyncio.wait_for(fleet.submit(KEYED, ADA, timeout=20), PATIENCE_SECONDS)
        assert await handle.status() == "queued"

    assert all(unavailable(result) for result in results)
    assert any(word in str(results[0].error) for word in (how, "no connection", "does not answer"))


async def test_a_redis_that_is_away_is_waited_for(settings: Settings, faulty: FaultyRedis, taker: HandWorker) -> None:
    """Within the deadline a call is published when Redis is back; it is told `fleet_unavailable` when patience ends before."""
    async with ToolFleet(settings=settings) as fleet:
        await fleet.modules.refresh()
        session = session_of(fleet)
        with faulty.restarted():
            await wait_until(lambda: not session._connection.is_connected, "that is known")
            late = await asyncio.wait_for(fleet.call(ECHO, ADA, timeout=0.5), PATIENCE_SECONDS)
            calling = asyncio.create_task(fleet.call(ECHO, ADA, timeout=40))
            await wait_until(lambda: session._dispatcher._back.crowd.total, "it waits")
        await taker.finish(await taker.take())
        assert (await asyncio.wait_for(calling, 2 * PATIENCE_SECONDS)).success

    assert unavailable(late)
