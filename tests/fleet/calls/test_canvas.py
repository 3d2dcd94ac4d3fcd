"""Celery's canvas with the fleet's signatures: what follows what, once each, whatever dies or arrives twice."""

import asyncio
import base64
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from aiohttp import web
from celery import chain, chord, group
from celery.canvas import Signature
from redis import Redis as SyncRedis
from redis.asyncio import Redis

from support.fleet import TestBed
from support.module_server import ModuleServer, Request, serve
from support.owls import make_module
from support.waiting import wait_until
from support.worker_process import WorkerProcess
from toolfleet import Caller, CallRefused, ToolCall, ToolFleet

KEY = "a secret of more than thirty-two characters"
QUEUE = "tools.owls"
IS_FAST = os.environ.get("TOOLFLEET_FAST_TRANSPORT") != "0"
SIGNED = {"signing_key": KEY, **({"visibility_timeout": 3} if IS_FAST else {})}

needs_fast = pytest.mark.skipif(not IS_FAST, reason="a stock transport gives a lost worker's messages back after hours")


@pytest.fixture(scope="module")
def module() -> Iterator[ModuleServer]:
    """The owls, with a journal: a tool that writes a line, once, and one that is busy at first."""
    owls = make_module()

    async def write(request: Request) -> dict[str, Any]:
        await asyncio.sleep(request["arguments"].get("seconds", 0))
        return {"success": True, "result": request["arguments"]["line"]}

    async def write_late(request: Request) -> web.StreamResponse | dict[str, Any]:
        if len(owls.calls("write_late")) == 1:
            return web.Response(status=503, headers={"Retry-After": "0"})
        return {"success": True, "result": request["arguments"]["line"]}

    owls.add("write", write, effect="once")
    owls.add("write_late", write_late, effect="once")
    owls.add("write_daily", write, effect="once", daily_limit=1)
    with serve(owls) as served:
        yield served


@pytest.fixture(scope="module")
def signed(module: ModuleServer, redis_process_url: str, tmp_path_factory: pytest.TempPathFactory) -> TestBed:
    return TestBed(redis_process_url, (module,), tmp_path_factory.mktemp("logs"), SIGNED)


@pytest.fixture
async def agent(signed: TestBed, redis_url: str, module: ModuleServer) -> AsyncIterator[ToolFleet]:
    """An agent, and no worker yet, on an empty Redis."""
    assert redis_url == signed.redis_url
    module.forget()
    module.memory = None
    async with ToolFleet(settings=signed.settings) as fleet:
        yield fleet


@pytest.fixture
def worker(signed: TestBed, agent: ToolFleet) -> Iterator[WorkerProcess]:
    del agent  # it finds Redis empty
    with signed.worker() as worker:
        yield worker


def journal(module: ModuleServer) -> list[str]:
    """What was executed, in the order in which that began."""
    return [str(request["arguments"]["line"]) for request in module.requests]


Link = Callable[..., Any]


@pytest.fixture
def link(agent: ToolFleet, owner: Caller) -> Link:
    """Makes the signature of a call that writes a line."""

    async def make(line: str, method: str = "write", **arguments: Any) -> Signature:
        call = ToolCall(tool_name=f"owls.{method}", arguments={"line": line, **arguments})
        return await agent.canvas.signature(call, owner, timeout=60)

    return make


async def begun(canvas: Any) -> Any:
    """Celery publishes by blocking."""
    return await asyncio.to_thread(canvas.apply_async)


@pytest.mark.usual
async def test_a_group_runs_each_of_its_calls_once(
    agent: ToolFleet, worker: WorkerProcess, link: Link, module: ModuleServer
) -> None:
    """Twenty calls side by side are twenty executions, and their results can be read one by one."""
    links = [await link(f"line {i}") for i in range(20)]
    await begun(group(links))
    results = [await agent.canvas.result_of(one, timeout=20) for one in links]

    assert [result.result for result in results if result] == [f"line {i}" for i in range(20)]
    assert sorted(journal(module)) == sorted(f"line {i}" for i in range(20))


