"""What becomes of calls and streams whose gateway ends, or is killed."""

import asyncio
import signal
import uuid

import httpx
import pytest

from support.fleet import TestBed
from support.gateways.gateway_process import Gateway, gateway_process
from support.module_server import ModuleServer, holding
from support.waiting import wait_until


async def test_a_killed_gateways_call_runs_once(bed: TestBed, owls: ModuleServer, there: httpx.AsyncClient) -> None:
    """Its client repeats itself with its key at another gateway, and has the first call's result."""
    owls.forget()
    headers = {"Idempotency-Key": str(uuid.uuid4())}
    body = {"tool_name": "owls.nap_once", "arguments": {"seconds": 0.5}}
    with gateway_process(bed) as mortal:
        async with mortal.client() as client:
            with holding(owls, "nap_once"):
                asking = asyncio.create_task(client.post("/calls", json=body, headers=headers))
                await wait_until(lambda: owls.running, "the call runs")
                mortal.process.send_signal(signal.SIGKILL)
                with pytest.raises(httpx.HTTPError):
                    await asking

            again = await there.post("/calls", json=body, headers=headers)

    assert (again.status_code, again.json()["result"]) == (200, "awake")
    assert len(owls.calls("nap_once")) == 1


async def test_a_killed_gateways_call_expires_elsewhere(
    bed: TestBed, owls: ModuleServer, there: httpx.AsyncClient
) -> None:
    """Whoever follows it ends it at its deadline, when nobody else is there to do so."""
    with gateway_process(bed) as mortal:
        async with mortal.client() as client:
            body = {"tool_name": "owls.nap", "arguments": {"seconds": 30}, "timeout_seconds": 1.5}
            begun = await client.post("/calls", json=body, headers={"Prefer": "respond-async"})
            mortal.process.send_signal(signal.SIGKILL)

    ended = await there.get(begun.headers["location"], headers={"Prefer": "wait=20"})

    assert (ended.json()["state"], ended.json()["result"]["error_code"]) == ("done", "timed_out")
    await wait_until(lambda: not owls.running, "the module was told")


async def test_a_gateway_that_ends_answers_whom_it_holds_open(
    bed: TestBed, owls: ModuleServer, there: httpx.AsyncClient
) -> None:
    """A request that waits is answered with where its call is; a stream gets a last event; both go on at another gateway."""
    owls.forget()
    with gateway_process(bed, env={"TOOLFLEET_GATEWAY_LEAVE_SECONDS": "0.5"}) as leaving:
        async with leaving.client() as client:
            body = {"tool_name": "owls.nap", "arguments": {"seconds": 0.5}}
            with holding(owls, "nap"):
                asking = asyncio.create_task(client.post("/calls", json=body))
                await wait_until(lambda: owls.running, "the call runs")
                begun = await client.post("/calls", json=body, headers={"Prefer": "respond-async"})
                following = asyncio.create_task(client.get(f"{begun.headers['location']}/events"))
                await _has_streams(leaving, client)
                leaving.process.send_signal(signal.SIGTERM)

                waited, followed = await asyncio.gather(asking, following)

        assert leaving.process.wait() == 0
    assert (waited.status_code, "event: closing" in followed.text) == (202, True)
    for location in (waited.headers["location"], begun.headers["location"]):
        ended = await there.get(location, headers={"Prefer": "wait=20"})
        assert ended.json()["result"]["result"] == "awake"


async def _has_streams(gateway: Gateway, client: httpx.AsyncClient) -> None:
    """Wait until what was sent before is being answered: a gateway reads requests in order of their coming."""
    for _ in range(3):
        assert (await client.get("/livez")).status_code == 200, gateway.process.said()
