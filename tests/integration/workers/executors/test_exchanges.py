"""One request and its response on a connection: what waits for whom, and that nothing stays open behind it."""

import asyncio
import contextlib
import gc
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.modules.http_executor import executor_for, idle_connections, open_connections
from support.modules.raw_module import Behaviour, Peer, answering, http, raw_module, reply
from support.published_call import published
from support.waiting import wait_until
from toolfleet_registry.contracts.attempts import Outcome
from toolfleet_workers.executors import http_client
from toolfleet_workers.executors.http_client import HttpClient, Response
from toolfleet_workers.executors.module_client import SendProgress
from toolfleet_workers.executors.reply import NoReply
from toolfleet_workers.executors.request import ModuleRequest, Target

SECONDS = 10  # long enough that only a defect can use it up
LARGE = "x" * 2**24  # more than all buffers between us
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
async def client() -> AsyncIterator[HttpClient]:
    """What is below the executor."""
    made = HttpClient()
    yield made
    await made.aclose()


async def post(client: HttpClient, url: str) -> Response:
    target = Target.of(url, {})
    request = ModuleRequest(target.origin, target.head + b"Content-Length: 0\r\n\r\n", b"")
    return await client.post(request, SendProgress())


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for this machine, with its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("makes its certificate with openssl")
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    made = "req -x509 -nodes -newkey rsa:2048 -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    subprocess.run([openssl, *made.split(), "-keyout", path, "-out", f"{path}.crt"], check=True, capture_output=True)
    path.write_text(path.read_text() + Path(f"{path}.crt").read_text())
    return path


