"""Single requests for documents, to servers that do what they like. What a look makes of them: `test_discovery.py`."""

import asyncio
import ssl
import subprocess
from pathlib import Path

import httpx
import pytest
import uvloop

from support.modules.raw_modules import Behaviour, answering, raw_module, writing
from support.programs.closed_port import closed_port
from support.streams.stream_server import stream_server
from toolfleet_registry.manifests import http_get
from toolfleet_registry.manifests.http_get import NoAnswer, requested


async def got(url: str) -> tuple[int, dict[str, str], bytes]:
    async with requested(httpx.URL(url), headers={}, connect_seconds=10) as answer:
        body = b""
        while chunk := await answer.chunk():
            body += chunk
        return answer.status, dict(answer.headers), body


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\nhello",
        b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
    ],
    ids=["length", "chunked", "until the end", "after hints"],
)
async def test_a_body_comes_however_it_is_framed(answer: bytes) -> None:
    """And whatever comes before it."""
    async with raw_module(writing(answer)) as url:
        status, _, body = await got(url)

    assert (status, body) == (200, b"hello")


def test_a_document_is_had_on_uvloop_too() -> None:
    """Gateways run on it, and agents may: it takes fewer options than the loop of asyncio."""

    async def asked() -> tuple[int, dict[str, str], bytes]:
        async with raw_module(answering(b'{"a": 1}')) as url:
            return await got(url)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(asked())[0] == 200


async def test_headers_have_small_names_and_repeated_ones_are_joined() -> None:
    """As everybody who reads them expects."""
    head = b"HTTP/1.1 404 Not Found\r\nX-Owl: a\r\nx-owl: b\r\ncontent-length: 0\r\n\r\n"
    async with raw_module(writing(head)) as url:
        assert await got(url) == (404, {"x-owl": "a, b", "content-length": "0"}, b"")


@pytest.mark.parametrize(
    "behave",
    [
        writing(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: owls\r\n\r\nhello"),
        writing(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello"),
        writing(b"HTTP/1.1 200 OK\r\nconte"),
        writing(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{"),
        writing(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello"),
        writing(b""),
    ],
    ids=["another protocol", "cut off", "cut off in its head", "cut off in a chunk", "two lengths", "nothing"],
)
async def test_what_is_no_answer_is_none(behave: Behaviour) -> None:
    """With a reason."""
    async with raw_module(behave) as url:
        with pytest.raises(NoAnswer, match=r"\w"):
            await got(url)


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/", "/manifest", "http://"])
async def test_only_http_is_spoken(url: str) -> None:
    """And to a host."""
    with pytest.raises(NoAnswer, match="not one of http or https"):
        await got(url)


async def test_certificates_are_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of an authority that is trusted brings the answer, any other one none."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    names = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost")
    files = ("-keyout", str(key), "-out", str(certificate))
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *files, *names]
    subprocess.run(command, check=True, capture_output=True)  # noqa: ASYNC221 - there is nobody to wait
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answering(b"hello")(await reader.readuntil(b"\r\n\r\n"), writer)

    async with stream_server(serve, tls=context) as port:
        url = f"https://localhost:{port}"
        with pytest.raises(NoAnswer, match=r"(?i)certificate"):
            await got(url)
        trusting = ssl.create_default_context(cafile=str(certificate))
        monkeypatch.setattr(http_get, "trusted_certificates", lambda: trusting)
        assert (await got(url))[2] == b"hello"


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("127.0.0.1", "nobody listens at 127.0.0.1:{port}"),
        ("localhost", "nobody listens at localhost:{port}"),  # perhaps at several addresses
        ("owls.invalid", "the host name 'owls.invalid' cannot be resolved"),
    ],
)
async def test_why_there_is_no_connection_is_told_in_words(host: str, reason: str) -> None:
    """Where people read it: in listings of modules."""
    port = closed_port()
    with pytest.raises(NoAnswer) as caught:
        await got(f"http://user:s3cret@{host}:{port}")
    assert str(caught.value) == reason.format(port=port)


async def test_a_name_that_no_host_can_have_is_no_answer() -> None:
    """Where Python's own error is the reason."""
    with pytest.raises(NoAnswer, match="label"):
        await got(f"http://{'x' * 70}.example")
