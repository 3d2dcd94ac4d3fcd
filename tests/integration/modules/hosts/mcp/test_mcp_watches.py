"""Resources of MCP servers that are watched: a host has its server tell of what it finds watched, and of nothing else."""

import os
import signal
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.hosts.hosted_program import paths
from support.hosts.mcp_server import HostedServer, hosted_server
from support.hosts.watched_server import SERVER, Watched, server_of
from support.oauth.loopback_app import served
from support.waiting import wait_until
from toolfleet_modules.hosts.mcp import server_watch
from toolfleet_modules.hosts.mcp.http_transport import HttpServer
from toolfleet_modules.hosts.mcp.stdio_transport import StdioServer
from toolfleet_modules.hosts.secrets import Secrets
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.functions.passed_methods import WATCH_METHOD, ServerChange, passing_method

pytestmark = pytest.mark.asyncio

WATCH = f"nest.{passing_method(WATCH_METHOD)}"
ONE, TWO = "eggs://one", "eggs://two"
EGG = ServerChange("resource", ONE)


class KeptWatches:
    """What is watched and told, in this process; nobody answers while it `is_away`."""

    def __init__(self, *uris: str) -> None:
        self.uris = {*uris}
        self.told: list[ServerChange] = []
        self.asked = 0
        self.is_away = self.is_closed = False

    async def watched(self) -> frozenset[str]:
        self._check()
        self.asked += 1
        return frozenset(self.uris)

    async def tell(self, changes: Sequence[ServerChange]) -> None:
        self._check()
        self.told += changes

    async def aclose(self) -> None:
        self.is_closed = True

    def _check(self) -> None:
        if self.is_away:
            raise FleetUnavailable("Nobody answers.")


@asynccontextmanager
async def watched(
    folder: Path, watches: KeptWatches | None, *, is_old: bool = True, **options: Any
) -> AsyncGenerator[HostedServer]:
    """The watched server as the module `nest`."""
    notes = folder / "notes"
    server = server_of(Watched({"NOTES": str(notes)}), is_old=is_old)
    async with (
        served(server.streamable_http_app()) as url,
        hosted_server(HttpServer(f"{url}/mcp"), notes, watches=watches, **options) as hosted,
    ):
        yield hosted


async def lay(nest: HostedServer, uri: str = ONE) -> None:
    assert (await nest.settled("lay", uri=uri)).success


async def test_what_is_found_watched_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a call: another host may have taken that. What nobody watches any more is given up, and never told of."""
    monkeypatch.setattr(server_watch, "_GRACE_SECONDS", 0.5)
    watches = KeptWatches(ONE)
    async with watched(tmp_path, watches) as nest:
        await wait_until(lambda: f"subscribe {ONE}" in nest.noted(), "it is asked for")
        await lay(nest)
        await wait_until(lambda: watches.told == [EGG], "the change is told")
        watches.uris = {TWO}
        await wait_until(lambda: f"unsubscribe {ONE}" in nest.noted(), "it is given up")
        await lay(nest)
        await lay(nest, TWO)
        await wait_until(lambda: len(watches.told) > 1, "the other change is told")

    assert watches.told == [EGG, ServerChange("resource", TWO)]
    assert nest.noted().count(f"subscribe {ONE}") == 1
    assert watches.is_closed


@pytest.mark.parametrize("era", ["old", "new"])
async def test_a_call_returns_when_the_server_tells(tmp_path: Path, era: str) -> None:
    """What changes right after it is told; what the server refuses is an error in its words."""
    watches = KeptWatches(ONE)
    async with watched(tmp_path, watches, is_old=era == "old") as nest:
        watches.uris = {ONE, TWO}
        taken = await nest.client.send(WATCH, {"uri": TWO})
        assert (taken.success, taken.result) == (True, {"result": {}})
        await lay(nest, TWO)
        await wait_until(lambda: ServerChange("resource", TWO) in watches.told, "the change is told")
        if era == "old":
            refused = await nest.client.send(WATCH, {"uri": "eggs://forbidden"})
            assert refused.result == {"error": {"code": -32602, "message": "it is forbidden to watch it"}}
        for wrong in ({}, {"uri": 7}, {"uri": ""}, {"uri": "x" * 2001}):
            answer = await nest.client.send(WATCH, wrong)
            assert isinstance(answer.result, dict)
            assert answer.result["error"]["code"] == -32602


async def test_a_new_session_watches_again(tmp_path: Path) -> None:
    """Whoever watches is told of all that may have changed while there was no server."""
    watches, notes = KeptWatches(ONE), tmp_path / "notes"
    environment = {"NOTES": str(notes), "PYTHONPATH": paths()}
    server = StdioServer((sys.executable, str(SERVER), "stdio", "--old"), environment=environment)
    async with hosted_server(server, notes, watches=watches) as nest:
        await wait_until(lambda: f"subscribe {ONE}" in nest.noted(), "it is asked for")
        assert watches.told == []
        os.kill(nest.pids()[0], signal.SIGKILL)
        await wait_until(lambda: nest.noted().count(f"subscribe {ONE}") == 2, "it is asked for again")
        everything = {ServerChange("prompts"), ServerChange("resources"), EGG}
        await wait_until(lambda: {*watches.told} == everything, "all may have changed")


async def test_who_is_away_hears_of_it_later(tmp_path: Path) -> None:
    """What is watched stays watched meanwhile, also where that was lost for a moment, and each change is told once."""
    watches = KeptWatches(ONE)
    async with watched(tmp_path, watches) as nest:
        await wait_until(lambda: f"subscribe {ONE}" in nest.noted(), "it is asked for")
        watches.is_away = True
        for _ in range(3):
            await lay(nest)
        watches.is_away, asked = False, watches.asked
        watches.uris = set()
        await wait_until(lambda: watches.told == [EGG] and watches.asked > asked + 1, "it is told")
        assert f"unsubscribe {ONE}" not in nest.noted()


async def test_what_lies_below_is_told_as_what_is_watched(tmp_path: Path) -> None:
    """Who watches a folder is told that something in it has changed, and not which of the addresses that others watch."""
    watches = KeptWatches("eggs://nest", "eggs://nest/one", "eggs://nestling")
    async with watched(tmp_path, watches) as nest:
        await wait_until(lambda: "subscribe eggs://nestling" in nest.noted(), "they are asked for")
        await lay(nest, "eggs://nest/one")
        expected = {ServerChange("resource", uri) for uri in ("eggs://nest", "eggs://nest/one")}
        await wait_until(lambda: {*watches.told} == expected, "both are told")


async def test_a_secret_in_an_address_is_not_told(tmp_path: Path) -> None:
    """Neither is anything of it: nobody watches what is told in its place."""
    watches = KeptWatches("eggs://Zq3.8817200934")
    async with watched(tmp_path, watches, secrets=Secrets({"TOKEN": "Zq3.8817200934"})) as nest:
        await wait_until(lambda: any(line.startswith("subscribe") for line in nest.noted()), "it is asked for")
        await lay(nest, "eggs://Zq3.8817200934")
        await wait_until(lambda: watches.told, "something is told")

    assert "8817200934" not in str(watches.told)


async def test_nobody_can_watch_where_nobody_could_be_told(tmp_path: Path) -> None:
    """A server with a session for each user, and a host that has nowhere to tell it, offer no such tool."""
    async with watched(tmp_path, None) as nest:
        assert WATCH not in nest.host.tools
    async with watched(tmp_path, KeptWatches(ONE), scope="caller") as nest:
        assert WATCH not in nest.host.tools
