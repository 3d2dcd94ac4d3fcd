"""Calls wait in RabbitMQ, their results come through Redis, and the agent notices no difference."""

import asyncio
import gc
import json
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from redis.asyncio import Redis

from support.fleet import TestBed
from support.module_server import ModuleServer, serve
from support.modules.listed_modules import until_listed
from support.owls import make_module
from support.servers.rabbitmq import RabbitMq
from support.waiting import PATIENCE_SECONDS, wait_until
from support.worker_process import WorkerProcess
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_registry.directory.entries import ModuleEntry
from toolfleet_tasks.client.session import Session
from toolfleet_tasks.operations.changes import ModuleChanges

ECHO = ToolCall(tool_name="owls.echo", arguments={"text": "🦉"})
LONG_NAP = ToolCall(tool_name="owls.nap_once", arguments={"seconds": 30})


@pytest.fixture(scope="module", autouse=True)
def worker(bed: TestBed) -> Iterator[WorkerProcess]:
    with bed.worker() as worker:
        yield worker


async def test_a_result_comes_back(fleet: ToolFleet, owner: Caller, bed: TestBed, broker: RabbitMq) -> None:
    """The call has gone through RabbitMQ, where nothing is left of it, and never lay in Redis."""
    result = await fleet.call(ECHO, owner)
    async with Redis.from_url(bed.redis_url, decode_responses=True) as redis:
        keys = [str(key) async for key in redis.scan_iter()]

    assert (result.success, result.result, result.effect_state) == (True, {"text": "🦉"}, "done")
    assert broker.waiting("tools.owls") == 0
    assert not [key for key in keys if "tools.owls" in key or "unacked" in key or "_kombu" in key]


async def test_calls_run_side_by_side(fleet: ToolFleet, owner: Caller, owls: ModuleServer) -> None:
    """Many calls of one agent are in flight at once, and each is run once."""
    naps = [ToolCall(tool_name="owls.nap", arguments={"seconds": 3, "number": number}) for number in range(200)]
    results = await fleet.call_many(naps, owner)

    assert all(result.success for result in results)
    assert len(owls.calls("nap")) == 200
    assert owls.most_running > 100


@pytest.mark.parametrize(("method", "attempts"), [("fail", 1), ("fail_once", 1), ("turn_away", 2), ("garble_read", 2)])
async def test_a_failed_attempt_is_retried_once(
    fleet: ToolFleet, owner: Caller, owls: ModuleServer, method: str, attempts: int
) -> None:
    """The one retry goes through RabbitMQ, too, where it does no harm."""
    result = await fleet.call(ToolCall(tool_name=f"owls.{method}"), owner)

    assert not result.success
    assert (len(owls.calls(method)), result.audit.attempts) == (attempts, attempts)


async def test_a_running_call_can_be_cancelled(fleet: ToolFleet, owner: Caller, owls: ModuleServer) -> None:
    """`cancel` reaches the worker through RabbitMQ; the module's request is interrupted, and the result says so."""
    handle = await fleet.submit(LONG_NAP, owner)
    await wait_until(lambda: owls.running, "the module has the call")
    assert await handle.status() == "running"
    await handle.cancel()
    result = await handle.result(PATIENCE_SECONDS)

    assert (result.error_code, result.effect_state) == ("cancelled", "unknown")
    await wait_until(lambda: owls.interrupted, "the module has seen the caller hang up")


async def test_a_deadline_may_be_for_ever(fleet: ToolFleet, owner: Caller) -> None:
    """RabbitMQ takes a message that shall live for years."""
    assert (await fleet.call(ECHO, owner, timeout=float("inf"))).success


def test_programs_without_a_loop_have_the_same(bed: TestBed, owner: Caller) -> None:
    """`ToolFleet.sync()` works with RabbitMQ."""
    with ToolFleet.sync(settings=bed.settings) as fleet:
        assert fleet.call(ECHO, owner).success


async def test_a_loop_that_has_ended_is_forgotten(bed: TestBed, owner: Caller) -> None:
    """The publisher's threads and connections end with the session."""
    async with ToolFleet(settings=bed.settings) as fleet:

        async def agent() -> "weakref.ref[Session]":
            assert (await fleet.call(ECHO, owner)).success
            return weakref.ref(fleet._sessions._open[asyncio.get_running_loop()])

        sessions = [await asyncio.to_thread(lambda: asyncio.run(agent())) for _ in range(3)]
        await wait_until(lambda: gc.collect() and sessions[0]() is sessions[1]() is None, "they are forgotten")


async def test_each_call_has_its_audit_line(fleet: ToolFleet, owner: Caller, bed: TestBed) -> None:
    """It is written with the call's end in Redis, whatever carries the calls; also for a refused one."""
    results = [await fleet.call(call, owner) for call in (ECHO, ToolCall(tool_name="owls.nothing"))]
    ids = [result.audit.call_id for result in results if result.audit]
    found, lines = dict[str, str](), list[dict[str, Any]]()
    async with Redis.from_url(bed.redis_url, decode_responses=True) as redis, asyncio.timeout(PATIENCE_SECONDS):
        while len(found) < 2:  # that of the refused one is not waited for
            entries: Any = await redis.xrange("toolfleet:audit")
            written = [json.loads(entry["line"]) for _, entry in entries]
            lines = [line for line in written if line.get("call_id") in ids]  # operators' changes have none
            found = {line["call_id"]: line["outcome"] for line in lines}

    assert [found[call_id] for call_id in ids] == ["success", "refused"]
    assert len(lines) == 2


async def test_a_module_that_is_added_has_a_queue_in_rabbitmq(
    fleet: ToolFleet, owner: Caller, bed: TestBed, broker: RabbitMq
) -> None:
    """The running worker consumes it, and an agent that is running calls it."""
    with serve(make_module("larks")) as larks:
        async with ModuleChanges.of(bed.settings) as changes:
            await changes.add(ModuleEntry(module="larks", url=larks.url))
            await until_listed(fleet, owner, "larks", "owls")
            result = await fleet.call(ToolCall(tool_name="larks.echo", arguments={"a": 1}), owner, timeout=20)
            await changes.remove("larks", drain_seconds=0)

    assert (result.success, result.result) == (True, {"a": 1})
    assert broker.waiting("tools.larks") == 0
