"""Resources of MCP modules that clients watch: an update reaches those that have asked, at whichever gateway they listen."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator

import httpx
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.subscriptions import listen
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import ResourceUpdated

from support.gateways.gateway_process import Gateway
from support.gateways.mcp_clients import ERAS, Era, mcp_client
from support.gateways.mcp_requests import request_of
from support.gateways.old_sessions import OldSession
from support.hosts.watched_fleet import SECONDS, WatchedFleet, subscribe, unsubscribe, watched_fleet, watching
from support.waiting import wait_until, wait_until_answered
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_registry.functions.server_change import ServerChange
from toolfleet_registry.redis.gateway_keys import GatewayKeys
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.watching.server_changes import ServerChanges

USUAL = ("oldstdio", "newhttp")
OTHERS = ("newstdio", "oldhttp")
ONE, TWO = "eggs://one", "eggs://two"


def served(modules: tuple[str, ...], factory: pytest.TempPathFactory) -> Iterator[WatchedFleet]:
    with (
        redis_server(factory.mktemp("redis")) as url,
        watched_fleet(modules, url, factory.mktemp("notes"), factory.mktemp("logs")) as fleet,
    ):
        yield fleet


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedFleet]:
    yield from served(USUAL, tmp_path_factory)


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedFleet]:
    yield from served(OTHERS, tmp_path_factory)


@pytest.fixture
async def clients(fleet: WatchedFleet) -> AsyncIterator[tuple[httpx.AsyncClient, httpx.AsyncClient]]:
    """One of each gateway."""
    async with fleet.one.client() as here, fleet.two.client() as there:
        yield here, there


async def until(is_so: Callable[[], object], what: str) -> None:
    await wait_until(is_so, what, seconds=SECONDS)


async def lay(gateway: Gateway, module: str, uri: str = ONE) -> None:
    async with mcp_client(gateway, path=f"/mcp/{module}") as client:
        await client.call_tool("lay", {"uri": uri})


async def updates_reach(fleet: WatchedFleet, module: str, era: Era) -> None:
    async with (
        watching(fleet.one, module, era, ONE) as (_, heard),
        watching(fleet.one, module, era, TWO) as (_, other),
        mcp_client(fleet.two, path=f"/mcp/{module}") as layer,
    ):
        await layer.list_resources()
        await layer.call_tool("lay", {"uri": ONE})
        await until(lambda: heard.uris == [ONE], "the update came")
        await layer.call_tool("sing", {})
        await layer.call_tool("build", {})
        await until(lambda: {"prompts", "resources"} <= {*heard.lists}, "changes of lists came")
        await layer.call_tool("lay", {"uri": TWO})
        await until(lambda: other.uris == [TWO], "the other update came")

    assert heard.uris == [ONE]


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("module", USUAL)
async def test_an_update_reaches_who_watches(fleet: WatchedFleet, module: str, era: Era) -> None:
    """And nobody else, also where another gateway has it changed; changes of the lists of prompts and resources as well."""
    await updates_reach(fleet, module, era)


@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("module", OTHERS)
async def test_an_update_reaches_who_watches_another_server(others: WatchedFleet, module: str, era: Era) -> None:
    """The same of the other eras over the other transports."""
    await updates_reach(others, module, era)


async def test_who_watches_no_more_is_told_no_more(fleet: WatchedFleet) -> None:
    """Others that watch the same are."""
    async with (
        watching(fleet.one, "oldstdio", "legacy", ONE, TWO) as (leaving, heard),
        watching(fleet.two, "oldstdio", "auto", ONE) as (_, other),
    ):
        await unsubscribe(leaving, ONE)
        await unsubscribe(leaving, "eggs://never-watched")
        await lay(fleet.one, "oldstdio")
        await until(lambda: other.uris, "the other client was told")
        await lay(fleet.one, "oldstdio", TWO)
        await until(lambda: heard.uris, "a later update came")

    assert (heard.uris, other.uris) == ([TWO], [ONE])


@pytest.mark.parametrize("era", ERAS)
async def test_a_server_that_was_started_anew_is_watched_again(fleet: WatchedFleet, era: Era) -> None:
    """Its clients are told that what they watch may have changed meanwhile, and then of each change."""
    async with watching(fleet.one, "oldstdio", era, ONE) as (client, heard):
        assert (await client.call_tool("die", {})).is_error
        await until(lambda: ONE in heard.uris, "it may have changed")
        await until(lambda: {"prompts", "resources"} <= {*heard.lists}, "and so may its lists")
        heard.uris.clear()
        await lay(fleet.two, "oldstdio")
        await until(lambda: heard.uris == [ONE], "the update came")


async def test_any_gateway_takes_a_subscription_and_any_has_the_stream(
    fleet: WatchedFleet, clients: tuple[httpx.AsyncClient, httpx.AsyncClient]
) -> None:
    """What a session watches lies in Redis; a second stream takes the place of the first, which ends."""
    here, there = clients
    session = await OldSession.open(here, "/mcp/oldstdio")
    assert "error" not in await session.ask(here, "resources/subscribe", uri=ONE)
    async with session.stream(here) as first, session.stream(there) as second:
        told = asyncio.ensure_future(anext(second))
        ended = asyncio.ensure_future(anext(first, None))

        async def is_told() -> bool:
            await session.ask(here, "tools/call", name="lay", arguments={"uri": ONE})
            return told.done()

        await wait_until_answered(is_told, "the second stream is told", seconds=SECONDS)
        async with asyncio.timeout(SECONDS):
            assert (await told)["params"]["uri"] == ONE
            while await ended is not None:  # of before there was a second one
                ended = asyncio.ensure_future(anext(first, None))
        await here.delete("/mcp/oldstdio", headers=session.headers)
        async with asyncio.timeout(SECONDS):
            async for _ in second:  # ends with the session
                pass


async def test_a_program_tells_its_client(fleet: WatchedFleet) -> None:
    """`toolfleet mcp` tells clients of the newer era."""
    env = {"PATH": os.environ["PATH"], "TOOLFLEET_REDIS_URL": fleet.redis_url}
    words = ["-m", "toolfleet_cli", "mcp", "--module", "newhttp"]
    async with (
        Client(StdioServerParameters(command=sys.executable, args=words, env=env)) as client,
        listen(client.session, resource_subscriptions=[ONE]) as stream,
    ):
        await lay(fleet.one, "newhttp")
        async with asyncio.timeout(SECONDS):
            assert await anext(stream) == ResourceUpdated(ONE)


async def test_what_may_not_be_watched_is_refused(fleet: WatchedFleet) -> None:
    """In the server's words; newer clients find it left out of what is acknowledged. Addresses are of bounded length."""
    async with mcp_client(fleet.one, "legacy", path="/mcp/oldstdio") as client:
        for uri, reason in (
            ("eggs://forbidden", "forbidden to watch"),
            ("x" * 2001, "2000 characters"),
            ("", "between 1"),
        ):
            with pytest.raises(MCPError, match=reason) as refused:
                await subscribe(client, uri)
            assert refused.value.code == -32602
        assert client.server_capabilities.resources is not None
        assert (client.server_capabilities.resources.subscribe, client.server_capabilities.resources.list_changed) == (
            True,
            True,
        )
    async with mcp_client(fleet.one, path="/mcp/oldstdio") as client:
        async with listen(client.session, resource_subscriptions=[ONE, "eggs://forbidden"]) as stream:
            assert stream.honored.resource_subscriptions == [ONE]
        with pytest.raises(MCPError, match="At most 1000"):
            async with listen(client.session, resource_subscriptions=[f"eggs://{n}" for n in range(1001)]):
                pass
    async with (
        mcp_client(fleet.one, path="/mcp") as client,
        listen(
            client.session, tools_list_changed=True, prompts_list_changed=True, resource_subscriptions=[ONE]
        ) as stream,
    ):
        facts = stream.honored
        assert (facts.resource_subscriptions, facts.prompts_list_changed, facts.tools_list_changed) == (
            None,
            None,
            True,
        )


