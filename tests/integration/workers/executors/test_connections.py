"""The way to a module: when nothing was sent, when nobody can know, and how connections are shared."""

import asyncio
import contextlib
import resource
import shutil
import socket
import ssl
import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.modules.http_executor import executor_for, idle_connections
from support.modules.raw_module import Peer, RawModule, after_request, answering, http, raw_module, reply
from support.published_call import published
from support.waiting import wait_until
from toolfleet_registry.contracts.attempts import Outcome
from toolfleet_workers.executors import http_client as client_module
from toolfleet_workers.executors.http_client import HttpClient
from toolfleet_workers.executors.http_executor import HttpExecutor

SECONDS = 10  # long enough that only a defect can use it up


@pytest.fixture
def many_files() -> Iterator[None]:
    """Enough file descriptors for both ends of 500 connections, which macOS does not give by default."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = 4096 if hard == resource.RLIM_INFINITY else min(4096, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, enough), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_refused_connection_is_not_sent() -> None:
    """Nobody listens, so nothing was executed; the text names no address."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        async with executor_for(f"http://127.0.0.1:{unused.getsockname()[1]}") as executor:
            attempt = await executor.execute(published(), seconds=SECONDS)

    assert attempt.outcome is Outcome.NOT_SENT
    assert attempt.result.error_code == "module_unreachable"
    assert attempt.result.effect_state == "none"
    assert attempt.result.error == "Tool execution error: Connection refused"


async def test_an_unknown_host_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """No address for the host's name. Faked, as the name service is not the test's."""

    async def fail(*args: Any, **kwargs: Any) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", fail)
    async with executor_for("http://research.example") as executor:
        attempt = await executor.execute(published(), seconds=SECONDS)

    assert attempt.outcome is Outcome.NOT_SENT
    assert attempt.result.error is not None
    assert attempt.result.error.endswith("host name not known")


async def test_an_impossible_host_is_not_sent() -> None:
    """A name that no name service can be asked for is a name without an address."""
    async with executor_for(f"http://{'x' * 64}.example") as executor:
        attempt = await executor.execute(published(), seconds=SECONDS)

    assert attempt.outcome is Outcome.NOT_SENT
    assert attempt.result.error is not None
    assert attempt.result.error.endswith("host name not known")


@contextlib.contextmanager
def _full_house() -> Generator[str]:
    """A port whose queue of waiting connections is full, so that the kernel lets further ones wait."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(8):
            guest = stack.enter_context(socket.socket())
            guest.setblocking(False)
            guest.connect_ex(server.getsockname())
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


async def test_a_connection_that_takes_too_long_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time to connect has a limit of its own, and what it ends was not executed."""
    monkeypatch.setattr(client_module, "CONNECT_SECONDS", 0.2)
    with _full_house() as url:
        async with executor_for(url) as executor:
            attempt = await executor.execute(published(), seconds=SECONDS)

    assert attempt.outcome is Outcome.NOT_SENT
    assert attempt.result.error == (
        "Tool execution error: the module cannot be reached: it does not accept connections (no connection within 0.2s)"
    )


async def test_a_deadline_before_the_connection_is_not_sent() -> None:
    """When all of the time goes by before there is a connection, nothing was executed: no `TimeoutError`."""
    with _full_house() as url:
        async with executor_for(url) as executor:
            attempt = await executor.execute(published(), seconds=0.2)

    assert attempt.outcome is Outcome.NOT_SENT
    assert attempt.result.error == (
        "Tool execution error: the module cannot be reached: it does not accept connections (no connection within 0.2s)"
    )


async def test_a_failed_tls_handshake_is_not_sent() -> None:
    """A module that does not speak TLS where its URL says https has seen no call."""

    async def plain(peer: Peer) -> None:
        await peer.reader.read(1)
        await peer.send(http(b"", "400 Bad Request"))
        await peer.gone()

    async with raw_module(plain) as module, executor_for(module.url.replace("http", "https")) as executor:
        attempt = await executor.execute(published(), seconds=SECONDS)

    assert attempt.outcome is Outcome.NOT_SENT
    assert attempt.result.error == "Tool execution error: the module cannot be reached: the TLS handshake failed"
    assert module.requests == []


