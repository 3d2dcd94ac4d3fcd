"""Modules that lie, trickle, flood and forge: each costs a bounded time and a bounded memory, and harms nobody else."""

import asyncio
import gzip
import json
import tracemalloc
import zlib
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any

import pytest

from support.modules.http_executor import executor_for, idle_connections
from support.modules.raw_module import Behaviour, Peer, after_request, answering, http, raw_module, reply
from support.published_call import published
from support.waiting import wait_until
from toolfleet_registry.contracts import ErrorCode
from toolfleet_registry.contracts.attempts import Attempt, Outcome
from toolfleet_workers.executors import http_client
from toolfleet_workers.executors import reply as reply_module
from toolfleet_workers.executors.http_client import HttpClient
from toolfleet_workers.executors.http_executor import HttpExecutor

LIMIT = 2**20
SECONDS = 15
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
INTERIM = b"HTTP/1.1 104 X\r\n"  # none of those that the parser knows to have no body


async def attempt_with(behaviour: Behaviour, *, seconds: float = SECONDS, limit: int = LIMIT) -> Attempt:
    async with raw_module(behaviour) as module, executor_for(module.url, max_reply_bytes=limit) as executor:
        return await executor.execute(published(), seconds=seconds)


@contextmanager
def little_memory(limit_bytes: int) -> Generator[None]:
    """What is inside allocates at most so much at any time, its server included."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < limit_bytes, f"{peak} bytes"


def flooding(*, head: bytes, part: bytes) -> Behaviour:
    """Answer with `head`, then `part` for ever."""

    async def behave(peer: Peer) -> None:
        await peer.request()
        await peer.send(head)
        await peer.send_for_ever(part)

    return behave


def trickling(*, head: bytes, part: bytes) -> Behaviour:
    """Answer with `head`, then a little for ever, so that no read ever waits long."""

    async def behave(peer: Peer) -> None:
        await peer.request()
        await peer.send(head)
        await peer.send_for_ever(part, every=0.02)

    return behave


def bomb() -> bytes:
    """64 MiB of zeros in 64 kB."""
    packer = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS + 16)
    return b"".join(packer.compress(bytes(2**20)) for _ in range(64)) + packer.flush()


@pytest.mark.parametrize(
    ("behaviour", "code"),
    [
        (after_request(http(b"x" * (LIMIT + 1))), "result_too_large"),  # announced
        (flooding(head=CHUNKED, part=b"10000\r\n" + b"x" * 2**16 + b"\r\n"), "result_too_large"),  # endless
        (flooding(head=b"HTTP/1.1 200 OK\r\n\r\n", part=b"x" * 2**16), "result_too_large"),  # until it closes: never
        (after_request(http(bomb(), "200 OK", "Content-Encoding: gzip")), "result_too_large"),  # 64 MiB in 64 kB
        (flooding(head=b"HTTP/1.1 200 OK\r\n", part=b"X-Flood: " + b"x" * 1000 + b"\r\n"), "invalid_response"),
        (flooding(head=b"HTTP/1.1 200 OK\r\nX-Flood: ", part=b"x" * 2**16), "invalid_response"),  # one endless header
        (flooding(head=b"", part=b"x" * 2**16), "invalid_response"),  # one endless status line
        (flooding(head=CHUNKED, part=b"f" * 2**16), "invalid_response"),  # one endless chunk length
        (flooding(head=CHUNKED + b"0\r\n", part=b"X-Flood: y\r\n" * 1000), "invalid_response"),  # endless trailers
        (flooding(head=CHUNKED + b"0\r\nX-Flood: ", part=b"x" * 2**16), "invalid_response"),  # one endless trailer
        (flooding(head=CHUNKED, part=b"20\r\n" + b"x" * 32 + b"\r\n"), "result_too_large"),  # endless, in small chunks
        (flooding(head=b"HTTP/1.1 200 OK\r\n", part=b"a:b\r\n" * 1000), "invalid_response"),  # endless tiny headers
        (flooding(head=INTERIM + b"Content-Length: 99999999999\r\n\r\n", part=b"x" * 2**16), "invalid_response"),
        (flooding(head=INTERIM + b"Transfer-Encoding: chunked\r\n\r\n", part=b"1\r\nx\r\n" * 1000), "invalid_response"),
    ],
)
async def test_a_flood_ends_at_the_limit(behaviour: Behaviour, code: ErrorCode) -> None:
    """Nothing beyond the limit gets into memory; the effect may have happened."""
    with little_memory(8 * LIMIT):
        attempt = await attempt_with(behaviour)

    assert attempt.outcome is Outcome.UNKNOWN
    assert attempt.result.error_code == code
    assert attempt.result.effect_state == "unknown"


async def test_a_reply_of_eight_mebibytes_passes_and_one_byte_more_does_not() -> None:
    """The default limit, to the byte."""
    limit = 8 * 2**20
    body = reply(result="x" * (limit - len(reply(result=""))))
    assert len(body) == limit

    assert (await attempt_with(after_request(http(body)), limit=limit)).outcome is Outcome.SUCCESS
    too_large = await attempt_with(after_request(http(body + b" ")), limit=limit)
    assert too_large.result.error == f"Tool execution error: the module's reply is larger than {limit} bytes"


async def test_a_compressed_reply_is_read() -> None:
    """A module that compresses unasked is understood all the same."""
    body = gzip.compress(reply(result="owls"))
    attempt = await attempt_with(after_request(http(body, "200 OK", "Content-Encoding: gzip")))

    assert attempt.result.result == "owls"


@pytest.mark.parametrize(
    "answer",
    [
        http(b"not gzip", "200 OK", "Content-Encoding: gzip"),
        http(gzip.compress(reply())[:-9], "200 OK", "Content-Encoding: gzip"),  # cut short inside
        http(reply(), "200 OK", "Content-Encoding: br"),  # nobody asked for it
        http(gzip.compress(reply()), "200 OK", "Content-Encoding: gzip", "Content-Encoding: gzip"),  # and once packed
        b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n" + reply(),  # closes before the announced end
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n" + reply(),  # goes on after it
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n" + reply(),
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n" + reply(),
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n0\r\n\r\n",
        CHUNKED + b"5\r\n12345\r\n",  # closes before the last chunk
        CHUNKED + b"zz\r\n12345\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",  # another protocol's port
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nBad\x00Header: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",  # TLS where there should be none
        http(b"", "101 Switching Protocols", "Upgrade: x", "Connection: upgrade"),
        http(b"", "200 OK"),
    ],
)
async def test_what_is_not_a_whole_http_reply_is_invalid(answer: bytes) -> None:
    """A reply that is cut, mislabelled or no HTTP at all says nothing about the effect."""
    attempt = await attempt_with(after_request(answer))

    assert attempt.outcome is Outcome.UNKNOWN
    assert attempt.result.error_code == "invalid_response"
    assert attempt.result.effect_state == "unknown"


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"HTTP/1.1 2",  # in the status line
        b"HTTP/1.1 200 OK\r\nContent-Le",  # in the headers
        b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n" + reply()[:20],  # in the body
        CHUNKED + b"5\r\n12345\r\n",  # between two chunks
        b"HTTP/1.1 200 OK\r\n\r\n" + reply(),  # whole, but for an end that says so
    ],
)
async def test_a_connection_that_is_reset_is_unknown(start: bytes) -> None:
    """Wherever in the reply it happens: the module had the request."""

    async def resetting(peer: Peer) -> None:
        await peer.request()
        await peer.send(start)
        peer.reset()

    attempt = await attempt_with(resetting)

    assert attempt.outcome is Outcome.UNKNOWN
    assert attempt.result.error_code in {"module_error", "invalid_response"}  # nothing of a reply came, or a part
    assert attempt.result.effect_state == "unknown"


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"HTTP/1.1 2",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n" + reply()[:20],
        b"HTTP/1.1 200 OK\r\n\r\n" + reply(),  # whole, but without a length it ends with the connection
        CHUNKED + b"5\r\n12345\r\n",
    ],
)
async def test_a_module_that_hangs_uses_up_the_time(start: bytes) -> None:
    """Wherever in the reply it stops: the time is over, and the module sees its caller go."""

    async def hanging(peer: Peer) -> None:
        await peer.request()
        await peer.send(start)
        await peer.gone()
        raise ConnectionError

    async with raw_module(hanging) as module, executor_for(module.url) as executor:
        with pytest.raises(TimeoutError):
            await executor.execute(published(), seconds=0.2)
        await wait_until(lambda: module.departures, "the module has seen its caller go")


async def test_a_reply_that_comes_too_late_is_nobodys() -> None:
    """A call that timed out takes its connection with it: the next one cannot get the reply."""
    too_late = asyncio.Event()

    async def late(peer: Peer) -> None:
        await peer.request()
        if peer.number == 1:
            await too_late.wait()
        await peer.send(http(reply(result=peer.number)))
        await peer.gone()

    async with raw_module(late) as module, executor_for(module.url) as executor:
        with pytest.raises(TimeoutError):
            await executor.execute(published(), seconds=0.2)
        too_late.set()
        attempt = await executor.execute(published(), seconds=SECONDS)

    assert attempt.result.result == 2
    assert module.connections == 2


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (b"[" * (LIMIT - 200) + b"0", "invalid_response"),  # never closed
        (b"[" * 200 + b"]" * 200, "invalid_response"),  # deeper than any reader's stack should go
        (b"9" * 5000, "invalid_response"),  # a number that takes a computer minutes to read
        (b"[" + b"[]," * (LIMIT // 4) + b"0]", None),  # as many objects as there is room for
        (b'{"a":' * 90 + b"0" + b"}" * 90, None),  # deep, but not too deep
    ],
)
async def test_a_bomb_of_json_is_bounded(result: bytes, code: ErrorCode | None) -> None:
    """What a reply within the limit becomes in memory is a multiple of the limit, and no more."""
    body = reply(result="@").replace(b'"@"', result)
    with little_memory(48 * LIMIT):
        attempt = await attempt_with(after_request(http(body)))

    assert attempt.result.error_code == code
    assert attempt.outcome is (Outcome.UNKNOWN if code else Outcome.SUCCESS)


@pytest.mark.parametrize(
    "body",
    [
        reply()[:-1],
        reply()[: len(reply()) // 2],
        b'{"tool_name": ',
        reply() + reply(),
        b"[" + reply() + b"]",
        reply(success="yes"),
        reply(success=None),
        reply(success=False, error={"text": "no"}),
        reply(tool_name=["research.search_docs"]),
        reply(tool_name="research.fetch_webpage"),  # another tool's
    ],
)
async def test_half_a_reply_and_one_of_the_wrong_types_are_invalid(body: bytes) -> None:
    """Its HTTP may be as right as it likes: what it says cannot be relied on."""
    attempt = await attempt_with(after_request(http(body)))

    assert attempt.outcome is Outcome.UNKNOWN
    assert attempt.result.error_code == "invalid_response"
    assert attempt.result.effect_state == "unknown"


@pytest.mark.parametrize(
    "behaviour",
    [
        trickling(head=CHUNKED, part=b"1\r\n \r\n"),  # a body for ever
        trickling(head=b"HTTP/1.1 200 OK\r\n", part=b"X: y\r\n"),  # headers, fewer than too many
        trickling(head=b"", part=b"HTTP/1.1 100 Continue\r\n\r\n"),  # hope for ever
        flooding(head=b"", part=b"HTTP/1.1 102 Processing\r\n\r\n" * 1000),  # and much of it
        flooding(head=CHUNKED + b"1;", part=b"x" * 2**16),  # one endless chunk extension, which nobody keeps
    ],
)
async def test_a_trickle_does_not_extend_the_time(behaviour: Behaviour) -> None:
    """The deadline is for the whole exchange, not for each byte."""
    with little_memory(8 * LIMIT), pytest.raises(TimeoutError):
        await attempt_with(behaviour, seconds=1)


async def test_a_module_that_does_not_read_cannot_hold_a_call() -> None:
    """Arguments larger than every buffer between us, and nobody takes them: the deadline still holds."""

    async def deaf(peer: Peer) -> None:
        await asyncio.Event().wait()

    async with raw_module(deaf) as module, executor_for(module.url) as executor:
        with pytest.raises(TimeoutError):
            await executor.execute(published(arguments={"text": "x" * 2**24}), seconds=0.4)


async def test_an_answer_before_the_request_is_read_is_an_answer() -> None:
    """A module may refuse large arguments without reading them."""

    async def hasty(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.send(http(b"too large", "413 Content Too Large"))
        await peer.gone()

    async with raw_module(hasty) as module, executor_for(module.url) as executor:
        attempt = await executor.execute(published(arguments={"text": "x" * 2**24}), seconds=SECONDS)

    assert attempt.outcome is Outcome.PERMANENT
    assert attempt.result.error == "Module returned status 413: too large"


async def test_an_error_with_a_trickling_body_is_still_that_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The status has been said: the body is words, and is not waited for."""
    monkeypatch.setattr(reply_module, "_PATIENCE_SECONDS", 0.2)
    head = b"HTTP/1.1 429 X\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbusy\r\n"
    attempt = await attempt_with(trickling(head=head, part=b"1\r\n.\r\n"))

    assert attempt.outcome is Outcome.TURNED_AWAY
    assert attempt.result.error is not None
    assert attempt.result.error.startswith("Module returned status 429: busy.")


