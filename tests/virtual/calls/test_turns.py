"""Calls that wait for their turn: in order, one at a time, whoever dies, and without a slot."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from bed.fleet import Bed, pass_time, until
from support.module_server import ModuleServer, Request
from support.owls import echo, nap
from support.servers.hatchery import HATCHED, make_hatchery
from toolfleet import Caller, ToolCall, ToolFleet, ToolResult
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.operations.call_index import CallIndex

KEYS = Keys()


@pytest.fixture
async def module(bed: Bed) -> ModuleServer:
    """With a tool whose calls in one nest run one after the other, and one without such a key."""
    bed.given["calls_per_caller"] = 100
    module = ModuleServer("owls")
    module.add("nap", nap, effect="idempotent", **NEST)
    module.add("nap_once", nap, effect="once", timeout_seconds=5, **NEST)
    module.add("echo", echo, effect="read")
    await bed.serve(module)
    return module


NEST: dict[str, Any] = {
    "concurrency_key": "nest",
    "parameters": [{"name": "nest", "type": "string", "description": "Which.", "required": False}],
    "input_schema": {"type": "object", "properties": {"nest": {"type": "string"}}, "additionalProperties": True},
}


def nap_in(nest: str, number: int = 0, seconds: float = 1, method: str = "nap") -> ToolCall:
    return ToolCall(tool_name=f"owls.{method}", arguments={"nest": nest, "n": number, "seconds": seconds})


def numbers(module: ModuleServer, nest: str) -> list[int]:
    """The calls of a nest that have come to the module, each once, in their order."""
    return list(dict.fromkeys(one["arguments"]["n"] for one in module.requests if one["arguments"].get("nest") == nest))


def left(bed: Bed) -> list[bytes]:
    """What Redis keeps of turns and lines."""
    return [key for kind in ("turns:*", "line*", "turn-of:*") for key in bed.ask("KEYS", KEYS.begin + kind)]


class Watch:
    """Notes how many calls of each nest run at once in a module."""

    def __init__(self, module: ModuleServer) -> None:
        self.most, self._running = Counter[str](), Counter[str]()
        self._tools, module.tools = module.tools, {name: self._watched(name) for name in module.tools}

    def _watched(self, name: str) -> Any:
        async def run(request: Request) -> Any:
            nest = request["arguments"].get("nest", "")
            self._running[nest] += 1
            self.most[nest] = max(self.most[nest], self._running[nest])
            try:
                return await self._tools[name](request)
            finally:
                self._running[nest] -= 1

        return run


@pytest.mark.parametrize("broker", ["here", "elsewhere"])
async def test_calls_with_the_same_value_run_one_after_the_other(
    bed: Bed, module: ModuleServer, owner: Caller, broker: str
) -> None:
    """As they were let in, over all workers and users; others do not wait for them, and nothing is left of them."""
    watch = Watch(module)
    if broker == "elsewhere":
        bed.given["broker_url"] = f"{bed.redis.url.rpartition('/')[0]}/1"
    fleet, other = await bed.agent(), await bed.agent()
    await bed.worker(worker_concurrency=4)
    await bed.worker(worker_concurrency=4)
    bob = Caller(user_id="bob", permission="owner", allowed_modules="*")
    handles = [
        await (fleet if n % 2 else other).submit(nap_in(nest, n), (owner, bob)[n % 2])
        for n in range(6)
        for nest in "ab"
    ]
    results = await asyncio.gather(*(handle.result() for handle in handles))

    assert all(result.success for result in results), results
    assert (numbers(module, "a"), numbers(module, "b")) == ([*range(6)], [*range(6)])
    assert watch.most == {"a": 1, "b": 1}
    assert module.most_running == 2
    assert left(bed) == []


async def test_what_waits_holds_no_slot(bed: Bed, module: ModuleServer, owner: Caller) -> None:
    """A worker with one slot runs other calls between two of a line, and the queue is empty."""
    fleet = await bed.agent()
    await bed.worker(worker_concurrency=2)
    handles = [await fleet.submit(nap_in("a", n, 60), owner, timeout=600) for n in range(4)]
    echoed = await fleet.call_many([ToolCall(tool_name="owls.echo", arguments={})] * 20, owner, timeout=30)
    assert all(result.success for result in echoed)
    assert bed.ask("LLEN", "tools.owls") == 0
    assert (await handles[-1].status(), bed.ask("ZCARD", KEYS.caller_limit("fast", owner.user_id))) == ("queued", 4)
    async with CallIndex.of(bed.settings) as index:
        story = await index.story(handles[-1].id)
    assert story is not None
    assert (story.state, story.turn) == ("queued", "waits for its turn: 3 before it")
    await asyncio.gather(*(handle.cancel() for handle in handles))
    await pass_time(120)
    assert (numbers(module, "a"), left(bed)) == ([0], [])


async def test_order_is_kept_under_kills(bed: Bed, module: ModuleServer, owner: Caller) -> None:
    """Workers die at any moment, and others come: every call runs, in its order, and never beside another of its nest."""
    watch = Watch(module)
    fleet = await bed.agent()
    workers = [await bed.worker(worker_concurrency=3) for _ in range(2)]
    calls = [(nest, n) for n in range(5) for nest in "abc"]
    handles = [await fleet.submit(nap_in(nest, n, 3), owner, timeout=1800) for nest, n in calls]
    for round_ in range(4):
        await pass_time(2.3 + round_)
        workers.pop(0).kill()
        workers.append(await bed.worker(worker_concurrency=3))
    results = await asyncio.gather(*(handle.result() for handle in handles))

    assert all(result.success for result in results), results
    for nest in "abc":
        assert numbers(module, nest) == [*range(5)]
    assert set(watch.most.values()) == {1}
    assert left(bed) == []


async def test_an_unknown_end_passes_the_turn_on_when_it_is_over(bed: Bed, module: ModuleServer, owner: Caller) -> None:
    """The worker has died, and what it has sent to the module may go on: nothing of the nest runs meanwhile."""
    watch = Watch(module)
    fleet = await bed.agent()
    worker = await bed.worker()
    first = await fleet.submit(nap_in("a", 1, 4, "nap_once"), owner, timeout=600)
    second = await fleet.submit(nap_in("a", 2, 1, "nap_once"), owner, timeout=600)
    await until(lambda: module.running, "it runs")
    worker.kill()
    await bed.worker()
    lost, after = await first.result(), await second.result()

    assert (lost.error_code, lost.effect_state) == ("outcome_unknown", "unknown")
    assert (after.success, watch.most["a"]) == (True, 1)
    assert left(bed) == []


async def test_a_call_that_expires_or_is_cancelled_leaves_its_line(
    bed: Bed, module: ModuleServer, owner: Caller
) -> None:
    """Its caller hears of it at once, and those behind it move up."""
    fleet = await bed.agent()
    await bed.worker()
    running, late, cancelled, last = [
        await fleet.submit(nap_in("a", n, 10), owner, timeout=timeout) for n, timeout in enumerate((60, 5, 60, 60))
    ]
    expired = await late.result()
    await cancelled.cancel()
    results = [await handle.result() for handle in (running, cancelled, last)]

    assert (expired.error_code, expired.effect_state) == ("expired", "none")
    assert [(result.success, result.error_code) for result in results] == [
        (True, None), (False, "cancelled"), (True, None),
    ]  # fmt: skip
    assert (numbers(module, "a"), left(bed)) == ([0, 3], [])


async def test_an_agent_that_is_gone_holds_up_nobody(bed: Bed, module: ModuleServer, owner: Caller) -> None:
    """Its calls run in their turn; those that are too late then are ended by a worker."""
    await bed.worker()
    site = bed.site("agent")

    async def agent() -> None:
        fleet = await ToolFleet(settings=bed.settings).__aenter__()
        for number, timeout in enumerate((60, 5, 60)):
            await fleet.submit(nap_in("a", number, 10), owner, timeout=timeout)

    await site.start(agent())
    site.kill()
    result = await (await bed.agent()).call(nap_in("a", 9), owner, timeout=60)
    assert (result.success, numbers(module, "a")) == (True, [0, 2, 9])
    await pass_time(5)
    assert left(bed) == []


async def test_an_older_agents_calls_are_put_into_the_line(
    bed: Bed, module: ModuleServer, owner: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows of no turns, and its calls are in the queue all at once; a worker lets those go that wait."""
    watch = Watch(module)
    monkeypatch.setattr("toolfleet_tasks.calls.prepare.CallPreparation._turn_of", lambda *_: (None, None))
    fleet = await bed.agent()
    await bed.worker(worker_concurrency=4)
    results = await fleet.call_many([nap_in("a", n) for n in range(6)], owner, timeout=300)

    assert all(result.success for result in results), results
    assert (watch.most["a"], left(bed)) == (1, [])


