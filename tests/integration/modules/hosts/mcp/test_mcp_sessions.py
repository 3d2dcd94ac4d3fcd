"""Sessions with MCP servers: whose they are, what is hidden in them, and what their ends cost."""

import asyncio
import logging
import os
import signal
import sys
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest

from support.hosts.mcp_server import HostedServer, hosted_nest, hosted_server, http_nest, stdio
from support.waiting import wait_until
from toolfleet_cli.local.redis_server import free_port
from toolfleet_modules.hosts.child_process import Fence
from toolfleet_modules.hosts.mcp.http_transport import HttpServer
from toolfleet_modules.hosts.mcp.stdio_transport import StdioServer
from toolfleet_modules.hosts.secrets import Secrets

pytestmark = pytest.mark.asyncio

PLANTED = "planted/Zq3.8817200934"


async def who(served: HostedServer, user: str | None) -> str:
    """The process that answers this user."""
    result = await served.client.send("nest.echo", {}, user_id=user, seconds=30)
    return str(result.result).rpartition(" ")[2] if result.success else str(result.error)


async def test_an_argument_that_is_a_header_is_sent_as_one_in_each_users_session(tmp_path: Path) -> None:
    """A server that wants it there takes the call, whether all share a session or not."""
    for scope in ("shared", "caller"):
        async with hosted_nest("http", tmp_path, scope=scope) as served:
            labelled = await served.call("label", text="owl")
            assert labelled.success, labelled


async def test_a_stream_that_does_not_open_holds_nobody_up(tmp_path: Path) -> None:
    """An older server may answer to it only when it has something to say: its calls are sent all the same."""
    async with hosted_nest("http --old", tmp_path, {"STREAM_SECONDS": "3600"}) as served:
        assert (await served.settled("echo", text="up")).success


async def test_a_program_stands_back_with_all_that_it_starts(tmp_path: Path) -> None:
    """So does the process that watches over it; a host that stands back further passes that on."""
    notes, own = tmp_path / "notes", psutil.Process().nice()
    async with hosted_server(replace(stdio(notes), fence=Fence(memory_bytes=None, nice=11)), notes) as served:
        server = psutil.Process(served.pids()[0])
        watching = server.parent()
        assert watching is not None
        assert (server.nice(), watching.nice()) == (max(own, 11), max(own, 11))
    async with hosted_server(stdio(notes), notes) as served:
        assert psutil.Process(served.pids()[-1]).nice() == own


async def test_users_never_share_a_session(tmp_path: Path) -> None:
    """Each has a process of its own; who says no user id is refused, and one that is idle makes place for another."""
    notes = tmp_path / "notes"
    async with hosted_server(stdio(notes), notes, scope="caller", most_sessions=2, idle_seconds=60) as served:
        ada, bob = await asyncio.gather(who(served, "ada"), who(served, "bob"))
        assert len({ada, bob, str(served.pids()[0])}) == 3
        assert await who(served, "ada") == ada

        refused = await served.client.send("nest.echo", {}, user_id=None)
        assert (refused.success, refused.effect_state, "user id" in str(refused.error)) == (False, "none", True)

        working = asyncio.ensure_future(served.client.send("nest.wait", {}, user_id="ada", seconds=30))
        await wait_until(lambda: "wait " in served.noted(), "ada's call is at work")
        eve = await who(served, "eve")  # in bob's place
        assert eve not in {ada, bob}
        await wait_until(lambda: not psutil.pid_exists(int(bob)), "bob's has ended")
        also = asyncio.ensure_future(served.client.send("nest.wait", {}, user_id="eve", seconds=30))
        await wait_until(lambda: served.noted().count("wait ") == 2, "eve's call is at work")
        full = await served.client.send("nest.echo", {}, user_id="bob")
        assert (full.status, full.effect_state) == (503, "none")
        for call in (working, also):
            call.cancel()
        await asyncio.gather(working, also, return_exceptions=True)


async def test_idle_sessions_of_users_end(tmp_path: Path) -> None:
    """And the next call of that user has another."""
    notes = tmp_path / "notes"
    async with hosted_server(stdio(notes), notes, scope="caller", idle_seconds=0.4) as served:
        first = await who(served, "ada")
        await wait_until(lambda: not psutil.pid_exists(int(first)), "it has ended")
        assert await who(served, "ada") != first


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_server_that_ends_costs_the_calls_that_wait_for_it(tmp_path: Path, number: signal.Signals) -> None:
    """However many: each ends as unknown and is sent once; the manifest keeps the tools, and another server takes the next calls."""
    async with hosted_nest("stdio", tmp_path, stuck_seconds=0.5) as served:
        tools = set(served.host.tools)
        waiting = [asyncio.ensure_future(served.client.send("nest.wait", {}, seconds=3)) for _ in range(40)]
        await wait_until(lambda: served.noted().count("wait ") == 40, "they are at work")
        assert (await served.call("echo", text="owl")).success
        os.kill(served.pids()[0], number)

        lost = await asyncio.gather(*waiting)
        assert {(each.success, each.effect_state, each.retryable) for each in lost} == {(False, "unknown", False)}
        assert set(served.host.tools) == tools
        assert (await served.settled("echo", text="again")).success
        assert len(served.pids()) == 2
        repeated = await served.client.send("nest.wait", {}, seconds=1, call_id=lost[0].call_id)
        assert (repeated.effect_state, served.noted().count("wait ")) == ("unknown", 40)


