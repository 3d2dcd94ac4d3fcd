"""What becomes of calls and streams whose gateway ends, or is killed."""

import asyncio
import signal
import uuid
from typing import Any

import httpx
import pytest

from bed.fleet import Gateway, until
from support.module_server import ModuleServer

ASYNC = {"Prefer": "respond-async"}


def nap(seconds: float, tool: str = "owls.nap", **more: object) -> dict[str, Any]:
    return {"tool_name": tool, "arguments": {"seconds": seconds}, **more}


async def test_a_killed_gateways_call_runs_once(
    gateways: tuple[Gateway, Gateway], here: httpx.AsyncClient, there: httpx.AsyncClient, owls: ModuleServer
) -> None:
    """Its client repeats itself with its key at another gateway, and has the first call's result."""
    headers = {"Idempotency-Key": str(uuid.uuid4())}
    asking = asyncio.create_task(here.post("/calls", json=nap(5, "owls.nap_once"), headers=headers))
    await until(lambda: owls.running, "the call runs")
    gateways[0].site.kill()
    with pytest.raises(httpx.HTTPError):
        await asking
    again = await there.post("/calls", json=nap(5, "owls.nap_once"), headers=headers)

    assert (again.status_code, again.json()["result"]) == (200, "awake")
    assert len(owls.calls("nap_once")) == 1


async def test_a_killed_gateways_call_expires_elsewhere(
    gateways: tuple[Gateway, Gateway], here: httpx.AsyncClient, there: httpx.AsyncClient, owls: ModuleServer
) -> None:
    """Whoever follows it ends it at its deadline, when nobody else is there to do so."""
    begun = await here.post("/calls", json=nap(30, timeout_seconds=15), headers=ASYNC)
    gateways[0].site.kill()
    ended = await there.get(begun.headers["location"], headers={"Prefer": "wait=20"})

    assert (ended.json()["state"], ended.json()["result"]["error_code"]) == ("done", "timed_out")
    await until(lambda: not owls.running, "the module was told")


async def test_a_gateway_that_ends_answers_whom_it_holds_open(
    gateways: tuple[Gateway, Gateway], here: httpx.AsyncClient, there: httpx.AsyncClient, owls: ModuleServer
) -> None:
    """A request that waits is answered with where its call is; a stream gets a last event; both go on at another gateway."""
    leaving, _ = gateways
    asking = asyncio.create_task(here.post("/calls", json=nap(20)))
    await until(lambda: owls.running, "the call runs")
    begun = await here.post("/calls", json=nap(20), headers=ASYNC)
    following = asyncio.create_task(here.get(f"{begun.headers['location']}/events"))
    await asyncio.sleep(1)
    leaving.site.send_signal(signal.SIGTERM)
    waited, followed = await asyncio.gather(asking, following)
    await until(lambda: all(task.done() for task in leaving.site.tasks), "it has ended")

    assert (waited.status_code, "event: closing" in followed.text) == (202, True)
    for location in (waited.headers["location"], begun.headers["location"]):
        ended = await there.get(location, headers={"Prefer": "wait=25"})
        assert ended.json()["result"]["result"] == "awake"