@pytest.mark.usual
async def test_a_chain_goes_on_in_its_order(
    agent: ToolFleet, worker: WorkerProcess, link: Link, module: ModuleServer
) -> None:
    """Each link begins after the one before it, and gets nothing of its result."""
    links = [await link("one", seconds=0.2), await link("two"), await link("three")]
    ended = await begun(chain(*links))
    result = await agent.canvas.result_of(ended, timeout=20)

    assert result is not None
    assert (result.result, journal(module)) == ("three", ["one", "two", "three"])


async def test_a_chords_body_is_called_once_after_its_header(
    agent: ToolFleet, worker: WorkerProcess, link: Link, module: ModuleServer
) -> None:
    """When all of the header have ended, and with its own arguments."""
    header, body = [await link(f"part {i}", seconds=0.05 * i) for i in range(6)], await link("whole")
    ended = await begun(chord(header, body))
    result = await agent.canvas.result_of(ended, timeout=20)

    assert result is not None
    assert result.result == "whole"
    assert journal(module)[-1] == "whole"
    assert sorted(journal(module)) == sorted([f"part {i}" for i in range(6)] + ["whole"])


async def test_a_retry_does_not_lose_what_follows(
    agent: ToolFleet, worker: WorkerProcess, link: Link, module: ModuleServer
) -> None:
    """A link that is turned away and tried again is followed by the next one, also as a part of a chord."""
    ended = await begun(chain(await link("one", "write_late"), await link("two")))
    assert await agent.canvas.result_of(ended, timeout=20)
    assert journal(module) == ["one", "one", "two"]

    module.forget()
    ended = await begun(chord([await link("a", "write_late"), await link("b")], await link("c")))
    assert await agent.canvas.result_of(ended, timeout=20)
    assert (sorted(journal(module)), journal(module)[-1]) == (["a", "a", "b", "c"], "c")


async def test_nothing_follows_a_call_that_has_failed(
    agent: ToolFleet, worker: WorkerProcess, link: Link, module: ModuleServer
) -> None:
    """Its own result is there to read; those of what would have followed say that they were not made."""
    first, second, third = await link("one", "fail"), await link("two"), await link("three")
    await begun(chain(first, second, third))
    results = [await agent.canvas.result_of(one, timeout=20) for one in (first, second, third)]

    assert [(result.error_code, result.effect_state) for result in results if result] == [
        ("module_error", "unknown"),
        ("cancelled", "none"),
        ("cancelled", "none"),
    ]
    part, body = await link("part", "fail"), await link("whole")
    await begun(chord([part, await link("other")], body))
    result = await agent.canvas.result_of(body, timeout=20)
    assert result is not None
    assert (result.error_code, result.effect_state) == ("cancelled", "none")
    assert "whole" not in journal(module)
    assert "two" not in journal(module)


async def test_a_message_that_arrives_twice_goes_on_once(
    agent: ToolFleet, signed: TestBed, link: Link, module: ModuleServer, redis: Redis
) -> None:
    """Copies of a chain's first message, also a late one, execute nothing anew."""
    ended = await begun(chain(await link("one", seconds=0.5), await link("two"), await link("three")))
    (message,) = await redis.lrange(QUEUE, 0, -1)
    await redis.lpush(QUEUE, renamed(message))
    with signed.worker():
        assert await agent.canvas.result_of(ended, timeout=20)
        await redis.lpush(QUEUE, renamed(message))
        last = await link("last")
        await wait_until_empty(signed)
        await begun(last)
        assert await agent.canvas.result_of(last, timeout=20)

    assert journal(module) == ["one", "two", "three", "last"]