async def test_many_calls_side_by_side_get_their_own_answers(tmp_path: Path) -> None:
    """Answers that are read together, small ones and some that no pipe holds; one call that waits does not hold them up."""
    notes = tmp_path / "notes"
    async with hosted_server(stdio(notes), notes) as served:
        waiting = asyncio.ensure_future(served.client.send("nest.wait", {}, seconds=30))
        texts = [f"{number}:" + "x" * (200_000 if number % 10 == 0 else 20) for number in range(60)]
        found = await asyncio.gather(*(served.call("echo", text=text) for text in texts))
        assert [each.result for each in found] == [f"echo: {text} from {served.pids()[0]}" for text in texts]
        assert not waiting.done()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


@pytest.mark.usual
async def test_secrets_reach_the_server_and_nobody_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither results nor errors, progress, resources or logs show one."""
    notes = tmp_path / "notes"
    secrets = Secrets({"TOKEN": PLANTED})
    caplog.set_level(logging.DEBUG, logger="toolfleet")
    server = stdio(notes, NEST_TOKEN=secrets.fill("${TOKEN}"), EGG=PLANTED)
    async with hosted_server(server, notes, secrets=secrets) as served:
        shown = await served.call("environment", text="NEST_TOKEN")
        failed = await served.call("fail", text=PLANTED)
        read = await served.client.http.post("/mcp/resources/read", json={"params": {"uri": "nest://egg"}})
        manifest = (await served.client.http.get("/manifest")).text

        assert (shown.result, failed.error) == ("[secret TOKEN]", "no [secret TOKEN]")
        assert read.json()["result"]["contents"][0]["text"] == "[secret TOKEN]"
        assert PLANTED not in manifest + caplog.text + repr(served.host.__dict__)


async def test_prompts_resources_and_completion_pass_through(tmp_path: Path) -> None:
    """By one route, with the protocol's own parameters and results; with a key, for the fleet only."""
    async with hosted_nest("http", tmp_path) as served:

        async def ask(method: str, **params: object) -> tuple[int, str]:
            response = await served.client.http.post(f"/mcp/{method}", json={"params": params, "user_id": "ada"})
            return response.status_code, response.text

        ref = {"type": "ref/prompt", "name": "greet"}
        for method, params, words in (
            ("prompts/list", {}, '"name":"greet"'),
            ("prompts/get", {"name": "greet"}, "Hoot greet"),
            ("resources/list", {}, "nest://egg"),
            ("resources/read", {"uri": "nest://egg"}, "egg"),
            ("completion/complete", {"ref": ref, "argument": {"name": "x", "value": "o"}}, "owl"),
        ):
            status, answer = await ask(method, **params)
            assert (status, words in answer) == (200, True), (method, answer)
        assert (await ask("tools/call", name="echo"))[0] == 404
        assert (await ask("prompts/get"))[0] == 422
        assert (await ask("resources/templates/list"))[0] == 502  # this server has none
    async with hosted_nest("http", tmp_path, key="k" * 32) as keyed:
        assert (await keyed.client.http.post("/mcp/prompts/list", json={})).status_code == 403


async def test_an_http_server_may_come_and_go(tmp_path: Path) -> None:
    """While it is away calls are turned away, and nothing is sent twice; when it is back, they are taken, in a new session."""
    notes, port = tmp_path / "notes", free_port()
    async with AsyncExitStack() as first:
        server = await first.enter_async_context(http_nest(notes, "--old", port=port))
        async with hosted_server(server, notes) as served:
            waiting = asyncio.ensure_future(served.client.send("nest.wait", {}, seconds=30))
            await wait_until(lambda: "wait " in served.noted(), "it is at work")
            await first.aclose()

            lost = await waiting
            assert (lost.success, lost.effect_state, lost.retryable) == (False, "unknown", False)
            away = await served.call("echo")
            assert (away.status, away.effect_state) == (503, "none"), away
            assert served.host.tools
            async with http_nest(notes, "--old", port=port):
                assert (await served.settled("echo", text="back")).success
                assert served.noted().count("wait ") == 1


async def test_a_server_that_is_not_there_is_listed_with_the_reason(tmp_path: Path) -> None:
    """The module is served without tools, and says why."""
    for server in (
        StdioServer(("/no/such/program",)),
        HttpServer(f"http://127.0.0.1:{free_port()}/mcp"),
        StdioServer((sys.executable, "-c", "1")),
    ):
        async with hosted_server(server, tmp_path / "notes") as served:
            await wait_until(served.faults, "it is listed")
            assert "cannot be served" in served.faults()["nest"]
            assert not served.host.tools


async def test_a_list_that_cannot_be_served_is_an_error_and_the_next_one_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever is wrong with it, also what nobody has foreseen: a mock, as it is not known. It is told of once."""
    offers = "toolfleet_modules.hosts.mcp.mcp_host.offer_of"
    with monkeypatch.context() as patched:
        broken = Mock(side_effect=RecursionError)
        patched.setattr(offers, broken)
        async with hosted_nest("http", tmp_path, refresh_seconds=0.1) as served:
            await wait_until(lambda: "RecursionError" in str(served.faults()), "it is listed")
            await wait_until(lambda: broken.call_count > 2, "it is asked for again")
            patched.undo()
            await wait_until(lambda: served.host.tools, "the next list is served")

            assert not served.faults()
            assert len([record for record in caplog.records if "RecursionError" in record.getMessage()]) == 1
            assert (await served.call("echo", text="hoot")).success
