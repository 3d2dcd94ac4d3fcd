"""A module as it is in the world: a server, or several, which are killed at the worst moment."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.modules.sdk_program import running
from support.waiting import wait_until
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_registry.time import fleet_clock
from toolfleet_registry.time.lease import ALLOWANCE_SECONDS


@pytest.fixture(params=["sqlite", "redis"])
def replies(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the module remembers."""
    return str(request.getfixturevalue("redis_url")) if request.param == "redis" else str(tmp_path / "replies.db")


async def execute(
    client: httpx.AsyncClient, tool: str, call_id: str, *, seconds: float = 30, **arguments: Any
) -> httpx.Response:
    headers = {"Idempotency-Key": call_id, "Toolfleet-Time-Left-Ms": str(int(seconds * 1000))}
    body = {"tool_name": f"owls.{tool}", "arguments": arguments}
    return await client.post("/execute", json=body, headers=headers)


def journal(folder: Path) -> list[str]:
    path = folder / "journal"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize(("tool", "expected"), [("once", ["a"]), ("read", ["a", "a"])])
async def test_a_process_that_is_killed_between_effect_and_reply(
    tmp_path: Path, replies: str, tool: str, expected: list[str]
) -> None:
    """What may happen once has happened once, and the next process says that nobody knows; what is harmless runs again."""
    with running(tmp_path, replies=replies) as doomed:
        async with doomed.client() as client:
            call = asyncio.create_task(execute(client, tool, "c", name="a", wait=True))
            await wait_until(lambda: journal(tmp_path), "the effect has happened")
            os.killpg(doomed.process.pid, signal.SIGKILL)
            with pytest.raises(httpx.HTTPError):
                await call
    (tmp_path / "go").touch()
    with running(tmp_path, replies=replies) as heir:
        async with heir.client() as client:
            reply = (await execute(client, tool, "c", name="a", wait=True)).json()
            state = (await client.post("/reconcile", json={"call_id": "c"})).json()["state"]
    assert journal(tmp_path) == expected
    if tool == "once":
        assert (reply["success"], reply["effect_state"], state) == (False, "unknown", "unknown")
    else:
        assert (reply["success"], reply["result"], state) == (True, "a", "done")


@pytest.mark.usual
async def test_two_processes_with_the_same_call_run_it_once(tmp_path: Path, replies: str) -> None:
    """The second one waits, and answers what the first one did."""
    with running(tmp_path, replies=replies) as one, running(tmp_path, replies=replies) as other:
        async with one.client() as here, other.client() as there:
            first = asyncio.create_task(execute(here, "once", "c", name="a", wait=True))
            await wait_until(lambda: journal(tmp_path), "it runs")
            second = asyncio.create_task(execute(there, "once", "c", name="a", wait=True))
            assert (await there.post("/reconcile", json={"call_id": "c"})).json()["state"] == "running"
            (tmp_path / "go").touch()
            assert (await first).json() == (await second).json()
    assert journal(tmp_path) == ["a"]


async def test_a_flood_on_a_server_of_several_processes(tmp_path: Path, replies: str) -> None:
    """Five requests for each of forty calls, in any order: forty effects, and every request has its reply."""
    with running(tmp_path, replies=replies, workers=2) as server:
        async with server.client() as client:
            sent = [execute(client, "once", f"c{n % 40}", name=f"a{n % 40}") for n in range(200)]
            results = [response.json() for response in await asyncio.gather(*sent)]
    assert [reply["result"] for reply in results] == [f"a{n % 40}" for n in range(200)]
    assert sorted(journal(tmp_path)) == sorted(f"a{n}" for n in range(40))


async def test_a_client_that_hangs_up_stops_its_call(tmp_path: Path) -> None:
    """Over a real connection."""
    with running(tmp_path) as server:
        async with server.client() as client:
            call = asyncio.create_task(execute(client, "once", "c", name="a", wait=True))
            await wait_until(lambda: journal(tmp_path), "it runs")
            call.cancel()
            await asyncio.wait({call}, timeout=20)
            await wait_until(lambda: "a cancelled" in journal(tmp_path), "it is cancelled")
            assert (await client.get("/health")).json()["running"] == 0
            assert (await client.post("/reconcile", json={"call_id": "c"})).json()["state"] == "unknown"