@pytest.mark.parametrize("era", ERAS)
async def test_who_may_not_watch_any_more_is_told_no_more(
    fleet: WatchedFleet, clients: tuple[httpx.AsyncClient, httpx.AsyncClient], era: Era
) -> None:
    """An operator switches that off as any tool, and on again."""
    tool = "/operations/tools/oldstdio.mcp.resources.subscribe"
    async with watching(fleet.one, "oldstdio", era, ONE) as (_, heard):
        try:
            assert (await clients[0].post(f"{tool}/disable", json={})).is_success

            async def is_refused() -> bool:
                async with mcp_client(fleet.one, "legacy", path="/mcp/oldstdio") as client:
                    assert client.server_capabilities.resources is not None
                    return not client.server_capabilities.resources.subscribe

            await wait_until_answered(is_refused, "nobody can watch", seconds=SECONDS)
            heard.lists.clear()
            await lay(fleet.two, "oldstdio")
            async with mcp_client(fleet.two, path="/mcp/oldstdio") as client:
                await client.list_resources()
                await client.call_tool("build", {})
            await until(lambda: "resources" in heard.lists, "a later change came")
            assert heard.uris == []
        finally:
            assert (await clients[0].post(f"{tool}/enable", json={})).is_success

        async def is_told() -> bool:
            await lay(fleet.two, "oldstdio")
            return bool(heard.uris)

        await wait_until_answered(is_told, "updates come again", seconds=SECONDS)


async def test_a_client_that_never_reads_costs_nothing_else(fleet: WatchedFleet) -> None:
    """Megabytes of updates that it leaves where they are hold up neither calls nor who reads."""
    long = [f"eggs://{number}".ljust(1900, "x") for number in range(50)]
    body, headers = request_of("subscriptions/listen", {"notifications": {"resourceSubscriptions": long}})
    async with (
        fleet.one.client() as silent,
        watching(fleet.one, "newhttp", "auto", ONE) as (_, heard),
        async_client(fleet.redis_url) as redis,
        silent.stream("POST", "/mcp/newhttp", json=body, headers=headers) as answer,
    ):
        assert answer.is_success  # and nothing of it is read
        changes = ServerChanges(redis, GatewayKeys(Keys()))
        for number in range(60):
            await changes.tell("newhttp", [ServerChange("resource", uri) for uri in (*long, ONE)])
            await until(lambda least=number: len(heard.uris) > least, "the other client is told")  # type: ignore[misc]
        await lay(fleet.one, "newhttp")