async def test_a_flushed_redis_loses_the_line_and_ends_each_call(bed: Bed, module: ModuleServer, owner: Caller) -> None:
    """What waited is gone with its message: its agent ends it at its deadline, as any lost call, and the next one runs."""
    fleet = await bed.agent()
    await bed.worker()
    handles = [await fleet.submit(nap_in("a", n, 5), owner, timeout=20) for n in range(3)]
    await until(lambda: module.running, "one runs")
    bed.ask("FLUSHALL")
    results: list[ToolResult] = await asyncio.gather(*(handle.result() for handle in handles))
    assert [result.success for result in results] == [True, False, False]
    assert (await fleet.call(nap_in("a", 9), owner, timeout=60)).success


async def test_a_call_that_runs_keeps_its_turn_where_redis_has_lost_it(
    bed: Bed, module: ModuleServer, owner: Caller
) -> None:
    """Its worker renews its lease, and what is let in later waits for it."""
    watch = Watch(module)
    module.definitions[0]["timeout_seconds"] = 300
    fleet = await bed.agent()
    await bed.worker(worker_concurrency=4)
    first = await fleet.submit(nap_in("a", 0, 100), owner, timeout=600)
    await until(lambda: module.running, "it runs")
    for pattern in ("turn*", "line*", "call:*"):
        for key in bed.ask("KEYS", KEYS.begin + pattern):
            bed.ask("DEL", key)
    await pass_time(30)
    second = await fleet.submit(nap_in("a", 1), owner, timeout=600)
    assert ((await first.result()).success, (await second.result()).success) == (True, True)
    assert (watch.most["a"], left(bed)) == (1, [])