async def test_a_link_that_has_ended_unfollowed_is_followed_when_it_comes_again(
    agent: ToolFleet, signed: TestBed, link: Link, module: ModuleServer, redis: Redis
) -> None:
    """As after a worker's death between the result and what follows: the next delivery finds it done, and goes on."""
    ended = await begun(chain(await link("one"), await link("two")))
    (message,) = await redis.lrange(QUEUE, 0, -1)
    await redis.delete(QUEUE)
    await redis.lpush(QUEUE, unfollowed(message))
    with signed.worker():
        await wait_until(lambda: journal(module) == ["one"], "the first link has run")
        await wait_until_empty(signed)
        await redis.lpush(QUEUE, renamed(message))
        result = await agent.canvas.result_of(ended, timeout=20)

    assert result is not None
    assert (result.result, journal(module)) == ("two", ["one", "two"])


async def test_a_chords_part_that_comes_again_counts_once(
    agent: ToolFleet, signed: TestBed, link: Link, module: ModuleServer, redis: Redis
) -> None:
    """Two copies of one part do not stand for two parts."""
    ended = await begun(chord([await link("a"), await link("b", seconds=1.5)], await link("c")))
    messages = await redis.lrange(QUEUE, 0, -1)
    await redis.lpush(QUEUE, *(renamed(message) for message in messages))
    with signed.worker():
        assert await agent.canvas.result_of(ended, timeout=20)
        await redis.lpush(QUEUE, *(renamed(message) for message in messages))
        await wait_until_empty(signed)

    assert (sorted(journal(module)), journal(module)[-1]) == (["a", "b", "c"], "c")


@needs_fast
async def test_a_chord_survives_the_worker_that_was_to_call_its_body(
    agent: ToolFleet, signed: TestBed, link: Link, module: ModuleServer, redis: Redis
) -> None:
    """It had claimed that, and died: whoever has a part of the header waits for the claim's end, and calls the body."""
    ended = await begun(chord([await link("a"), await link("b")], await link("c")))
    message = json.loads((await redis.lrange(QUEUE, 0, 0))[0])
    claim = f"celery-taskset-meta-{message['headers']['group']}.c"
    await redis.set(claim, "a dead worker's", ex=60)
    with signed.worker():
        await wait_until(lambda: sorted(journal(module)) == ["a", "b"], "the header has run")
        released_at = time.monotonic() + 1.5
        await redis.pexpire(claim, 1500)
        result = await agent.canvas.result_of(ended, timeout=20)

    assert time.monotonic() > released_at - 0.1  # at once, had the claim another name by now
    assert result is not None
    assert (result.result, sorted(journal(module))) == ("c", ["a", "b", "c"])


@needs_fast
async def test_a_chain_survives_the_worker_that_ran_it(
    agent: ToolFleet, signed: TestBed, link: Link, module: ModuleServer
) -> None:
    """Killed in the middle of the second link: the module says what has become of that, and another worker goes on."""
    links = [await link("one"), await link("two", seconds=50), await link("three")]
    module.memory = lambda _: {"state": "done", "success": True, "result": "two"}
    ended = await begun(chain(*links))
    with signed.worker() as worker:
        await wait_until(lambda: len(module.requests) == 2, "the second link has begun")
        worker.send_signal(signal.SIGKILL)
        with signed.worker():
            result = await agent.canvas.result_of(ended, timeout=40)

    assert result is not None
    assert (result.result, journal(module)) == ("three", ["one", "two", "three"])


@needs_fast
async def test_a_chain_survives_redis_being_silent(
    agent: ToolFleet, signed: TestBed, link: Link, module: ModuleServer, redis: Redis
) -> None:
    """What follows is published when Redis answers again, and the chord's count is not lost."""
    parts = [await link(f"part {i}", seconds=0.3) for i in range(3)]
    ended = await begun(chord(parts, await link("whole")))
    with signed.worker() as worker:
        await wait_until(lambda: len(module.requests) == 3, "the parts have begun")
        pid = int((await redis.info("server"))["process_id"])
        os.kill(pid, signal.SIGSTOP)
        try:
            await wait_until(lambda: module.running == 0, "the parts have ended")
        finally:
            os.kill(pid, signal.SIGCONT)
        assert await agent.canvas.result_of(parts[0], timeout=20)
        with SyncRedis.from_url(signed.redis_url) as client:
            worker.cut_connections(client)
        result = await agent.canvas.result_of(ended, timeout=30)

    assert result is not None
    assert (result.result, sorted(journal(module))) == ("whole", ["part 0", "part 1", "part 2", "whole"])


