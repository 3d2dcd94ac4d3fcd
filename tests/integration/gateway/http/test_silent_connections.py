"""Connections that send no request cost others nothing: each address has its share, and probes of health find a place."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from support.gateways.app_server import serving
from support.gateways.raw_http import request
from support.waiting import wait_until
from toolfleet_gateway.http import server
from toolfleet_gateway.http import server as http_server
from toolfleet_gateway.http.server import GatewayServer

CONNECTIONS = 80
SHARE = 20  # a quarter of them
RESERVED = 64
MALLORY, ADA, PROXY = "127.0.0.2", "127.0.0.3", "127.0.0.4"
HALF_A_HEAD = b"GET /calls HTTP/1.1\r\nHost: localhost\r\n"


async def here(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer each request, but `/stream` without an end."""
    if scope["path"] == "/stream":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"data: begun\n\n", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        return
    await Response(b"here")(scope, receive, send)


class Clients:
    """Clients of a server, at addresses of their own."""

    def __init__(self, server: GatewayServer) -> None:
        self._server = server
        self._port: int = server.servers[0].sockets[0].getsockname()[1]
        self._writers: list[asyncio.StreamWriter] = []

    def held(self, address: str) -> int:
        """How many connections of the address the server has."""
        return [each.client and each.client[0] for each in self._server.server_state.connections].count(address)  # type: ignore[union-attr]

    async def connect(self, address: str, data: bytes = b"") -> asyncio.StreamReader:
        """Open a connection, and send `data`."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, local_addr=(address, 0))
        self._writers.append(writer)
        writer.write(data)
        return reader

    async def status(self, address: str, path: str) -> int:
        """The status of an answer, on a connection of its own."""
        reader = await self.connect(address, request("GET", path))
        return int((await reader.readline()).split()[1])

    async def aclose(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        await wait_until(lambda: not self._server.server_state.connections, "all are gone")


@pytest.fixture
async def clients(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Clients]:
    """A server of 80 connections with a trusted proxy, and a time for heads that no test takes."""
    monkeypatch.setattr(server, "HEADER_SECONDS", 600)
    async with serving(here, gateway_connections=CONNECTIONS, gateway_trusted_proxies=(f"{PROXY}/32",)) as served:
        clients = Clients(served)
        try:
            yield clients
        finally:
            await clients.aclose()


@pytest.mark.parametrize("data", [b"", HALF_A_HEAD], ids=["nothing", "half a head"])
async def test_one_address_takes_no_more_than_its_share(clients: Clients, data: bytes) -> None:
    """The oldest connection is closed, with a problem; other addresses and the same one are answered meanwhile."""
    opened = [await clients.connect(MALLORY, data) for _ in range(3 * CONNECTIONS)]
    await wait_until(lambda: clients.held(MALLORY) == SHARE, "no more than its share is left")

    assert (await opened[0].readline()).startswith(b"HTTP/1.1 503")
    assert b"busy" in await opened[0].read()
    assert [await clients.status(ADA, path) for path in ("/calls", "/livez", "/readyz")] == [200] * 3
    assert [await clients.status(MALLORY, path) for path in ("/calls", "/livez", "/readyz")] == [200] * 3


async def test_connections_with_a_request_are_not_silent(clients: Clients) -> None:
    """An address may have any number of streams and answered connections: none of them is closed for a silent one."""
    streams = [await clients.connect(MALLORY, request("GET", "/stream")) for _ in range(2 * SHARE)]
    for each in streams:
        assert await each.readuntil(b"begun\n\n")
    for _ in range(2 * SHARE):
        await clients.connect(MALLORY)
    await wait_until(lambda: clients.held(MALLORY) == 3 * SHARE, "no more than its share is left of the others")

    assert not any(each.at_eof() for each in streams)


async def test_a_proxy_may_be_silent(clients: Clients) -> None:
    """The connections of a trusted proxy are not counted by its address."""
    opened = [await clients.connect(PROXY) for _ in range(2 * SHARE)]
    await wait_until(lambda: clients.held(PROXY) == 2 * SHARE, "all of them are open")

    assert await clients.status(PROXY, "/calls") == 200
    assert not any(each.at_eof() for each in opened)


@pytest.mark.parametrize(
    "fill",
    [
        lambda number: (PROXY, b""),
        lambda number: (f"127.0.1.{number + 1}", b""),
        lambda number: (MALLORY, request("GET", "/stream")),
    ],
    ids=["a proxy", "many addresses", "streams"],
)
async def test_health_is_answered_where_no_connection_is_left(
    clients: Clients, fill: Callable[[int], tuple[str, bytes]]
) -> None:
    """Beyond the last connection probes are answered, and other requests are told to come again."""
    for number in range(CONNECTIONS):
        await clients.connect(*fill(number))
    held = {fill(number)[0] for number in range(CONNECTIONS)}
    await wait_until(lambda: sum(map(clients.held, held)) == CONNECTIONS, "all of them are open")

    assert [await clients.status(ADA, path) for path in ("/livez", "/readyz?verbose=1", "/calls")] == [200, 200, 503]
    for _ in range(3 * RESERVED):  # answered and refused ones leave their places to others
        assert await clients.status(ADA, "/livez") == 200


async def test_silent_connections_keep_no_place_of_probes(clients: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the last connection a silent one is closed in a moment, and beyond the places of probes at once."""
    monkeypatch.setattr(http_server, "_RESERVED_SECONDS", 0.05)
    opened = [await clients.connect(PROXY) for _ in range(CONNECTIONS + 2 * RESERVED)]
    await wait_until(lambda: clients.held(PROXY) == CONNECTIONS, "those beyond are closed")

    assert all([(await each.readline()).startswith(b"HTTP/1.1 503") for each in opened[CONNECTIONS:]])
    assert await clients.status(ADA, "/livez") == 200
