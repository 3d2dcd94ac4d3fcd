"""A fleet that gets more calls than it can take: who is told so, and who is served nevertheless."""

import asyncio

from bed import clock
from bed.fleet import Bed, until
from support.module_server import ModuleServer
from support.owls import make_module
from support.programs.closed_port import closed_port
from toolfleet import Caller, ToolCall, ToolFleet, ToolResult
from toolfleet_tasks.presence import workers_by_queue

ADA, BOB = (Caller(user_id=name, permission="owner", allowed_modules="*") for name in ("ada", "bob"))
ECHO = ToolCall(tool_name="owls.echo", arguments={"text": "hu"})


def nap(seconds: float) -> ToolCall:
    return ToolCall(tool_name="owls.nap", arguments={"seconds": seconds})


async def test_a_full_queue_answers_at_once(bed: Bed, owls: ModuleServer) -> None:
    """While the worker is busy, calls over the limit are `busy` within the publish; the others have their results."""
    bed.given.update(backlog_limit=3, worker_concurrency=1, calls_per_caller=100)
    await bed.serve(owls)
    await bed.worker()
    fleet = await bed.agent()
    first = await fleet.submit(nap(5), ADA)
    await until(lambda: owls.running, "the worker is busy")
    waiting = [await fleet.submit(nap(5), ADA) for _ in range(6)]
    ends = [handle for handle in waiting if await handle.status() == "done"]
    results = [await each.result() for each in [first, *waiting]]

    # A worker takes some ahead of the one that runs.
    assert 1 <= len(ends) <= 3
    assert [result.error_code for result in results if not result.success] == ["busy"] * len(ends)


async def test_one_users_flood_starves_nobody(bed: Bed, owls: ModuleServer) -> None:
    """With a hundred calls of one user under way, another one's call waits for a few of them only."""
    bed.given["worker_concurrency"] = 5
    await bed.serve(owls)
    await bed.worker()
    fleet = await bed.agent()
    flood = asyncio.create_task(fleet.call_many([nap(2)] * 100, ADA, timeout=600))
    await until(lambda: len(owls.requests) >= 20, "the flood is under way")
    assert bed.ask("ZCARD", bed.settings.keys.caller_limit("fast", "ada")) <= 10
    before = len(owls.requests)
    assert (await fleet.call(ECHO, BOB, timeout=20)).success
    between = len(owls.requests) - before

    assert between <= 30, "its share is ten calls, and as many may have got in while the other one was on its way"
    assert all(result.success for result in await flood)
    assert (len(owls.calls("nap")), owls.most_running) == (100, 5)


async def test_a_dead_module_is_left_alone_and_found_again(bed: Bed, owls: ModuleServer) -> None:
    """The breaker opens when no worker can connect; soon calls fail within the publish; when the module answers it closes."""
    await bed.serve(owls)
    fleet = await bed.agent()
    blind = await bed.worker(module_services={"owls": f"http://127.0.0.1:{closed_port()}"})
    refused = await refused_at_once(fleet)
    await blind.stop()
    await bed.worker()
    since = clock.monotonic()

    async def is_found() -> bool:
        result = await fleet.call(ECHO, ADA, timeout=20)
        assert result.success or (result.error_code, result.effect_state) == ("module_unreachable", "none")
        return result.success

    await until(is_found, "the module is found again", step=1)
    assert clock.monotonic() - since < 10 + 20
    assert (refused.error_code, refused.effect_state, refused.retryable) == ("module_unreachable", "none", True)
    assert 2 <= (refused.retry_after_seconds or 0) <= 10
    assert all(result.success for result in await fleet.call_many([ECHO] * 20, ADA))


async def refused_at_once(fleet: ToolFleet) -> ToolResult:
    """The first call that gets into no queue; those before it wait for their module in vain."""
    for _ in range(200):
        result = await fleet.call(ECHO, ADA, timeout=20)
        assert not result.success
        if (result.audit.attempts, result.audit.worker) == (0, None):
            return result
    raise AssertionError("every call gets into a queue")


