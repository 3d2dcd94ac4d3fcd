"""Clients that send too much, or take nothing, cost a gateway little, and leave nothing behind."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from support.gateways.app_server import serving
from support.gateways.gateway_process import Gateway
from support.gateways.held import connections_of, memory_of
from support.gateways.raw_http import answer_to, only_answer_to, request
from support.waiting import wait_until
from toolfleet_gateway.http import server as http_server
from toolfleet_gateway.http.server import GatewayServer

_MEGABYTE = 2**20
_MOST_GROWTH = 30 * _MEGABYTE  # of one that has 100 MB sent to it
_MOST_PIPELINED = 10 * _MEGABYTE
_CHUNK = b"10000\r\n" + b"a" * 65_536 + b"\r\n"


@pytest.fixture(autouse=True)
async def _nothing_is_left(strict: Gateway) -> AsyncIterator[None]:
    """Afterwards no connection is held, little memory, and others are answered."""
    assert (await answer_to(strict, request("GET", "/livez"))).status == 200
    await wait_until(lambda: connections_of(strict) == 0, "what other tests have left is gone")
    before = memory_of(strict)
    yield
    assert (await answer_to(strict, request("GET", "/livez"))).status == 200
    await wait_until(lambda: connections_of(strict) == 0, "no connection is held")
    assert memory_of(strict) - before < _MOST_GROWTH


@pytest.mark.parametrize("header", ["Content-Length: 104857600", "Transfer-Encoding: chunked"])
async def test_a_body_of_100_mb_is_not_taken(strict: Gateway, header: str) -> None:
    """It is refused as soon as its size is known, and what still comes is not kept."""
    head = request("POST", "/calls", key=strict.key, headers=(header,), body=b"")

    answer = await answer_to(strict, head, *[_CHUNK] * 1600)

    assert (answer.status, answer.problem["error_code"]) == (413, "body_too_large")


async def test_a_hundred_slow_bodies_keep_nobody_waiting(strict: Gateway) -> None:
    """Each is given up in its time, and others are answered meanwhile."""
    head = request("POST", "/calls", key=strict.key, headers=("Content-Length: 1000",), body=b"")
    slow = [asyncio.create_task(answer_to(strict, head, *[b" "] * 1000, pause_seconds=0.2)) for _ in range(100)]
    await wait_until(lambda: connections_of(strict) >= 100, "all of them are under way")
    others = [await answer_to(strict, request("GET", "/livez")) for _ in range(20)]

    assert {answer.status for answer in others} == {200}
    assert {answer.problem["error_code"] for answer in await asyncio.gather(*slow)} == {"body_too_slow"}


async def test_who_takes_no_answer_is_sent_no_other(strict: Gateway) -> None:
    """Of a thousand requests on a connection whose client reads nothing, the gateway keeps neither answers nor requests."""
    before = memory_of(strict)
    _, writer = await asyncio.open_connection(*strict.address, limit=1)  # more is left in the system's buffers
    text = request("GET", "/openapi.json")
    writer.write(text * 100_000)
    for _ in range(20):  # while others are answered, it takes what it takes
        assert (await answer_to(strict, request("GET", "/livez"))).status == 200

    assert memory_of(strict) - before < _MOST_PIPELINED
    writer.transport.abort()


async def test_a_request_that_is_none_does_not_answer_the_one_before_it(strict: Gateway) -> None:
    """What is wrong behind a request is not said in its answer; that one is the last."""
    call = request("GET", "/tools", key=strict.key)

    for behind in (
        b"nonsense\r\n\r\n",
        request("POST", "/calls", headers=("Transfer-Encoding: chunked",), body=b"zz\r\n"),
    ):
        assert (await only_answer_to(strict, call + behind)).status == 200


async def test_a_stream_ends_with_its_client_whatever_was_asked_behind_it(strict: Gateway) -> None:
    """A request that waits behind a stream does not keep it open when both are given up."""
    ended = strict.process.said().count("path=/events")
    reader, writer = await asyncio.open_connection(*strict.address)
    writer.write(request("GET", "/events", key=strict.key) + request("GET", "/livez"))
    await reader.readuntil(b"event: state")
    writer.close()

    await wait_until(lambda: strict.process.said().count("path=/events") > ended, "the stream has ended")


async def test_so_many_requests_wait_on_a_connection(strict: Gateway) -> None:
    """Those beyond are not read: the ones before them are answered, and the connection ends."""
    reader, writer = await asyncio.open_connection(*strict.address)
    writer.write(request("GET", "/livez") * 1_000)
    said = await reader.read(-1)
    writer.close()

    assert 0 < said.count(b"HTTP/1.1 200") < 50
    assert b"HTTP/1.1 4" not in said


_LARGE = b"a" * 20 * _MEGABYTE  # more than the buffers between two processes take


async def whole(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with all of it at once."""
    await Response(_LARGE)(scope, receive, send)


async def endless(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with it again and again, until nobody is there."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    gone = asyncio.ensure_future(_gone(receive))
    while not gone.done():
        await send({"type": "http.response.body", "body": _LARGE, "more_body": True})
        await asyncio.sleep(0)  # a send to nobody does not wait


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def connected(server: GatewayServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    address = server.servers[0].sockets[0].getsockname()
    return await asyncio.open_connection(*address, limit=1)  # what nobody reads is left in the system's buffers


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_FLUSH_SECONDS", 0.2)


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("app", [whole, endless])
async def test_a_client_that_takes_nothing_is_cut(app: ASGIApp) -> None:
    """Also one whose next request waits for the answer before it: nothing is held for it."""
    async with serving(app) as server:
        _, writer = await connected(server)
        writer.write(request("GET", "/") * 2)
        await wait_until(lambda: server.server_state.total_requests or server.server_state.tasks, "it is answered")
        await wait_until(lambda: not server.server_state.connections, "its connection is cut")
        await wait_until(lambda: not server.server_state.tasks, "nothing runs for it")
        writer.transport.abort()


async def test_a_client_that_takes_little_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is slow, and takes something in each while, gets all of it."""
    monkeypatch.setattr(http_server, "_FLUSH_SECONDS", 0.2)
    async with serving(whole) as server:
        reader, writer = await connected(server)
        writer.write(request("GET", "/", headers=("Connection: close",)))
        size = 0
        while part := await reader.read(2**14):
            size += len(part)
            await asyncio.sleep(0)
        writer.close()

    assert size > len(_LARGE)
