"""Resources of MCP modules that clients watch: an update reaches those that have asked, at whichever gateway they listen."""

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx
import pytest
from mcp.client.subscriptions import listen
from mcp.shared.exceptions import MCPError
from starlette.types import ASGIApp

from bed.fleet import Bed, Gateway, until
from bed.site import Site
from support.gateways.mcp_clients import ERAS, Era, mcp_client
from support.gateways.mcp_requests import request_of
from support.gateways.old_sessions import OldSession
from support.hosts.watched_server import Watched, server_of
from support.hosts.watching import subscribe, unsubscribe, watching
from toolfleet_registry.functions.passed_methods import ServerChange
from toolfleet_registry.redis.keys import GatewayKeys, Keys
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.watching import ServerChanges

ONE, TWO = "eggs://one", "eggs://two"
MODULES = ("old", "new")


@dataclass(frozen=True)
class WatchedFleet:
    """A server of each era, and two gateways with one key."""

    bed: Bed
    one: Gateway
    two: Gateway
    servers: dict[str, Site]

    async def restart(self, module: str) -> None:
        """Kill a module's server, and start another one where it was."""
        site = self.servers[module]
        port = next(each.getsockname()[1] for each in site.sockets if each.fileno() >= 0 and _listens(each))
        site.kill()
        self.servers[module], _ = await self.bed.serve_app(f"{module}-server", watched_app(module), port)


def watched_app(module: str) -> ASGIApp:
    return server_of(Watched(), is_old=module == "old").streamable_http_app()


def _listens(each: socket.socket) -> bool:
    return bool(each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


@pytest.fixture
async def fleet(bed: Bed) -> WatchedFleet:
    servers = {module: await bed.host_mcp(module, watched_app(module)) for module in MODULES}
    await bed.worker()
    fleet = WatchedFleet(bed, await bed.gateway(), await bed.gateway(), servers)
    for gateway in (fleet.one, fleet.two):
        async with gateway.client() as client:

            async def are_there() -> bool:
                text = (await client.get("/tools")).text
                return all(f'"{module}.lay"' in text for module in MODULES)

            await until(are_there, "the gateway has the tools", step=1)
    return fleet


@pytest.fixture
async def here(fleet: WatchedFleet) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the first gateway."""
    async with fleet.one.client() as client:
        yield client


@pytest.fixture
async def there(fleet: WatchedFleet) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the other one."""
    async with fleet.two.client() as client:
        yield client


async def lay(gateway: Gateway, module: str, uri: str = ONE) -> None:
    async with mcp_client(gateway, path=f"/mcp/{module}") as client:
        await client.call_tool("lay", {"uri": uri})


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("module", MODULES)
async def test_an_update_reaches_who_watches(fleet: WatchedFleet, module: str, era: Era) -> None:
    """And nobody else, also where another gateway has it changed; changes of the lists of prompts and resources as well."""
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


async def test_who_watches_no_more_is_told_no_more(fleet: WatchedFleet) -> None:
    """Others that watch the same are."""
    async with (
        watching(fleet.one, "old", "legacy", ONE, TWO) as (leaving, heard),
        watching(fleet.two, "old", "auto", ONE) as (_, other),
    ):
        await unsubscribe(leaving, ONE)
        await unsubscribe(leaving, "eggs://never-watched")
        await lay(fleet.one, "old")
        await until(lambda: other.uris, "the other client was told")
        await lay(fleet.one, "old", TWO)
        await until(lambda: heard.uris, "a later update came")

    assert (heard.uris, other.uris) == ([TWO], [ONE])


@pytest.mark.parametrize("era", ERAS)
async def test_a_server_that_was_started_anew_is_watched_again(fleet: WatchedFleet, era: Era) -> None:
    """Its clients are told that what they watch may have changed meanwhile, and then of each change."""
    async with watching(fleet.one, "old", era, ONE) as (_, heard):
        await fleet.restart("old")
        await until(lambda: ONE in heard.uris, "it may have changed")
        await until(lambda: {"prompts", "resources"} <= {*heard.lists}, "and so may its lists")
        heard.uris.clear()
        await lay(fleet.two, "old")
        await until(lambda: heard.uris == [ONE], "the update came")


async def test_any_gateway_takes_a_subscription_and_any_has_the_stream(
    fleet: WatchedFleet, here: httpx.AsyncClient, there: httpx.AsyncClient
) -> None:
    """What a session watches lies in Redis; a second stream takes the place of the first, which ends."""
    session = await OldSession.open(here, "/mcp/old")
    assert "error" not in await session.ask(here, "resources/subscribe", uri=ONE)
    async with session.stream(here) as first, session.stream(there) as second:
        told = asyncio.ensure_future(anext(second))
        ended = asyncio.ensure_future(anext(first, None))

        async def is_told() -> bool:
            await session.ask(here, "tools/call", name="lay", arguments={"uri": ONE})
            return told.done()

        await until(is_told, "the second stream is told")
        assert (await told)["params"]["uri"] == ONE
        while await ended is not None:  # of before there was a second one
            ended = asyncio.ensure_future(anext(first, None))
        await here.delete("/mcp/old", headers=session.headers)
        async for _ in second:  # ends with the session
            pass


async def test_what_may_not_be_watched_is_refused(fleet: WatchedFleet) -> None:
    """In the server's words; newer clients find it left out of what is acknowledged. Addresses are of bounded length."""
    async with mcp_client(fleet.one, "legacy", path="/mcp/old") as client:
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
    async with mcp_client(fleet.one, path="/mcp/old") as client:
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
    fleet: WatchedFleet, here: httpx.AsyncClient, era: Era
) -> None:
    """An operator switches that off as any tool, and on again."""
    tool = "/operations/tools/old.mcp.resources.subscribe"
    async with watching(fleet.one, "old", era, ONE) as (_, heard):
        assert (await here.post(f"{tool}/disable", json={})).is_success

        async def is_refused() -> bool:
            async with mcp_client(fleet.one, "legacy", path="/mcp/old") as client:
                assert client.server_capabilities.resources is not None
                return not client.server_capabilities.resources.subscribe

        await until(is_refused, "nobody can watch")
        heard.lists.clear()
        await lay(fleet.two, "old")
        async with mcp_client(fleet.two, path="/mcp/old") as client:
            await client.list_resources()
            await client.call_tool("build", {})
        await until(lambda: "resources" in heard.lists, "a later change came")
        assert heard.uris == []
        assert (await here.post(f"{tool}/enable", json={})).is_success

        async def is_told() -> bool:
            await lay(fleet.two, "old")
            return bool(heard.uris)

        await until(is_told, "updates come again")


async def test_a_client_that_never_reads_costs_nothing_else(fleet: WatchedFleet) -> None:
    """Megabytes of updates that it leaves where they are hold up neither calls nor who reads."""
    long = [f"eggs://{number}".ljust(1900, "x") for number in range(50)]
    body, headers = request_of("subscriptions/listen", {"notifications": {"resourceSubscriptions": long}})
    async with (
        fleet.one.client() as silent,
        watching(fleet.one, "new", "auto", ONE) as (_, heard),
        async_client(fleet.bed.redis.url) as redis,
        silent.stream("POST", "/mcp/new", json=body, headers=headers) as answer,
    ):
        assert answer.is_success  # and nothing of it is read
        changes = ServerChanges(redis, GatewayKeys(Keys()))
        for number in range(60):
            await changes.tell("new", [ServerChange("resource", uri) for uri in (*long, ONE)])
            await until(lambda least=number: len(heard.uris) > least, "the other client is told")  # type: ignore[misc]
        await lay(fleet.one, "new")
