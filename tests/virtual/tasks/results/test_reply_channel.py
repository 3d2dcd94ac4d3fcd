"""An agent hears of the calls that it has published on one channel of its own, as soon as all who end calls speak there."""

import asyncio
import json
from typing import Any

import pytest
from celery import Celery, chord
from celery.result import AsyncResult

from bed.fleet import Bed, until
from support.module_server import ModuleServer
from toolfleet import Caller, ToolCall, ToolFleet, ToolResult
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.messages.json_text import VERSION

KEYS = Keys()
LATE_SECONDS = 2.0
SOON_SECONDS = 0.4  # for a nap of 0.2 s: nothing is asked of the ledger by then
AT_ONCE_SECONDS = 0.1
CALM_SECONDS = 5.3  # after which the next look into the ledger is not near
EXPIRY_SECONDS = 60
OLDER = f"4 older:1 v{VERSION}"


def nap(seconds: float, **more: Any) -> ToolCall:
    return ToolCall(tool_name="owls.nap", arguments={"seconds": seconds}, **more)


def channels(bed: Bed) -> list[str]:
    """The channels of calls that somebody listens to."""
    found: list[str] = bed.ask("PUBSUB", "CHANNELS", KEYS.result("*"))
    return found


async def opened(bed: Bed, fleet: ToolFleet, caller: Caller) -> None:
    """Return once the agent hears of its calls on its reply channel."""

    async def is_heard_there() -> bool:
        handle = await fleet.submit(nap(1), caller)
        is_there = not channels(bed)
        await handle.result()
        return is_there

    await until(is_heard_there, "it has heard that all speak there")


@pytest.fixture
async def fleet(bed: Bed, owls: ModuleServer, owner: Caller) -> ToolFleet:
    """An agent that uses its reply channel, with a worker."""
    await bed.serve(owls)
    await bed.worker()
    fleet = await bed.agent()
    await opened(bed, fleet, owner)
    return fleet


def moment() -> float:
    return asyncio.get_running_loop().time()


async def gotten(bed: Bed, call_id: str) -> str:
    """What stock Celery's `AsyncResult.get` returns."""
    stock: Any = Celery(backend=bed.redis.url, set_as_current=False)
    get = AsyncResult(call_id, app=stock).get
    # A worker in the same process makes Celery believe that this is a task of its own.
    text: str = await asyncio.to_thread(get, timeout=60, disable_sync_subtasks=False)
    stock.close()
    return text


async def until_some(fleet: ToolFleet) -> list[str]:
    """The ids of the calls that wait for people, once there are any."""
    found: list[str] = []

    async def is_there() -> bool:
        found[:] = [each.approval_id for each in await fleet.approvals.list()]
        return bool(found)

    await until(is_there, "a call waits for an approval")
    return found


async def seconds_for(fleet: ToolFleet, call: ToolCall, caller: Caller) -> float:
    """How long it takes until the caller has the result."""
    began_at = moment()
    assert (await fleet.call(call, caller)).success
    return moment() - began_at


async def test_ends_of_all_kinds_are_heard(bed: Bed, fleet: ToolFleet, owner: Caller, owls: ModuleServer) -> None:
    """A result, a failure, a cancel and a deadline: at once, and nobody subscribes to a call's channel."""
    took = await seconds_for(fleet, nap(0.2), owner)
    seen = channels(bed)
    failed = await fleet.call(ToolCall(tool_name="owls.fail"), owner)
    handle = await fleet.submit(nap(600), owner)
    await until(lambda: owls.running, "the module has it")
    seen += channels(bed)
    await handle.cancel()
    cancelled = await handle.result()
    began_at = moment()
    late = await fleet.call(nap(600), owner, timeout=3)

    assert took < SOON_SECONDS
    assert (failed.error_code, cancelled.error_code) == ("module_error", "cancelled")
    assert late.error_code in {"timed_out", "outcome_unknown"}
    assert moment() - began_at == pytest.approx(3, abs=0.5)
    assert seen == []


async def test_others_who_wait_for_a_call_subscribe_to_its_channel(bed: Bed, fleet: ToolFleet, owner: Caller) -> None:
    """An agent that has joined it with its key hears of its end at the same time."""
    other = await bed.agent()
    await opened(bed, other, owner)
    handle = await fleet.submit(nap(5, idempotency_key="k"), owner)
    joined = await other.submit(nap(5, idempotency_key="k"), owner)

    await until(lambda: channels(bed) == [KEYS.result(handle.id)], "the other one listens")
    own, its = await asyncio.gather(handle.result(), joined.result())
    assert (own.success, its.success, its.audit.call_id) == (True, True, handle.id)