async def test_a_modules_bound_holds_over_all_workers(bed: Bed, owls: ModuleServer) -> None:
    """By the module's own count: never more at once, and it is used up; another module's calls are not held up."""
    bed.given["module_concurrency"] = {"owls": 3}
    await bed.serve(owls, make_module("ravens"))
    for _ in range(2):
        await bed.worker()
    fleet = await bed.agent()
    naps = asyncio.create_task(fleet.call_many([nap(5)] * 9, ADA, timeout=60))
    await until(lambda: owls.running == 3, "as many naps as may be are under way")
    raven = await fleet.call(ToolCall(tool_name="ravens.echo"), ADA, timeout=20)
    assert not naps.done()

    assert raven.success
    assert all(result.success for result in await naps)
    assert (owls.most_running, len(owls.requests)) == (3, 9)


async def test_one_intention_is_one_call(bed: Bed, owls: ModuleServer) -> None:
    """A repeat joins the running call, and after its end brings its result; the module has seen one request."""
    once = ToolCall(tool_name="owls.nap_once", arguments={"seconds": 5}, idempotency_key="conversation-1/call-7")
    other = once.model_copy(update={"arguments": {"seconds": 6}})
    await bed.serve(owls)
    await bed.worker()
    fleet, elsewhere = await bed.agent(), await bed.agent()
    first = asyncio.create_task(fleet.call(once, ADA))
    await until(lambda: owls.running, "it runs")
    repeats = await asyncio.gather(*(one.call(once, ADA) for one in (fleet, elsewhere, elsewhere)))
    conflict = await elsewhere.call(other, ADA)
    results = [await first, *repeats, await elsewhere.call(once, ADA)]
    mine = await fleet.call(once, BOB)

    assert {result.audit.call_id for result in results} == {results[0].audit.call_id}
    assert all(result.success for result in results)
    assert (conflict.error_code, conflict.effect_state) == ("conflict", "none")
    assert mine.audit.call_id != results[0].audit.call_id
    assert len(owls.requests) == 2


async def test_a_cancelled_crowd_leaves_nothing(bed: Bed, owls: ModuleServer) -> None:
    """`call_many` takes back what runs, what is queued and what waits for its turn; its share is free again."""
    bed.given["worker_concurrency"] = 2
    await bed.serve(owls)
    await bed.worker()
    fleet = await bed.agent()
    crowd = asyncio.create_task(fleet.call_many([nap(30)] * 20, ADA))
    await until(lambda: owls.running == 2, "two of them run")
    crowd.cancel()
    await asyncio.wait([crowd])
    await until(lambda: owls.running == 0, "they were interrupted")
    await until(lambda: not bed.ask("EXISTS", bed.settings.keys.caller_limit("fast", "ada")), "its share is free")

    assert (await fleet.call(ECHO, ADA, timeout=20)).success
    assert len(owls.calls("nap")) == 2


async def test_a_module_whose_workers_are_gone_turns_calls_away(bed: Bed, owls: ModuleServer) -> None:
    """Soon after the last one was killed; what is in the queue is run by the next one, which has calls wait when it is told to end."""
    bed.given["unserved_seconds"] = 1
    await bed.serve(owls)

    async def until_served_by(expected: dict[str, int]) -> None:
        async def are_there() -> bool:
            return await workers_by_queue(bed.settings) == expected

        await until(are_there, f"{expected} consume")

    fleet = await bed.agent()
    killed = await bed.worker()
    await until_served_by({"tools.owls": 1, "toolfleet.control": 1})
    assert (await fleet.call(ECHO, ADA, timeout=20)).success
    killed.kill()
    await until_served_by({})
    refused = await fleet.call(ECHO, ADA, timeout=20)
    assert (refused.error_code, refused.effect_state) == ("busy", "none")
    assert "no worker serves the module 'owls' (lane fast)" in str(refused.error)
    waiting = await fleet.submit(ECHO, ADA, waits_for_worker=True)
    told = await bed.worker()
    assert (await waiting.result()).success
    assert (await fleet.call(ECHO, ADA, timeout=20)).success
    await told.stop()
    await fleet.submit(ECHO, ADA)
    assert bed.ask("LLEN", "tools.owls") == 1
