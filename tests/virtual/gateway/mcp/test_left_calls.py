"""Calls with a key that are left before they begin, and repeated: whoever follows one gets its result, and it happens once."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from redis import Redis

from bed.fleet import Bed, Gateway, until
from support.gateways.mcp_requests import asked
from support.module_server import ModuleServer
from toolfleet_registry.redis.keys import Keys

Json = dict[str, Any]
NOTES = "*mcp-followers:*"


@pytest.fixture
async def gateways(bed: Bed, owls: ModuleServer) -> tuple[Gateway, Gateway]:
    """Two without a worker: calls wait in their queue until a test starts one."""
    await bed.serve(owls)
    return await bed.gateway(), await bed.gateway()


@pytest.fixture
def keys(bed: Bed) -> Iterator[Redis]:
    with bed.redis.client() as client:
        yield client


def call(client: httpx.AsyncClient, key: str) -> "asyncio.Task[Json]":
    """Begin a call for once, or join it."""
    nap = {"name": "owls.nap_once", "arguments": {"seconds": 0}}
    return asyncio.create_task(asked(client, "tools/call", nap, {}, {"toolfleet/idempotencyKey": key}))


async def noted(keys: Redis, **fields: str) -> str:
    """The call of which this is noted."""

    def found() -> str | None:
        notes = {name: keys.hgetall(name) for name in keys.scan_iter(NOTES)}
        return next((name for name, note in notes.items() if note.items() >= fields.items()), None)

    await until(lambda: found() is not None, f"it is noted: {fields}")
    return str(found()).rpartition(":")[2]


async def left(calling: "asyncio.Task[Json]") -> None:
    calling.cancel()
    await asyncio.wait({calling})


async def test_who_joined_a_call_keeps_it_when_the_other_goes(
    here: httpx.AsyncClient, there: httpx.AsyncClient, bed: Bed, keys: Redis, owls: ModuleServer
) -> None:
    """Whichever of two gateways a client leaves, the other's client has the result."""
    leaving, staying = call(here, "two at once"), call(there, "two at once")
    await noted(keys, followers="1")
    await left(leaving)
    await noted(keys, followers="0")
    await bed.worker()

    result = (await staying)["result"]
    assert (result["isError"], len(owls.calls("nap_once"))) == (False, 1)


async def test_a_repeat_of_a_call_that_was_left_in_its_queue_runs(
    here: httpx.AsyncClient, there: httpx.AsyncClient, bed: Bed, keys: Redis, owls: ModuleServer
) -> None:
    """The first one is taken back, as nobody follows it; the repeat is a call of its own, and the only one that runs."""
    first, second = call(here, "left in its queue"), call(there, "left in its queue")
    await noted(keys, followers="1")
    await left(first)
    await left(second)
    call_id = await noted(keys, abandoned="1")
    # The note comes before the taking back: a worker that came now could begin the call.
    await until(lambda: keys.hget(Keys().call(call_id), "state") == "done", "it is taken back")
    repeat = call(there, "left in its queue")
    await bed.worker()

    result = (await repeat)["result"]
    assert (result["isError"], len(owls.calls("nap_once"))) == (False, 1)


@pytest.mark.parametrize("is_abandoned", [True, False], ids=["for nobody", "by somebody"])
async def test_a_call_that_is_taken_back_as_a_repeat_joins_it(
    here: httpx.AsyncClient,
    there: httpx.AsyncClient,
    bed: Bed,
    keys: Redis,
    owls: ModuleServer,
    is_abandoned: bool,
) -> None:
    """If it was for want of followers, those who came too late to be seen have it begun anew; if somebody wanted that, not."""
    followers = [call(client, f"too late, {is_abandoned}") for client in (here, there)]
    call_id = await noted(keys, followers="1")
    if is_abandoned:
        keys.hset(next(keys.scan_iter(f"{NOTES}{call_id}")), "abandoned", "1")
    taken_back = await asked(there, "tools/call", {"name": "call_cancel", "arguments": {"call_id": call_id}})
    assert "cancelled" in str(taken_back)
    await bed.worker()

    results = [(await each)["result"] for each in followers]
    assert [each["isError"] for each in results] == [not is_abandoned] * 2
    assert len(owls.calls("nap_once")) == int(is_abandoned)
