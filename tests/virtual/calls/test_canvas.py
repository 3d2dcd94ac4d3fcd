"""Celery's canvas with the fleet's signatures: what follows what, once each, whatever dies or arrives twice. `tests/fleet/calls` has the rest."""

import asyncio
import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web
from celery import chain, chord, group
from celery.canvas import Signature

from bed import clock
from bed.fleet import Bed, Worker, until
from support.fleet import SIGNING_KEY
from support.module_server import ModuleServer, Request
from support.owls import make_module
from toolfleet import Caller, CallRefused, ToolCall, ToolFleet

QUEUE = "tools.owls"


@pytest.fixture
def module() -> ModuleServer:
    """The owls, with a journal: a tool that writes a line, once, and one that is busy at first."""
    owls = make_module()

    async def write(request: Request) -> dict[str, Any]:
        await asyncio.sleep(request["arguments"].get("seconds", 0))
        return {"success": True, "result": request["arguments"]["line"]}

    async def write_late(request: Request) -> web.StreamResponse | dict[str, Any]:
        if len(owls.calls("write_late")) == 1:
            return web.Response(status=503, headers={"Retry-After": "10"})
        return {"success": True, "result": request["arguments"]["line"]}

    owls.add("write", write, effect="once")
    owls.add("write_late", write_late, effect="once")
    owls.add("write_daily", write, effect="once", daily_limit=1)
    return owls


@pytest.fixture
async def agent(bed: Bed, module: ModuleServer) -> ToolFleet:
    """An agent, and no worker yet."""
    bed.given["signing_key"] = SIGNING_KEY
    await bed.serve(module)
    return await bed.agent()


@pytest.fixture
async def worker(bed: Bed, agent: ToolFleet) -> Worker:
    del agent  # it has served the module
    return await bed.worker()


def journal(module: ModuleServer) -> list[str]:
    """What was executed, in the order in which that began."""
    return [str(request["arguments"]["line"]) for request in module.requests]


Link = Callable[..., Any]


@pytest.fixture
def link(agent: ToolFleet, owner: Caller) -> Link:
    """Makes the signature of a call that writes a line."""

    async def make(line: str, method: str = "write", **arguments: Any) -> Signature:
        call = ToolCall(tool_name=f"owls.{method}", arguments={"line": line, **arguments})
        return await agent.canvas.signature(call, owner, timeout=600)

    return make


async def begun(canvas: Any) -> Any:
    """Celery publishes by blocking."""
    return await asyncio.to_thread(canvas.apply_async)


async def test_a_retry_does_not_lose_what_follows(
    agent: ToolFleet, worker: Worker, link: Link, module: ModuleServer
) -> None:
    """A link that is turned away and tried again is followed by the next one, also as a part of a chord."""
    ended = await begun(chain(await link("one", "write_late"), await link("two")))
    assert await agent.canvas.result_of(ended, timeout=600)
    assert journal(module) == ["one", "one", "two"]

    module.forget()
    ended = await begun(chord([await link("a", "write_late"), await link("b")], await link("c")))
    assert await agent.canvas.result_of(ended, timeout=600)
    assert (sorted(journal(module)), journal(module)[-1]) == (["a", "a", "b", "c"], "c")


async def test_a_message_that_arrives_twice_goes_on_once(
    bed: Bed, agent: ToolFleet, link: Link, module: ModuleServer
) -> None:
    """Copies of a chain's first message, also a late one, execute nothing anew."""
    ended = await begun(chain(await link("one", seconds=0.5), await link("two"), await link("three")))
    (message,) = bed.ask("LRANGE", QUEUE, 0, -1)
    bed.ask("LPUSH", QUEUE, renamed(message))
    await bed.worker()
    assert await agent.canvas.result_of(ended, timeout=600)
    bed.ask("LPUSH", QUEUE, renamed(message))
    last = await link("last")
    await all_done(bed)
    await begun(last)
    assert await agent.canvas.result_of(last, timeout=600)

    assert journal(module) == ["one", "two", "three", "last"]


async def test_a_link_that_has_ended_unfollowed_is_followed_when_it_comes_again(
    bed: Bed, agent: ToolFleet, link: Link, module: ModuleServer
) -> None:
    """As after a worker's death between the result and what follows: the next delivery finds it done, and goes on."""
    ended = await begun(chain(await link("one"), await link("two")))
    (message,) = bed.ask("LRANGE", QUEUE, 0, -1)
    bed.ask("DEL", QUEUE)
    bed.ask("LPUSH", QUEUE, unfollowed(message))
    await bed.worker()
    await until(lambda: journal(module) == ["one"], "the first link has run")
    await all_done(bed)
    bed.ask("LPUSH", QUEUE, renamed(message))
    result = await agent.canvas.result_of(ended, timeout=600)

    assert result is not None
    assert (result.result, journal(module)) == ("two", ["one", "two"])