async def test_progress_arrives_while_the_tool_runs(tmp_path: Path) -> None:
    """A line each, at once; the last one is the reply."""
    with running(tmp_path) as server:
        body = {"tool_name": "owls.once", "arguments": {"name": "a", "wait": True}}
        async with (
            server.client() as client,
            client.stream("POST", "/execute", json=body, headers={"Accept": "application/x-ndjson"}) as response,
        ):
            lines = response.aiter_lines()
            async with asyncio.timeout(20):
                assert json.loads(await anext(lines)) == {"progress": 0.5, "message": "written"}
                assert journal(tmp_path) == ["a"]
                (tmp_path / "go").touch()
                assert json.loads(await anext(lines))["result"] == "a"


async def test_a_server_that_is_asked_to_stop_leaves_nothing_unsaid(tmp_path: Path) -> None:
    """It ends within seconds though a thread hangs; its heir knows that the call is not done."""
    store = tmp_path / "replies.db"
    with running(tmp_path, replies=store) as server:
        async with server.client() as client:
            call = asyncio.create_task(execute(client, "thread", "c", name="a", seconds=0.5))
            assert "was stopped" in (await call).json()["error"]
        server.process.terminate()
        await wait_until(lambda: server.process.poll() is not None, "it has ended")
    (tmp_path / "go").touch()
    with running(tmp_path, replies=store) as heir:
        async with heir.client() as client:
            assert (await execute(client, "thread", "c", name="a")).json()["result"] == "a"
    assert journal(tmp_path) == ["a", "a"]


async def test_a_redis_that_goes_and_comes_back(tmp_path: Path) -> None:
    """Without it nothing begins that may happen once; with it again, everything does."""
    (tmp_path / "redis").mkdir()
    soon = {"SDK_STORE_SECONDS": "1"}
    with redis_server(tmp_path / "redis") as url, running(tmp_path, replies=url, env=soon) as server:
        async with server.client() as client:
            assert (await execute(client, "once", "c1", name="a")).json()["success"]
            redis_pid = int((await _info(url))["process_id"])
            os.kill(redis_pid, signal.SIGSTOP)
            try:
                away = await execute(client, "once", "c2", name="b")
                assert (away.status_code, away.headers["Retry-After"]) == (503, "2")
                assert (await execute(client, "read", "c3", name="c")).json()["success"]
            finally:
                os.kill(redis_pid, signal.SIGCONT)
            # The question that Redis had got before it stopped may have been answered since: nobody can know.
            assert (await execute(client, "once", "c4", name="d")).json()["success"]
            again = (await execute(client, "once", "c2", name="b")).json()
    assert journal(tmp_path) == (["a", "c", "d", "b"] if again["success"] else ["a", "c", "d"])


async def _info(url: str) -> dict[str, Any]:
    from redis.asyncio import Redis  # noqa: PLC0415 - for this test only

    async with Redis.from_url(url) as redis:
        return dict(await redis.info("server"))


async def test_a_request_that_waited_while_its_module_stood_still_is_not_run(tmp_path: Path) -> None:
    """It lay in a socket until after its end; what comes then is run."""
    with running(tmp_path) as server:
        async with server.client() as client:

            async def ask(name: str, seconds: float) -> dict[str, Any]:
                now = fleet_clock.now() * 1000
                end = f"{round(now + seconds * 1000)};now={round(now)};sender=test"
                headers = {"Idempotency-Key": name, "Toolfleet-Attempt": "1", "Toolfleet-Begin-By": end}
                body = {"tool_name": "owls.once", "arguments": {"name": name}}
                reply: dict[str, Any] = (await client.post("/execute", json=body, headers=headers)).json()
                return reply

            assert (await ask("before", 60))["success"]
            os.kill(server.process.pid, signal.SIGSTOP)
            try:
                waiting = asyncio.create_task(ask("meanwhile", 0))
                await asyncio.sleep(2 * ALLOWANCE_SECONDS)
            finally:
                os.kill(server.process.pid, signal.SIGCONT)
            assert (await waiting)["effect_state"] == "none"
            assert (await ask("after", 60))["success"]
    assert journal(tmp_path) == ["before", "after"]