async def test_an_untrusted_certificate_is_not_sent(tmp_path: Path) -> None:
    """A module whose certificate nobody vouches for gets no call to read."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("makes its certificate with openssl")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = f"req -x509 -nodes -newkey rsa:2048 -days 2 -subj /CN=127.0.0.1 -keyout {key} -out {certificate}"
    subprocess.run([openssl, *made.split()], check=True, capture_output=True)  # noqa: ASYNC221 - takes no time
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    async with raw_module(answering(http(reply())), tls=tls) as module, executor_for(module.url) as executor:
        attempt = await executor.execute(published(), seconds=SECONDS)

    assert attempt.outcome is Outcome.NOT_SENT
    assert attempt.result.error is not None
    assert attempt.result.error.endswith("its TLS certificate is not trusted")
    assert module.requests == []


async def _lose(executor: HttpExecutor, module: RawModule) -> None:
    attempt = await executor.execute(published(), seconds=SECONDS)
    assert attempt.outcome is Outcome.UNKNOWN
    assert attempt.result.error_code == "module_error"
    assert attempt.result.effect_state == "unknown"
    assert attempt.result.error == "Tool execution error: the connection to the module was lost before it replied"


async def test_a_connection_closed_after_the_request_is_unknown() -> None:
    """The module may have executed the call before it went; the call is not sent again."""
    async with raw_module(after_request()) as module, executor_for(module.url) as executor:
        await _lose(executor, module)

    assert len(module.requests) == module.connections == 1


async def test_a_connection_closed_before_the_request_is_read_is_unknown() -> None:
    """Bytes that left may have been read: only the module knows that it did not."""

    async def close_early(peer: Peer) -> None:
        await peer.reader.read(1)

    async with raw_module(close_early) as module, executor_for(module.url) as executor:
        await _lose(executor, module)

    assert module.connections == 1


async def test_a_reset_connection_is_unknown() -> None:
    """A TCP reset after the request says no more than a close."""

    async def reset(peer: Peer) -> None:
        await peer.request()
        peer.reset()

    async with raw_module(reset) as module, executor_for(module.url) as executor:
        await _lose(executor, module)

    assert module.connections == 1


async def test_a_kept_connection_that_closes_under_a_request_is_unknown_and_not_sent_again() -> None:
    """The second request on a connection that its module closes unanswered is seen once."""

    async def only_once(peer: Peer) -> None:
        await peer.request()
        await peer.send(http(reply()))
        await peer.request()

    async with raw_module(only_once) as module, executor_for(module.url) as executor:
        assert (await executor.execute(published(), seconds=SECONDS)).outcome is Outcome.SUCCESS
        await _lose(executor, module)

    assert [request.connection for request in module.requests] == [1, 1]


async def test_a_kept_connection_that_has_closed_is_not_used() -> None:
    """A module that closes after each reply gets each call on a new connection."""
    async with raw_module(after_request(http(reply()))) as module, executor_for(module.url) as executor:
        for _ in range(5):
            attempt = await executor.execute(published(), seconds=SECONDS)
            assert attempt.outcome is Outcome.SUCCESS
            await wait_until(lambda: not idle_connections(executor), "the end of the connection has arrived")

    assert module.connections == 5


async def test_connections_are_used_again() -> None:
    """Calls one after the other share a connection."""
    async with raw_module(answering(http(reply()))) as module, executor_for(module.url) as executor:
        for _ in range(10):
            await executor.execute(published(), seconds=SECONDS)

    assert module.connections == 1


@pytest.mark.slow
async def test_five_hundred_calls_run_at_once(many_files: None) -> None:
    """No call waits for another's connection, and the next 500 use the connections that there are."""
    everybody = asyncio.Barrier(500)

    async def together(peer: Peer) -> None:
        while True:
            request = await peer.request()
            await everybody.wait()
            await peer.send(http(reply(result=request.json["arguments"])))

    async with raw_module(together) as module, executor_for(module.url) as executor:
        for _ in range(2):
            calls = [published(call_id=f"c{n}", arguments={"n": n}) for n in range(500)]
            attempts = await asyncio.gather(*(executor.execute(call, seconds=30) for call in calls))
            assert [attempt.result.result for attempt in attempts] == [call.arguments for call in calls]

    assert module.connections == 500


async def test_closing_the_executor_ends_what_waits_as_unknown() -> None:
    """A worker that stops does not leave a call without an end."""

    async def silent(peer: Peer) -> None:
        await peer.request()
        await peer.gone()

    async with raw_module(silent) as module, executor_for(module.url) as executor:
        waiting = asyncio.create_task(executor.execute(published(), seconds=SECONDS))
        await wait_until(lambda: module.requests, "the module has the request")
        await executor.aclose()
        attempt = await waiting

    assert attempt.outcome is Outcome.UNKNOWN
    assert attempt.result.effect_state == "unknown"


async def test_no_proxy_of_the_environment_sees_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tool calls go to their module and nowhere else."""
    async with raw_module(answering(http(reply()))) as module, raw_module(answering(http(reply()))) as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        async with executor_for(module.url) as executor:
            await executor.execute(published(), seconds=SECONDS)

    assert len(module.requests) == 1
    assert proxy.connections == 0


def test_an_executor_serves_one_loop_after_another() -> None:
    """The pool of connections belongs to a loop; a new loop gets a new one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    executor = HttpExecutor({"research": f"http://127.0.0.1:{port}"}, client=HttpClient(), max_reply_bytes=2**20)

    async def call_once() -> Outcome:
        async with raw_module(after_request(http(reply(), "200 OK", "Connection: close")), port=port):
            return (await executor.execute(published(), seconds=SECONDS)).outcome

    async def call_and_close() -> Outcome:
        async with contextlib.aclosing(executor):
            return await call_once()

    assert asyncio.run(call_once()) is Outcome.SUCCESS
    assert asyncio.run(call_and_close()) is Outcome.SUCCESS