async def test_a_chords_part_that_comes_again_counts_once(
    bed: Bed, agent: ToolFleet, link: Link, module: ModuleServer
) -> None:
    """Two copies of one part do not stand for two parts."""
    ended = await begun(chord([await link("a"), await link("b", seconds=1.5)], await link("c")))
    messages = bed.ask("LRANGE", QUEUE, 0, -1)
    bed.ask("LPUSH", QUEUE, *(renamed(message) for message in messages))
    await bed.worker()
    assert await agent.canvas.result_of(ended, timeout=600)
    bed.ask("LPUSH", QUEUE, *(renamed(message) for message in messages))
    await all_done(bed)

    assert (sorted(journal(module)), journal(module)[-1]) == (["a", "b", "c"], "c")


async def test_a_chord_survives_the_worker_that_was_to_call_its_body(
    bed: Bed, agent: ToolFleet, link: Link, module: ModuleServer
) -> None:
    """It had claimed that, and died: whoever has a part of the header waits for the claim's end, and calls the body."""
    ended = await begun(chord([await link("a"), await link("b")], await link("c")))
    message = json.loads(bed.ask("LINDEX", QUEUE, 0))
    claim = f"celery-taskset-meta-{message['headers']['group']}.c"
    bed.ask("SET", claim, "a dead worker's", "EX", 60)
    before = clock.monotonic()
    await bed.worker()
    await until(lambda: sorted(journal(module)) == ["a", "b"], "the header has run")
    result = await agent.canvas.result_of(ended, timeout=600)

    assert 60 <= clock.monotonic() - before < 120  # at once, had the claim another name by now
    assert result is not None
    assert (result.result, sorted(journal(module))) == ("c", ["a", "b", "c"])


async def test_a_chain_survives_the_worker_that_ran_it(
    bed: Bed, agent: ToolFleet, link: Link, module: ModuleServer
) -> None:
    """Killed in the middle of the second link: the module says what has become of that, and another worker goes on."""
    links = [await link("one"), await link("two", seconds=50), await link("three")]
    module.memory = lambda _: {"state": "done", "success": True, "result": "two"}
    ended = await begun(chain(*links))
    worker = await bed.worker()
    await until(lambda: len(module.requests) == 2, "the second link has begun")
    worker.kill()
    await bed.worker()
    result = await agent.canvas.result_of(ended, timeout=600)

    assert result is not None
    assert (result.result, journal(module)) == ("three", ["one", "two", "three"])


async def test_a_chain_survives_redis_being_silent(
    bed: Bed, agent: ToolFleet, link: Link, module: ModuleServer
) -> None:
    """What follows is published when Redis answers again, and the chord's count is not lost."""
    parts = [await link(f"part {i}", seconds=5) for i in range(3)]
    ended = await begun(chord(parts, await link("whole")))
    between = await bed.link(bed.redis.port)
    await bed.worker(redis_url=between.redis_url)
    await until(lambda: len(module.requests) == 3, "the parts have begun")
    bed.redis.freeze()
    await until(lambda: module.running == 0, "the parts have ended")
    bed.redis.thaw()
    assert await agent.canvas.result_of(parts[0], timeout=600)
    between.cut()
    result = await agent.canvas.result_of(ended, timeout=600)

    assert result is not None
    assert (result.result, sorted(journal(module))) == ("whole", ["part 0", "part 1", "part 2", "whole"])


async def test_a_chain_goes_on_from_lane_to_lane(bed: Bed, module: ModuleServer, owner: Caller) -> None:
    """A worker publishes a link of a module whose queue it does not take from."""
    hawks = make_module("hawks")
    bed.given.update(signing_key=SIGNING_KEY, slow_modules=frozenset({"hawks"}))
    await bed.serve(module, hawks)
    agent = await bed.agent()
    calls = [ToolCall(tool_name=name, arguments={"line": name}) for name in ("owls.echo", "hawks.echo", "owls.write")]
    ended = await begun(chain(*[await agent.canvas.signature(call, owner) for call in calls]))
    for lane in ("fast", "slow"):
        await bed.worker(lane=lane)
    result = await agent.canvas.result_of(ended, timeout=600)

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


async def test_a_limit_holds_for_a_signature(
    agent: ToolFleet, worker: Worker, link: Link, module: ModuleServer
) -> None:
    """It is taken by the worker that begins the call: of two calls one is over a daily limit of one."""
    links = [await link("a", "write_daily"), await link("b", "write_daily")]
    await begun(group(links))
    results = [await agent.canvas.result_of(one, timeout=600) for one in links]

    assert sorted(str(result.error_code) for result in results if result) == ["None", "rate_limited"]
    assert len(module.requests) == 1


async def test_a_link_that_was_changed_on_its_way_is_refused(
    agent: ToolFleet, worker: Worker, link: Link, module: ModuleServer
) -> None:
    """Nothing of it is executed, and nothing follows it."""
    first, second = await link("one"), await link("two")
    first.args = (str(first.args[0]).replace('"one"', '"won"'),)
    await begun(chain(first, second))
    results = [await agent.canvas.result_of(one, timeout=600) for one in (first, second)]

    assert [result.success for result in results if result] == [False, False]
    assert module.requests == []


async def all_done(bed: Bed) -> None:
    """Return when nothing waits, and no worker holds anything."""
    await until(lambda: not (bed.ask("LLEN", QUEUE) or bed.ask("HLEN", "unacked")), "the queue is empty")


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