async def test_a_cancelled_call_that_its_module_goes_on_with_passes_its_turn_on_when_that_says_it_is_over(
    bed: Bed, owner: Caller
) -> None:
    """Not before, and not at the end of the hour that it had."""
    nest = make_hatchery()
    nest.server.add("lay", nest.hatch, effect="once", **NEST)
    await bed.serve(nest.server)
    fleet = await bed.agent()
    await bed.worker()
    hatch = ToolCall(tool_name="nest.lay", arguments={"nest": "a"})
    first, second = [await fleet.submit(hatch, owner, timeout=3600) for _ in range(2)]
    await until(lambda: nest.asked, "it was asked for")
    await first.cancel()
    await until(lambda: len(nest.cancelled) == 1, "the module is told")
    assert len(nest.begun) == 1
    nest.answer = HATCHED
    await pass_time(10)
    assert len(nest.begun) == 2
    assert (await second.result()).success
    assert left(bed) == []


async def test_calls_that_follow_a_job_take_turns(bed: Bed, module: ModuleServer, owner: Caller) -> None:
    """The job is over: they run in no turn of its."""
    watch = Watch(module)
    fleet = await bed.agent()
    await bed.worker(worker_concurrency=4)
    await bed.beat()
    then = [nap_in("a", number, 5) for number in (1, 2, 3)]
    await fleet.jobs.start(ToolCall(tool_name="owls.echo"), None, then, caller=owner)
    await until(lambda: len(numbers(module, "a")) == 3, "all have begun", step=1)
    assert watch.most["a"] == 1


async def test_a_redis_that_freezes_takes_no_turn_away(bed: Bed, module: ModuleServer, owner: Caller) -> None:
    """Nor does a look at the lines that it runs late: what runs has its turn, and what waits runs after it."""
    watch = Watch(module)
    fleet = await bed.agent()
    await bed.worker(worker_concurrency=4)
    await bed.worker(worker_concurrency=4)
    handles = [await fleet.submit(nap_in("a", n, 20), owner, timeout=600) for n in range(3)]
    await until(lambda: module.running, "one runs")
    bed.redis.freeze()
    await asyncio.sleep(90)
    bed.redis.thaw()
    results = await asyncio.gather(*(handle.result() for handle in handles))

    assert all(result.success for result in results), results
    assert (numbers(module, "a"), watch.most["a"]) == ([0, 1, 2], 1)
    assert left(bed) == []


async def test_a_retry_keeps_its_turn(bed: Bed, module: ModuleServer, owner: Caller) -> None:
    """It is not overtaken by those behind it."""
    answers = iter([{"success": False, "error": "later", "retryable": True}])

    async def fails_first(request: Request) -> dict[str, Any]:
        return next(answers, None) or await nap(request)

    module.tools["owls.nap"] = fails_first
    fleet = await bed.agent()
    await bed.worker(worker_concurrency=4)
    results = await fleet.call_many([nap_in("a", n) for n in range(3)], owner, timeout=60)
    assert [result.audit.attempts for result in results] == [2, 1, 1]
    assert [one["arguments"]["n"] for one in module.requests] == [0, 0, 1, 2]


async def test_a_paused_queue_holds_its_lines(bed: Bed, module: ModuleServer, owner: Caller) -> None:
    """And they go on when it is resumed."""
    fleet = await bed.agent()
    await bed.worker()
    await fleet.queues.pause("owls")
    handles = [await fleet.submit(nap_in("a", n), owner, timeout=600) for n in range(3)]
    await pass_time(60)
    assert module.requests == []
    await fleet.queues.resume("owls")
    assert all([(await handle.result()).success for handle in handles])
    assert numbers(module, "a") == [0, 1, 2]


async def test_a_queue_is_not_drained_while_calls_wait_in_its_lines(
    bed: Bed, module: ModuleServer, owner: Caller
) -> None:
    """They wait also while no call runs: a cancelled one keeps its turn for a time."""
    fleet = await bed.agent()
    await bed.worker()
    first = await fleet.submit(nap_in("a", 0, 4, "nap_once"), owner, timeout=600)
    waiting = [await fleet.submit(nap_in("a", number, 1, "nap_once"), owner, timeout=600) for number in range(1, 6)]
    await until(lambda: module.running, "the first one runs")
    await first.cancel()
    assert [(one.waiting, one.state) for one in await fleet.queues.list()] == [(5, "open")]
    (drained,) = await fleet.queues.drain("owls", wait_seconds=120)
    assert (drained.state, drained.waiting) == ("drained", 0)
    assert len(module.requests) == 6
    assert [(await one.result()).success for one in waiting] == [True] * 5