async def test_a_call_of_a_gateway_is_waited_for_at_another(bed: Bed, owls: ModuleServer) -> None:
    """While the first one hears of its calls on its reply channel; both are told at once."""
    await bed.serve(owls)
    await bed.worker()
    first, second = await bed.gateway(), await bed.gateway()
    async with first.client() as here, second.client() as there:
        await here.post("/calls", json={"tool_name": "owls.nap", "arguments": {"seconds": LATE_SECONDS}})
        asked = {"tool_name": "owls.nap", "arguments": {"seconds": 3}}
        begun = await here.post("/calls", json=asked, headers={"Prefer": "respond-async"})
        assert channels(bed) == []
        began_at = moment()
        waits = [client.get(begun.headers["location"], headers={"Prefer": "wait=20"}) for client in (here, there)]
        ended = await asyncio.gather(*waits)

    assert [answer.json()["result"]["result"] for answer in ended] == ["awake", "awake"]
    assert moment() - began_at == pytest.approx(3, abs=0.2)


async def test_a_call_that_another_gateway_cancels_has_ended_at_once(bed: Bed, owls: ModuleServer) -> None:
    """The first one, which hears of its calls on its reply channel, is told before it asks the ledger."""
    await bed.serve(owls)
    await bed.worker()
    first, second = await bed.gateway(), await bed.gateway()
    async with first.client() as here, second.client() as there:
        await here.post("/calls", json={"tool_name": "owls.nap", "arguments": {"seconds": LATE_SECONDS}})
        asked = {"tool_name": "owls.nap", "arguments": {"seconds": 600}}
        begun = await here.post("/calls", json=asked, headers={"Prefer": "respond-async"})
        place = begun.headers["location"]
        waiting = asyncio.create_task(here.get(place, headers={"Prefer": "wait=60"}))
        await until(lambda: owls.running, "the module has it")
        await asyncio.sleep(CALM_SECONDS)
        assert channels(bed) == []
        began_at = moment()
        assert (await there.delete(place)).is_success
        ended = await waiting

    assert ended.json()["result"]["error_code"] == "cancelled"
    assert moment() - began_at < AT_ONCE_SECONDS


async def test_plain_celery_waits_for_its_calls(bed: Bed, fleet: ToolFleet, owner: Caller) -> None:
    """`AsyncResult.get` hears of an end at the same time as the agent, and finds it afterwards."""
    handle = await fleet.submit(nap(3), owner)
    waiting = asyncio.create_task(gotten(bed, handle.id))
    await until(lambda: channels(bed) == [KEYS.result(handle.id)], "Celery listens")
    result = await handle.result()
    ended_at = moment()
    texts = [await waiting, await gotten(bed, handle.id)]

    assert moment() - ended_at < AT_ONCE_SECONDS
    assert [json_text.load(ToolResult, text) for text in texts] == [result] * 2


async def test_the_ends_of_a_chord_are_heard(bed: Bed, fleet: ToolFleet, owner: Caller) -> None:
    """Its agent hears of each link at once, and plain Celery of the last one."""
    parts = [await fleet.canvas.signature(nap(seconds), owner) for seconds in (2.5, 3.5)]
    last = await fleet.canvas.signature(nap(1.5), owner)
    began_at = moment()
    ended = await asyncio.to_thread(chord(parts, last).apply_async)
    waiting = asyncio.create_task(gotten(bed, ended.id))

    async def heard(link: Any) -> float:
        result = await fleet.canvas.result_of(link, timeout=60)
        assert result is not None
        assert result.success
        return moment() - began_at

    ends = asyncio.gather(*map(heard, (*parts, ended)))
    await until(lambda: KEYS.result(ended.id) in channels(bed), "Celery listens")
    assert await ends == pytest.approx([2.5, 3.5, 5.0], abs=AT_ONCE_SECONDS)
    assert json_text.load(ToolResult, await waiting).result == "awake"
    assert moment() - began_at == pytest.approx(5, abs=AT_ONCE_SECONDS)


async def test_an_end_that_beat_brings_is_heard(bed: Bed, owls: ModuleServer, owner: Caller) -> None:
    """Nobody has decided about a call in time: whoever looks at it then, when beat says so, ends it."""
    waits = {"name": "human_in_the_loop", "approve_tools": ["owls.echo"], "expires_seconds": EXPIRY_SECONDS}
    bed.given["agents"] = {"careful": {"middleware": [waits]}}
    await bed.serve(owls)
    await bed.worker()
    await bed.beat()
    fleet = await bed.agent()
    await opened(bed, fleet, owner)
    careful = owner.model_copy(update={"agent": "careful"})
    echo = ToolCall(tool_name="owls.echo")
    waiting = asyncio.create_task(fleet.call(echo, careful, timeout=300, waits_for_approval=2 * EXPIRY_SECONDS))
    (approval,) = await until_some(fleet)
    key = KEYS.result(approval)
    await asyncio.sleep(EXPIRY_SECONDS / 2)
    assert channels(bed) == []
    await until(lambda: bed.ask("EXISTS", key), "it has ended", step=0.01)
    ended_at = moment()

    assert (await waiting).error_code == "approval_denied"
    assert moment() - ended_at < AT_ONCE_SECONDS