REASON = {"tool_name": "owls.find", "success": False, "error": "owls.find: the quota is used up."}


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (REASON, REASON["error"]),
        ({**REASON, "tool_name": "owls.other"}, None),
        ({**REASON, "success": True}, None),
        ({"detail": "no room"}, None),
    ],
)
async def test_a_module_that_turns_a_call_away_says_why_in_a_reply(body: dict[str, Any], error: str | None) -> None:
    """Its words are shown without a status; anything else is, with the status."""
    name = published().tool_name
    said = {**body, "tool_name": name} if body.get("tool_name") == REASON["tool_name"] else body
    answer = http(json.dumps(said).encode(), "503 Service Unavailable\r\nRetry-After: 3")
    attempt = await attempt_with(after_request(answer))

    assert (attempt.outcome, attempt.retry_after_seconds) == (Outcome.TURNED_AWAY, 3.0)
    assert attempt.result.error == (error or f"Module returned status 503: {json.dumps(said)}")


async def test_an_error_whose_body_is_cut_off_is_still_that_error() -> None:
    """What came of the body is shown."""
    attempt = await attempt_with(after_request(b"HTTP/1.1 500 X\r\nContent-Length: 99\r\n\r\nKeyError: 'q"))

    assert attempt.outcome is Outcome.SERVER_ERROR
    assert attempt.result.error == "Module returned status 500: KeyError: 'q"