async def test_a_chain_goes_on_from_lane_to_lane(
    signed: TestBed, redis_url: str, module: ModuleServer, owner: Caller
) -> None:
    """A worker publishes a link of a module whose queue it does not take from."""
    assert redis_url == signed.redis_url
    module.forget()
    with serve(make_module("hawks")) as hawks:
        more = {**SIGNED, "slow_modules": frozenset({"hawks"})}
        bed = TestBed(signed.redis_url, (module, hawks), signed.folder, more)
        async with ToolFleet(settings=bed.settings) as agent:
            calls = [
                ToolCall(tool_name=name, arguments={"line": name}) for name in ("owls.echo", "hawks.echo", "owls.write")
            ]
            links = [await agent.canvas.signature(call, owner) for call in calls]
            ended = await begun(chain(*links))
            with bed.worker(lane="fast"), bed.worker(lane="slow"):
                result = await agent.canvas.result_of(ended, timeout=20)

    assert result is not None
    assert (result.result, len(hawks.requests)) == ("owls.write", 1)


async def test_a_call_that_may_not_be_made_is_no_signature(agent: ToolFleet, link: Link) -> None:
    """It is judged when the signature is made, with the result that a call would have had."""
    call = ToolCall(tool_name="owls.admin_only")
    with pytest.raises(CallRefused, match="needs 'admin'") as refused:
        await agent.canvas.signature(call, Caller(permission="user", allowed_modules="*"))
    assert refused.value.result.error_code == "permission_denied"

    with pytest.raises(ValueError, match="no idempotency key"):
        await agent.canvas.signature(ToolCall(tool_name="owls.echo", idempotency_key="a"), Caller(allowed_modules="*"))


@pytest.mark.usefixtures("same_day")
async def test_a_limit_holds_for_a_signature(
    agent: ToolFleet, worker: WorkerProcess, link: Link, module: ModuleServer
) -> None:
    """It is taken by the worker that begins the call: of two calls one is over a daily limit of one."""
    links = [await link("a", "write_daily"), await link("b", "write_daily")]
    await begun(group(links))
    results = [await agent.canvas.result_of(one, timeout=20) for one in links]

    assert sorted(str(result.error_code) for result in results if result) == ["None", "rate_limited"]
    assert len(module.requests) == 1


async def test_a_link_that_was_changed_on_its_way_is_refused(
    agent: ToolFleet, worker: WorkerProcess, link: Link, module: ModuleServer
) -> None:
    """Nothing of it is executed, and nothing follows it."""
    first, second = await link("one"), await link("two")
    first.args = (str(first.args[0]).replace('"one"', '"won"'),)
    await begun(chain(first, second))
    results = [await agent.canvas.result_of(one, timeout=20) for one in (first, second)]

    assert [result.success for result in results if result] == [False, False]
    assert module.requests == []


async def wait_until_empty(bed: TestBed) -> None:
    """Nothing waits, and no worker holds anything."""
    with SyncRedis.from_url(bed.redis_url) as redis:
        await wait_until(lambda: redis.llen(QUEUE) == 0 == redis.hlen("unacked"), "the queue is empty")


def renamed(message: bytes | str) -> str:
    """A copy of a message, as another delivery of it."""
    copy = json.loads(message)
    copy["properties"]["delivery_tag"] += "-again"
    return json.dumps(copy)


def unfollowed(message: bytes | str) -> str:
    """The same call by itself."""
    copy = json.loads(message)
    args, kwargs, _ = json.loads(base64.b64decode(copy["body"]))
    none = dict.fromkeys(("callbacks", "errbacks", "chain", "chord"))
    copy["body"] = base64.b64encode(json.dumps([args, kwargs, none]).encode()).decode()
    return json.dumps(copy)