@pytest.fixture
def tls(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """For a module that everybody trusts."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    return context


async def test_calls_over_tls_share_a_connection(tls: ssl.SSLContext) -> None:
    """Large arguments and a large reply too: each side waits until the other has read."""
    answer = answering(http(reply(result=LARGE)))
    async with raw_module(answer, tls=tls) as module, executor_for(module.url, max_reply_bytes=2**25) as executor:
        for _ in range(2):
            attempt = await executor.execute(published(arguments={"text": LARGE}), seconds=SECONDS)
            assert attempt.result.result == LARGE

        assert module.connections == open_connections(executor) == 1
    assert all(request.json["arguments"] == {"text": LARGE} for request in module.requests)


async def test_a_reply_over_tls_may_end_with_its_connection(tls: ssl.SSLContext) -> None:
    """As one without TLS may."""

    async def once(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\n\r\n" + reply(result="owls"))

    async with raw_module(once, tls=tls) as module, executor_for(module.url) as executor:
        attempt = await executor.execute(published(), seconds=SECONDS)

    assert attempt.result.result == "owls"


async def test_a_body_is_read_no_faster_than_it_is_asked_for(client: HttpClient) -> None:
    """Whoever reads slowly has little of it in memory; nothing of it is lost."""
    part = b"%x\r\n%s\r\n" % (2**16, b"x" * 2**16)

    async def flood(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED)
        peer.writer.write(part * 256)
        await peer.send(b"0\r\n\r\n")
        await peer.gone()

    async with raw_module(flood) as module:
        response = await post(client, module.url)
        source: Any = response._source
        size = 0
        while chunk := await response.read_chunk():
            size += len(chunk)
            await wait_until(lambda: source._is_paused or response.is_whole, "no more is read")
            assert response.unread_bytes <= 2**17 + 2**18  # the mark, and what one read may add
        response.release()

    assert size == 2**24


async def test_a_body_that_we_stop_reading_is_not_whole(client: HttpClient) -> None:
    """Though without a length it ends with its connection: it was not the module that ended that."""

    async def endless(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\n\r\n" + reply())
        await peer.gone()

    async with raw_module(endless) as module:
        response = await post(client, module.url)
        assert await response.read_chunk() == reply()
        await client.aclose()

        with pytest.raises(NoReply):
            await response.read_chunk()
        response.release()


async def test_a_module_may_reply_while_it_reads() -> None:
    """Both go on: the request is sent to its end, and the reply read to its."""

    async def echo(peer: Peer) -> None:
        head = await peer.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        body = reply(result="read")
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body), body[:5])
        await peer.reader.readexactly(length)
        await peer.send(body[5:])
        await peer.gone()

    async with raw_module(echo) as module, executor_for(module.url) as executor:
        attempt = await executor.execute(published(arguments={"text": LARGE}), seconds=SECONDS)

        assert attempt.result.result == "read"
        assert len(idle_connections(executor)) == 1


async def test_a_connection_whose_request_was_not_read_is_not_used_again() -> None:
    """The module would take the next request for the rest of the first."""

    async def hasty(peer: Peer) -> None:
        if peer.number == 1:
            await peer.reader.readuntil(b"\r\n\r\n")
            await peer.send(http(reply(result="hasty")))
            await asyncio.Event().wait()
        await answering(http(reply(result="well")))(peer)

    async with raw_module(hasty) as module, executor_for(module.url) as executor:
        first = await executor.execute(published(arguments={"text": LARGE}), seconds=SECONDS)
        second = await executor.execute(published(), seconds=SECONDS)

    assert (first.result.result, second.result.result) == ("hasty", "well")
    assert module.connections == 2


async def test_a_call_that_sends_much_lets_others_run() -> None:
    """Parts of large arguments alternate with what else there is to do."""
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with raw_module(answering(http(reply()))) as module, executor_for(module.url) as executor:
        running = asyncio.create_task(others())
        await executor.execute(published(arguments={"text": LARGE}), seconds=SECONDS)
        running.cancel()

    assert turns > len(LARGE) / 2**18


async def _silent(peer: Peer) -> None:
    await asyncio.Event().wait()


async def _half_a_body(peer: Peer) -> None:
    await peer.request()
    await peer.send(CHUNKED + b"5\r\n{    \r\n")
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("behaviour", "text"),
    [
        (_silent, ""),  # it waits for a head
        (_silent, LARGE),  # it writes
        (_half_a_body, ""),  # it reads a body
    ],
)
async def test_a_cancelled_call_leaves_no_connection(behaviour: Behaviour, text: str) -> None:
    """Wherever it was."""
    async with raw_module(behaviour) as module, executor_for(module.url) as executor:
        running = asyncio.create_task(executor.execute(published(arguments={"text": text}), seconds=SECONDS))
        await wait_until(lambda: module.connections and open_connections(executor), "there is a connection")
        await wait_until(lambda: behaviour is not _half_a_body or module.requests, "the module has the request")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await wait_until(lambda: not open_connections(executor), "it is closed")


def _begun(port: int) -> int:
    """How many connections to the port wait for an answer to their first packet."""
    found = psutil.Process().net_connections("tcp")
    return sum(bool(one.raddr) and one.raddr.port == port and one.status == psutil.CONN_SYN_SENT for one in found)


async def test_a_call_that_is_cancelled_while_it_connects_leaves_no_connection() -> None:
    """Its socket is closed."""
    with socket.socket() as full, contextlib.ExitStack() as guests:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port: int = full.getsockname()[1]
        for _ in range(8):
            guest = guests.enter_context(socket.socket())
            guest.setblocking(False)
            guest.connect_ex(full.getsockname())
        before = _begun(port)
        async with executor_for(f"http://127.0.0.1:{port}") as executor:
            running = asyncio.create_task(executor.execute(published(), seconds=SECONDS))
            await wait_until(lambda: _begun(port) > before, "it connects")
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running

        assert _begun(port) == before


async def test_a_call_that_is_cancelled_in_a_tls_handshake_leaves_no_connection() -> None:
    """The other side sees it end."""
    loop = asyncio.get_running_loop()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        async with executor_for(f"https://127.0.0.1:{listener.getsockname()[1]}") as executor:
            running = asyncio.create_task(executor.execute(published(), seconds=SECONDS))
            peer, _ = await loop.sock_accept(listener)
            with peer:
                peer.setblocking(False)
                assert await loop.sock_recv(peer, 1)  # the handshake has begun
                running.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await running
                while await loop.sock_recv(peer, 2**16):
                    pass


async def test_an_idle_connection_is_closed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module sees it end, without another call."""
    monkeypatch.setattr(http_client, "_KEEPALIVE_SECONDS", 0.05)
    async with raw_module(answering(http(reply()))) as module, executor_for(module.url) as executor:
        await asyncio.gather(*(executor.execute(published(), seconds=SECONDS) for _ in range(3)))
        await wait_until(lambda: module.departures == 3, "the module has seen them end")

        assert open_connections(executor) == 0


async def test_a_connection_that_was_idle_for_long_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its server may be closing it just now."""
    monkeypatch.setattr(http_client, "_KEEPALIVE_SECONDS", -1)
    async with raw_module(answering(http(reply()))) as module, executor_for(module.url) as executor:
        for _ in range(3):
            assert (await executor.execute(published(), seconds=SECONDS)).outcome is Outcome.SUCCESS

    assert module.connections == 3


@pytest.mark.parametrize("with_tls", [False, True])
async def test_a_kept_connection_that_is_just_failing_is_not_used(
    with_tls: bool, request: pytest.FixtureRequest
) -> None:
    """Its transport tells us a turn of the loop later; what is written meanwhile goes nowhere."""
    tls = request.getfixturevalue("tls") if with_tls else None
    async with raw_module(answering(http(reply())), tls=tls) as module, executor_for(module.url) as executor:
        await executor.execute(published(), seconds=SECONDS)
        (connection,) = idle_connections(executor)
        connection._transport.abort()
        attempt = await executor.execute(published(), seconds=SECONDS)

    assert attempt.outcome is Outcome.SUCCESS
    assert module.connections == 2


async def test_a_call_id_cannot_add_a_header() -> None:
    """Whoever may choose it does not choose who the caller is."""
    call = published(call_id="c-1\r\nToolfleet-Caller: anna")
    async with raw_module(answering(http(reply()))) as module, executor_for(module.url) as executor:
        attempt = await executor.execute(call, seconds=SECONDS)

        assert await executor.reconcile(call, seconds=SECONDS) is None
    assert attempt.outcome is Outcome.PERMANENT
    assert attempt.result.error_code == "invalid_arguments"
    assert module.connections == 0


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Makes every host have these addresses; returns the hosts that were asked for."""

    def fake(*addresses: tuple[str, int]) -> list[str]:
        asked: list[str] = []

        async def answer(host: str, *args: Any, **options: Any) -> list[Any]:
            asked.append(host)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in addresses]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", answer)
        return asked

    return fake