@pytest.mark.parametrize("who", ["worker", "listener"])
async def test_an_older_process_has_the_agent_subscribe(bed: Bed, fleet: ToolFleet, owner: Caller, who: str) -> None:
    """It says nothing of reply channels, but it is there: in two seconds calls have channels of their own; and not when it has gone."""
    client = bed.redis.client()
    listening = client.pubsub()
    now = int(bed.ask("TIME")[0])
    if who == "worker":
        bed.ask("ZADD", KEYS.slots("fast"), now, OLDER)
    else:
        listening.subscribe(KEYS.manifests_changed)
    await fleet.call(nap(LATE_SECONDS), owner)
    handle = await fleet.submit(nap(1), owner)
    await until(lambda: channels(bed) == [KEYS.result(handle.id)], "it listens to the call's channel")
    assert (await handle.result()).success

    bed.ask("ZREM", KEYS.slots("fast"), OLDER)
    listening.close()
    client.close()
    await opened(bed, fleet, owner)


async def test_presence_that_cannot_be_read_has_the_agent_subscribe(bed: Bed, fleet: ToolFleet, owner: Caller) -> None:
    """Nobody says then who is there."""
    bed.ask("RENAME", KEYS.slots("fast"), "aside")
    bed.ask("SET", KEYS.slots("fast"), "no notes", "EX", 60)
    await fleet.call(nap(LATE_SECONDS), owner)
    handle = await fleet.submit(nap(1), owner)
    await until(lambda: channels(bed) == [KEYS.result(handle.id)], "it listens to the call's channel")
    assert (await handle.result()).success
    bed.ask("DEL", KEYS.slots("fast"), "aside")


async def test_an_end_that_is_not_announced_there_is_found_in_time(
    bed: Bed, fleet: ToolFleet, owner: Caller, owls: ModuleServer
) -> None:
    """An older process has come back and ends a call: its agent learns of that within two seconds."""
    for seconds in (0.0, 0.25, 0.5, 0.75, 1.0, 5.5):
        handle = await fleet.submit(nap(3600), owner)
        await until(lambda: owls.running, "the module has it", step=0.01)
        await asyncio.sleep(seconds)
        meta = json.dumps({"status": "REVOKED", "result": None, "task_id": handle.id})
        bed.ask("SET", KEYS.result(handle.id), meta, "EX", 60)
        bed.ask("PUBLISH", KEYS.result(handle.id), meta)
        ended_at = moment()
        assert (await handle.result()).error_code == "cancelled"
        assert moment() - ended_at < LATE_SECONDS
        await until(lambda: not owls.running, "the module has left it")


async def test_the_ledger_is_asked_once_a_second_while_calls_are_silent(
    bed: Bed, fleet: ToolFleet, owner: Caller
) -> None:
    """Each silent call is looked up; without a call nothing is."""

    def looked_up() -> int:
        return int(bed.ask("INFO", "commandstats").get("cmdstat_strlen", {"calls": 0})["calls"])

    before = looked_up()
    handles = [await fleet.submit(nap(10.5), owner) for _ in range(3)]
    await asyncio.gather(*(handle.result() for handle in handles))
    asked = looked_up()
    await asyncio.sleep(30)

    assert 3 * 9 <= asked - before <= 3 * 11
    assert looked_up() == asked


async def test_a_lost_connection_loses_no_end(bed: Bed, fleet: ToolFleet, owner: Caller, owls: ModuleServer) -> None:
    """The reply channel is subscribed to again, and pending calls are asked about: also those that ended meanwhile."""
    early, late = [await fleet.submit(nap(seconds), owner) for seconds in (600, 3)]
    await until(lambda: owls.running == 2, "the module has them")
    meta = json.dumps({"status": "REVOKED", "result": None, "task_id": early.id})
    bed.ask("CLIENT", "KILL", "TYPE", "pubsub")
    bed.ask("SET", KEYS.result(early.id), meta, "EX", 60)
    cut_at = moment()

    assert (await early.result()).error_code == "cancelled"
    assert moment() - cut_at < 1
    assert (await late.result()).success
    await opened(bed, fleet, owner)
    assert await seconds_for(fleet, nap(0.2), owner) < SOON_SECONDS