async def test_an_endless_error_body_is_cut() -> None:
    """No more of it is read than is shown."""
    with little_memory(4 * LIMIT):
        attempt = await attempt_with(flooding(head=b"HTTP/1.1 500 X\r\n\r\n", part=b"\x1b[31mno\x1b[0m " * 2**12))

    assert attempt.outcome is Outcome.SERVER_ERROR
    assert attempt.result.error is not None
    assert attempt.result.error.startswith("Module returned status 500: no no no")
    assert len(attempt.result.error.encode()) <= len("Module returned status 500: ") + 2000


async def test_a_compressed_error_body_is_not_unpacked() -> None:
    """A bomb in an error is not worth a fuse."""
    with little_memory(4 * LIMIT):
        attempt = await attempt_with(after_request(http(bomb(), "500 X", "Content-Encoding: gzip")))

    assert attempt.result.error == "Module returned status 500: [gzip data]"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("location", ["{elsewhere}/execute", "http://[", "//", "\x7f", ""])
async def test_a_redirect_is_not_followed(status: int, location: str) -> None:
    """A module cannot make the fleet call another server; its words about where it should are not even read."""
    async with raw_module(answering(http(reply()))) as elsewhere:
        target = location.format(elsewhere=elsewhere.url)
        attempt = await attempt_with(after_request(http(b"", f"{status} Moved", f"Location: {target}")))

        assert elsewhere.connections == 0
    assert attempt.outcome in {Outcome.PERMANENT, Outcome.UNKNOWN}
    assert attempt.result.error_code == "invalid_response"


