"""Responses in every form that HTTP/1.1 has for them, and in those that it forbids; what follows one on its connection."""

import asyncio

import pytest
from httptools import HttpResponseParser

from support.modules.http_executor import executor_for
from support.modules.raw_module import Behaviour, Peer, RawModule, answering, http, raw_module, reply
from support.published_call import published
from support.waiting import wait_until
from toolfleet_registry.contracts.attempts import Attempt, Outcome
from toolfleet_workers.executors import http_client

SECONDS = 10  # long enough that only a defect can use it up
OK = b"HTTP/1.1 200 OK\r\n"
PLAIN = OK + b"Content-Type: application/json\r\n"
BODY = reply(result="owls")
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked\r\n"


def in_chunks(body: bytes, *, extension: bytes = b"", trailers: bytes = b"") -> bytes:
    parts = [body[:7], body[7:8], body[8:]]
    chunks = b"".join(b"%x%s\r\n%s\r\n" % (len(part), extension, part) for part in parts)
    return chunks + b"0\r\n" + trailers + b"\r\n"


async def two_calls(behaviour: Behaviour) -> tuple[Attempt, Attempt, RawModule]:
    """One after the other; the module knows on which connections they came."""
    async with raw_module(behaviour) as module, executor_for(module.url) as executor:
        first = await executor.execute(published(), seconds=SECONDS)
        second = await executor.execute(published(), seconds=SECONDS)
    return first, second, module