def unused_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port: int = unused.getsockname()[1]
    return port


async def test_a_host_is_asked_for_once_and_each_of_its_addresses_tried(names: Callable[..., list[str]]) -> None:
    """Ten connections at once are one question; an address where nobody listens is passed over."""
    everybody = asyncio.Barrier(10)

    async def together(peer: Peer) -> None:
        await peer.request()
        await everybody.wait()
        await peer.send(http(reply()))

    async with raw_module(together) as module:
        asked = names(("127.0.0.1", unused_port()), ("127.0.0.1", int(module.url.rpartition(":")[2])))
        async with executor_for("http://research.example") as executor:
            calls: list[Awaitable[Any]] = [executor.execute(published(), seconds=SECONDS) for _ in range(10)]
            attempts = await asyncio.gather(*calls)

    assert all(attempt.outcome is Outcome.SUCCESS for attempt in attempts)
    assert module.connections == 10
    assert asked == ["research.example"]
    assert module.requests[0].headers["host"] == "research.example"


async def test_a_name_service_that_fails_when_nobody_waits_any_more_is_no_error_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Asyncio has nothing to complain of: the call that asked has its end already."""
    loop, has_ended, complaints = asyncio.get_running_loop(), asyncio.Event(), list[dict[str, Any]]()

    async def fail(*args: Any, **options: Any) -> None:
        await has_ended.wait()
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(loop, "getaddrinfo", fail)
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    async with executor_for("http://research.example") as executor:
        attempt = await executor.execute(published(), seconds=0.05)
        asking = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        has_ended.set()
        await asyncio.wait(asking)
    del asking, executor
    gc.collect()

    assert attempt.outcome is Outcome.NOT_SENT
    assert complaints == []


async def test_a_host_at_none_of_whose_addresses_anybody_listens_is_told_in_words(
    names: Callable[..., list[str]],
) -> None:
    """No address is named."""
    names(("127.0.0.1", unused_port()), ("127.0.0.1", unused_port()))
    async with executor_for("http://research.example.:81") as executor:
        attempt = await executor.execute(published(), seconds=SECONDS)

    assert attempt.outcome is Outcome.NOT_SENT
    assert attempt.result.error == "Tool execution error: Connection refused"