async def test_a_cookie_does_not_come_back() -> None:
    """A module gets no cookie that it set in another user's call."""
    answer = answering(http(reply(), "200 OK", "Set-Cookie: session=anna; Path=/"))
    async with raw_module(answer) as module, executor_for(module.url) as executor:
        await executor.execute(published(user_id="anna"), seconds=SECONDS)
        await executor.execute(published(user_id="ben"), seconds=SECONDS)

    assert len(module.requests) == 2
    assert all("cookie" not in request.headers for request in module.requests)


async def test_a_demand_for_credentials_is_not_answered() -> None:
    """401 ends the call; nothing is sent again."""
    answer = answering(http(b"", "401 X", 'WWW-Authenticate: Basic realm="x"'))
    async with raw_module(answer) as module, executor_for(module.url) as executor:
        attempt = await executor.execute(published(), seconds=SECONDS)

    assert attempt.outcome is Outcome.PERMANENT
    assert len(module.requests) == 1


async def test_a_reply_that_nobody_asked_for_is_not_the_next_calls_reply() -> None:
    """What a module says on an idle connection could be another user's: the connection is thrown away."""

    async def talkative(peer: Peer) -> None:
        await peer.request()
        await peer.send(http(reply(result="yours")), http(reply(result="not yours")))
        await peer.gone()

    async with raw_module(talkative) as module, executor_for(module.url) as executor:
        for _ in range(3):
            attempt = await executor.execute(published(), seconds=SECONDS)
            assert attempt.result.result == "yours"

    assert module.connections == 3