@pytest.mark.parametrize(
    "answer",
    [
        OK + LENGTH + b"\r\n" + BODY,
        b"HTTP/1.1 200\r\n" + LENGTH + b"\r\n" + BODY,  # no words after the status
        OK + b"X-Empty:\r\ncontent-LENGTH:" + LENGTH[15:-2] + b" \t\r\n\r\n" + BODY,
        OK + CHUNKED + b"\r\n" + in_chunks(BODY),
        OK + b"transfer-encoding: Chunked\r\n\r\n" + in_chunks(BODY, extension=b";a=b"),
        OK + CHUNKED + b"Trailer: X\r\n\r\n" + in_chunks(BODY, trailers=b"X: y\r\nContent-Type: x\r\n"),
        OK + CHUNKED + b"\r\n" + in_chunks(BODY, extension=b"  "),
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK + LENGTH + b"\r\n" + BODY,
        b"HTTP/1.1 102 X\r\n\r\nHTTP/1.1 103 X\r\nLink: x\r\nContent-Encoding: br\r\n\r\n"
        + OK
        + LENGTH
        + b"\r\n"
        + BODY,
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n" + LENGTH + b"\r\n" + BODY,
        OK + b"X-Folded: a\r\n  b\r\n" + LENGTH + b"\r\n" + BODY,
        (OK + LENGTH + b"\r\n").replace(b"\r", b"") + BODY,
        OK + b"Upgrade: h2c\r\nConnection: upgrade\r\n" + LENGTH + b"\r\n" + BODY,  # offers it, and does not do it
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
async def test_a_whole_response_is_read_and_its_connection_kept(answer: bytes, at_once: bool) -> None:
    """In one piece, and byte by byte: the next call takes the same connection."""

    async def behave(peer: Peer) -> None:
        while True:
            await peer.request()
            for start in range(len(answer)) if not at_once else (0,):
                await peer.send(answer[start:] if at_once else answer[start : start + 1])
                await asyncio.sleep(0)

    first, second, module = await two_calls(behave)

    assert (first.result.result, second.result.result) == ("owls", "owls")
    assert module.connections == 1


@pytest.mark.parametrize(
    ("answer", "closes"),
    [
        (OK + b"\r\n" + BODY, True),
        (b"HTTP/1.0 200 OK\r\n\r\n" + BODY, True),
        (b"HTTP/1.0 200 OK\r\n" + LENGTH + b"\r\n" + BODY, False),
        (OK + b"Connection: close\r\n" + LENGTH + b"\r\n" + BODY, False),
        (OK + b"Connection: x, Close\r\n" + CHUNKED + b"\r\n" + in_chunks(BODY), False),
        (OK + LENGTH + b"\r\n" + BODY + b"x", False),  # something is left over
        (OK + LENGTH + b"\r\n" + BODY + b"HTTP/1.1 ", False),
        (OK + CHUNKED + b"\r\n" + in_chunks(BODY) + b"0\r\n\r\n", False),
    ],
)
async def test_a_response_that_ends_its_connection_is_read(answer: bytes, closes: bool) -> None:
    """Because it says so, because only the end of the connection ends it, or because of what comes after it."""

    async def behave(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer)
        if not closes:
            await peer.gone()

    first, second, module = await two_calls(behave)

    assert (first.result.result, second.result.result) == ("owls", "owls")
    assert module.connections == 2


AMBIGUOUS = [
    OK + LENGTH + LENGTH + b"\r\n" + BODY,
    OK + LENGTH + b"Content-Length: 1\r\n\r\n" + BODY,
    OK + b"Content-Length: 1, 1\r\n\r\n" + BODY,
    OK + b"Content-Length: +1\r\n\r\n" + BODY,
    OK + b"Content-Length:\r\n\r\n" + BODY,
    OK + b"Content-Length: %d\r\n\r\n" % 2**64 + BODY,
    OK + LENGTH + CHUNKED + b"\r\n" + in_chunks(BODY),
    OK + CHUNKED + LENGTH + b"\r\n" + in_chunks(BODY),
    OK + CHUNKED + CHUNKED + b"\r\n" + in_chunks(BODY),
    OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + in_chunks(BODY),
    OK + b"Transfer-Encoding: chunked, identity\r\n\r\n" + in_chunks(BODY),
    OK + b"Transfer-Encoding: xchunked\r\n\r\n" + in_chunks(BODY),
    OK + CHUNKED + b"\r\n-1\r\n" + in_chunks(BODY),
    OK + CHUNKED + b"\r\n" + in_chunks(BODY).replace(b"\r\n0\r\n", b"x\r\n0\r\n"),  # a chunk longer than it says
    OK + b"Content-Length : 1\r\n\r\n" + BODY,
    OK + b"X: a\0b\r\n" + LENGTH + b"\r\n" + BODY,
    OK + b"X: " + b"x" * 2**16 + b"\r\n" + LENGTH + b"\r\n" + BODY,
    OK + b"X: y\r\n" * 2**14 + LENGTH + b"\r\n" + BODY,
    OK + CHUNKED + b"\r\n" + in_chunks(BODY, trailers=b"X: y\r\n" * 2**14),
    b"HTTP/1.1 101 X\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n" + OK + LENGTH + b"\r\n" + BODY,
    b"HTTP/1.1 101 X\r\n\r\n" + OK + LENGTH + b"\r\n" + BODY,
    b"HTTP/1.1 104 X\r\n" + LENGTH + b"\r\n" + BODY + OK + LENGTH + b"\r\n" + BODY,
    b"HTTP/1.1 99 X\r\n" + LENGTH + b"\r\n" + BODY,
    b"HTTP/1.1 099 X\r\n" + LENGTH + b"\r\n" + BODY,
    BODY,
]


@pytest.mark.parametrize("answer", AMBIGUOUS)
@pytest.mark.parametrize("is_first", [True, False])
async def test_a_response_that_could_be_read_in_two_ways_is_none(answer: bytes, is_first: bool) -> None:
    """Nor does anything else come over its connection; also where the reply before it was a plain one, with such a head."""

    async def behave(peer: Peer) -> None:
        if not is_first:
            await peer.request()
            await peer.send(PLAIN + LENGTH + b"\r\n" + BODY)
        await peer.request()
        await peer.send(answer.replace(OK, PLAIN))
        await peer.gone()

    async with raw_module(behave) as module, executor_for(module.url) as executor:
        attempts = [await executor.execute(published(), seconds=SECONDS) for _ in range(2 if is_first else 4)]

    assert all(attempt.outcome is Outcome.SUCCESS for attempt in ([] if is_first else attempts[::2]))
    for attempt in attempts if is_first else attempts[1::2]:
        assert (attempt.outcome, attempt.result.error_code) == (Outcome.UNKNOWN, "invalid_response")
        assert attempt.result.error == "Tool execution error: the module's reply is invalid: not HTTP, or cut short"
    assert module.connections == 2


async def test_a_head_like_the_last_one_is_read_without_a_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever length it states; another head, a body in two pieces and what follows a body are for the parser."""
    parsers = list[object]()

    def counted(protocol: object) -> HttpResponseParser:
        parsers.append(protocol)
        return HttpResponseParser(protocol)

    def plain(result: str, *fields: bytes) -> bytes:
        body = reply(result=result)
        return PLAIN + b"".join(fields) + b"Content-Length: %d\r\nX: y\r\n\r\n%b" % (len(body), body)

    async def behave(peer: Peer) -> None:
        for result in ("owls", "many owls", ""):
            await peer.request()
            await peer.send(plain(result))
        await peer.request()
        await peer.send(plain("other", b"Date: today\r\n"))
        await peer.request()
        half = plain("halves", b"Date: today\r\n")
        await peer.send(half[:-5])
        await wait_until(lambda: len(parsers) == 3, "the first half is read")
        await peer.send(half[-5:])
        await peer.request()
        await peer.send(plain("kept", b"Date: today\r\n"))
        await peer.request()
        await peer.send(plain("last", b"Date: today\r\n") + b"HTTP/1.1 200 OK\r\n")
        await peer.gone()

    monkeypatch.setattr(http_client, "HttpResponseParser", counted)
    async with raw_module(behave) as module, executor_for(module.url) as executor:
        for result, made in (
            ("owls", 1),
            ("many owls", 1),
            ("", 1),
            ("other", 2),
            ("halves", 3),
            ("kept", 3),
            ("last", 4),
        ):
            attempt = await executor.execute(published(), seconds=SECONDS)
            assert (attempt.result.result, len(parsers)) == (result, made)
        await executor.execute(published(), seconds=SECONDS)

    assert module.connections == 2


async def test_a_length_in_a_header_that_announces_another_is_no_bodys() -> None:
    """Where the reply before had the same one."""

    async def behave(peer: Peer) -> None:
        for excess in (b"", b" "):
            await peer.request()
            early = b"HTTP/1.1 103 X\r\nContent-Length: %d\r\n\r\n" % len(BODY + excess)
            await peer.send(early + PLAIN + LENGTH + b"\r\n" + BODY + excess)
        await peer.gone()

    async with raw_module(behave) as module, executor_for(module.url) as executor:
        for _ in range(3):
            assert (await executor.execute(published(), seconds=SECONDS)).result.result == "owls"
    assert module.connections == 2


async def test_a_head_that_ends_earlier_than_the_last_one_is_another() -> None:
    """What would be its last field is the start of its body."""

    async def behave(peer: Peer) -> None:
        for end in (b"X: y\r\n\r\n", b"\r\n      "):
            await peer.request()
            await peer.send(PLAIN + LENGTH + end + BODY)
        await peer.gone()

    first, second, _ = await two_calls(behave)

    assert first.outcome is Outcome.SUCCESS
    assert second.result.error_code == "invalid_response"


async def test_a_reply_that_is_too_large_is_refused_also_where_its_head_is_known() -> None:
    """It came whole, and is not used."""
    results = iter(["owls", "x" * 2**10])

    async def behave(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.send(http(reply(result=next(results)), "200 OK", "Content-Type: application/json"))

    async with raw_module(behave) as module, executor_for(module.url, max_reply_bytes=2**9) as executor:
        assert (await executor.execute(published(), seconds=SECONDS)).outcome is Outcome.SUCCESS
        assert (await executor.execute(published(), seconds=SECONDS)).result.error_code == "result_too_large"


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
async def test_what_follows_a_response_without_a_body_is_nobodys(status: str) -> None:
    """Whatever length it states, it has none: the bytes after it do not become the next call's reply."""

    async def behave(peer: Peer) -> None:
        await peer.request()
        await peer.send(http(http(BODY), status) if peer.number == 1 else http(reply(result="yours")))
        await peer.gone()

    first, second, module = await two_calls(behave)

    assert first.result.error == f"Module returned status {status[:3]}:"
    assert second.result.result == "yours"
    assert module.connections == 2


async def test_a_body_that_is_not_wanted_does_not_delay_the_next_call() -> None:
    """A connection on which too much is announced is closed, and not read to its end."""
    announced = OK + b"Content-Length: %d\r\n\r\n" % 2**30

    async def behave(peer: Peer) -> None:
        await peer.request()
        await peer.send(announced if peer.number == 1 else http(BODY))
        await peer.gone()

    first, second, module = await two_calls(behave)

    assert first.result.error_code == "result_too_large"
    assert second.result.result == "owls"
    assert module.connections == 2


async def test_an_error_that_came_whole_keeps_its_connection() -> None:
    """However little of its text is shown."""
    first, second, module = await two_calls(answering(http(b"no " * 2**14, "429 X")))

    assert first.outcome is second.outcome is Outcome.TURNED_AWAY
    assert module.connections == 1


async def test_a_field_that_is_there_twice_is_a_list() -> None:
    """Two encodings of a body are both meant; of its types the first one counts."""
    twice = "Content-Type: application/x-ndjson", "Content-Type: text/plain"
    first, _, _ = await two_calls(answering(http(b'{"progress": 1}\n' + BODY, "200 OK", *twice)))
    other, _, _ = await two_calls(answering(http(BODY, "200 OK", "Content-Encoding: br", "Content-Encoding: gzip")))

    assert first.result.result == "owls"
    assert other.result.error is not None
    assert "'br, gzip'" in other.result.error