async def test_a_late_reply_that_nobody_asked_for_is_not_the_next_calls_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same when it comes while the connection is idle."""
    monkeypatch.setattr(http_client, "_KEEPALIVE_SECONDS", 60)  # longer than the test waits
    late = asyncio.Event()

    async def talkative(peer: Peer) -> None:
        await peer.request()
        await peer.send(http(reply(result="yours")))
        if peer.number == 1:
            await late.wait()
            await peer.send(http(reply(result="not yours")))
        await peer.gone()

    async with raw_module(talkative) as module, executor_for(module.url) as executor:
        await executor.execute(published(), seconds=SECONDS)
        late.set()
        await wait_until(lambda: not idle_connections(executor), "the reply has arrived")
        attempt = await executor.execute(published(), seconds=SECONDS)

    assert attempt.result.result == "yours"
    assert module.connections == 2


@pytest.mark.parametrize(
    "speak",
    [lambda writer: writer.write(http(reply(result="not yours"))), lambda writer: writer.write_eof()],
    ids=["reply", "end"],
)
async def test_what_arrives_just_before_the_next_call_is_not_its_reply(
    speak: Callable[[asyncio.StreamWriter], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the loop has had no turn in which to notice it: nothing was sent over that connection."""
    monkeypatch.setattr(http_client, "_KEEPALIVE_SECONDS", 60)  # longer than the test waits
    peers: list[Peer] = []

    async def talkative(peer: Peer) -> None:
        peers.append(peer)
        await peer.request()
        await peer.send(http(reply(result="yours")))
        await peer.gone()

    async with raw_module(talkative) as module, executor_for(module.url) as executor:
        await executor.execute(published(), seconds=SECONDS)
        speak(peers[0].writer)
        attempt = await executor.execute(published(), seconds=SECONDS)

    assert attempt.result.result == "yours"
    assert [request.connection for request in module.requests] == [1, 2]


async def test_a_server_that_speaks_first_is_sent_nothing() -> None:
    """The banner of another protocol on every connection: the call is not sent to whoever that is."""

    async def banner(peer: Peer) -> None:
        await peer.send(b"220 mail.example ESMTP\r\n")
        await peer.gone()

    attempt = await attempt_with(banner)

    assert attempt.outcome in {Outcome.NOT_SENT, Outcome.UNKNOWN}  # by which of us is quicker
    assert not attempt.result.success


async def test_a_hostile_module_does_not_disturb_the_calls_of_others() -> None:
    """While one module floods and another is silent, a third answers as ever."""

    async def silent(peer: Peer) -> None:
        await peer.request()
        await peer.gone()

    flood = flooding(head=CHUNKED, part=b"10000\r\n" + b"x" * 2**16 + b"\r\n")
    async with raw_module(flood) as bad, raw_module(silent) as mute, raw_module(answering(http(reply()))) as good:
        urls = {"flood": bad.url, "mute": mute.url, "research": good.url}
        executor = HttpExecutor(urls, client=HttpClient(), max_reply_bytes=64 * LIMIT)
        hostile = [asyncio.create_task(_ignore(executor.execute, name)) for name in ("flood.x", "mute.x")]
        await wait_until(lambda: bad.requests and mute.requests, "both hold a call")
        for _ in range(20):
            assert (await executor.execute(published(), seconds=SECONDS)).outcome is Outcome.SUCCESS
        for task in hostile:
            task.cancel()
        await asyncio.gather(*hostile, return_exceptions=True)
        await executor.aclose()


async def _ignore(execute: Callable[..., Awaitable[Attempt]], tool_name: str) -> None:
    await execute(published(tool_name), seconds=SECONDS)
