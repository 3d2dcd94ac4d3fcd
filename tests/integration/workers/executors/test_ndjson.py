"""Replies in lines: what a module says while it runs is heard, and nothing of it decides what the call came to."""

import functools
import gzip
import json
from collections.abc import Awaitable, Callable

import pytest

from support.modules.http_executor import executor_for
from support.modules.raw_module import Behaviour, Peer, after_request, http, raw_module, reply
from support.published_call import published
from support.waiting import wait_until
from toolfleet_registry.contracts.attempts import Attempt, Outcome
from toolfleet_registry.contracts.call_context import Progress, report_to
from toolfleet_workers.executors import reply as reply_module

SECONDS = 15
STREAM = "Content-Type: application/x-ndjson"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"


def line(fraction: object, message: object = "") -> bytes:
    return json.dumps({"progress": fraction, "message": message}).encode() + b"\n"


def chunk(part: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(part), part)


def has_more_than(said: list[Progress], number: int) -> bool:
    return len(said) > number


async def attempt_with(
    behaviour: Behaviour, said: list[Progress], *, limit: int = 2**20, seconds: float = 15
) -> Attempt:
    report_to(said.append)
    async with raw_module(behaviour) as module, executor_for(module.url, max_reply_bytes=limit) as executor:
        return await executor.execute(published(), seconds=seconds)


@pytest.fixture
def said() -> list[Progress]:
    return []


async def test_a_module_is_told_that_it_may_answer_in_lines() -> None:
    """The request accepts both kinds, and the question after a lost call only one."""
    async with raw_module(after_request(http(reply()))) as module, executor_for(module.url) as executor:
        await executor.execute(published(), seconds=SECONDS)
    async with raw_module(after_request(http(b"{}"))) as asked, executor_for(asked.url) as executor:
        await executor.reconcile(published(), seconds=SECONDS)

    assert module.requests[0].headers["accept"] == "application/json, application/x-ndjson"
    assert asked.requests[0].headers["accept"] == "application/json"


async def test_each_line_is_heard_when_it_comes(said: list[Progress]) -> None:
    """A line is passed on before the next one is there; the last line is the reply."""
    steps = iter([line(0.25, "reading"), b"\n" + line(None, "thinking"), reply(result=7) + b"\n"])
    heard: list[int] = []

    async def behave(peer: Peer) -> None:
        await peer.request()
        await peer.send(HEAD)
        for number, part in enumerate(steps):
            await peer.send(chunk(part))
            if number < 2:
                await wait_until(functools.partial(has_more_than, said, number), "the line is heard")
            heard.append(len(said))
        await peer.send(b"0\r\n\r\n")

    attempt = await attempt_with(behave, said)

    assert attempt.outcome is Outcome.SUCCESS
    assert attempt.result.result == 7
    assert said == [Progress(fraction=0.25, message="reading"), Progress(message="thinking")]
    assert heard == [1, 2, 2]


async def test_a_reply_in_one_line_without_progress_is_a_reply(said: list[Progress]) -> None:
    """Whoever answers in lines need not have anything to say before; nor need the last line end."""
    attempt = await attempt_with(after_request(http(reply(result="x"), "200 OK", STREAM)), said)

    assert attempt.result.result == "x"
    assert said == []


async def test_lines_cut_anywhere_are_the_same_lines(said: list[Progress]) -> None:
    """A byte at a time, with Windows line ends and characters of several bytes."""
    whole = line(0.5, "Käuze 🦉").replace(b"\n", b"\r\n") + reply(result="ü") + b"\r\n"

    async def behave(peer: Peer) -> None:
        await peer.request()
        await peer.send(HEAD)
        for number in range(len(whole)):
            await peer.send(chunk(whole[number : number + 1]))
        await peer.send(b"0\r\n\r\n")

    attempt = await attempt_with(behave, said)

    assert attempt.result.result == "ü"
    assert said == [Progress(fraction=0.5, message="Käuze 🦉")]


@pytest.mark.parametrize(("fraction", "known"), [(1.0000001, 1), (-3, 0), (10**400, 1), (1, 1), (None, None)])
async def test_a_share_outside_of_its_range_costs_no_result(
    said: list[Progress], fraction: object, known: float | None
) -> None:
    """It is taken for the nearer end: it may be rounding, and the work is done."""
    attempt = await attempt_with(after_request(http(line(fraction) + reply(), "200 OK", STREAM)), said)

    assert attempt.outcome is Outcome.SUCCESS
    assert [one.fraction for one in said] == [known]


async def test_a_message_is_cleaned_and_cut(said: list[Progress]) -> None:
    """Terminal escapes do not reach anybody's terminal, and 500 characters are enough."""
    body = line(0.1, "\x1b[31mred\x07 " + "x" * 1000) + reply()

    await attempt_with(after_request(http(body, "200 OK", STREAM)), said)

    assert said[0].message == "red " + "x" * 496


BAD = {
    "words": b"reading the third page\n",
    "a number": b"0.4\n",
    "a share that is no JSON": b'{"progress": half}\n',
    "progress with a result": b'{"progress": 1, "success": true}\n',
    "progress of a tool": b'{"progress": 1, "tool_name": "git.push"}\n',
    "a long line of something else": b'{"message": "' + b"x" * 70_000 + b'", "progress": 0.4}\n',
    "nesting": b"[" * 4000 + b"\n",
    "a reply before": reply(result="early") + b"\n",
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
async def test_what_is_neither_progress_nor_the_last_line_makes_the_reply_invalid(
    said: list[Progress], bad: bytes
) -> None:
    """Of a module that does not keep to the form nobody knows what it has done."""
    attempt = await attempt_with(after_request(http(line(0.1) + bad + reply(), "200 OK", STREAM)), said)

    assert (attempt.outcome, attempt.result.error_code) == (Outcome.UNKNOWN, "invalid_response")
    assert attempt.result.effect_state == "unknown"


SLIPS = {
    "a share that is text": (line("50%", "x"), Progress(message="x")),
    "a share that is true": (line(True, "x"), Progress(message="x")),
    "a share that is a list": (line([1], "x"), Progress(message="x")),
    "no number": (b'{"progress": NaN}\n', Progress()),
    "infinity": (b'{"progress": 1e999}\n', Progress()),
    "words that are a number": (line(0.4, 5), Progress(fraction=0.4)),
    "words that are a list": (line(0.4, ["x"]), Progress(fraction=0.4)),
    "half a character": (b'{"progress": 0.4, "message": "\\ud800x"}\n', Progress(fraction=0.4, message="x")),
    "a byte order mark": (b"\xef\xbb\xbf" + line(0.4, "x"), Progress(fraction=0.4, message="x")),
    "not UTF-8": (b'{"progress": 0.4, "message": "\xff"}\n', Progress(fraction=0.4, message="\ufffd")),
    "a long line": (line(0.4, "x" * 5000), Progress(fraction=0.4, message="x" * 500)),
}


@pytest.mark.parametrize(("slip", "heard"), SLIPS.values(), ids=SLIPS.keys())
async def test_a_slip_in_a_line_of_progress_costs_no_result(said: list[Progress], slip: bytes, heard: Progress) -> None:
    """What was done is done; of the line is shown what can be."""
    attempt = await attempt_with(after_request(http(slip + reply(), "200 OK", STREAM)), said)

    assert attempt.outcome is Outcome.SUCCESS
    assert said == [heard]


@pytest.mark.parametrize("limit", [1000, 2**20])
async def test_a_line_of_progress_that_is_too_long_is_passed_over(said: list[Progress], limit: int) -> None:
    """Whether or not a reply could be as long."""
    body = line(0.1) + line(0.4, "x" * 100_000) + reply()
    attempt = await attempt_with(after_request(http(body, "200 OK", STREAM)), said, limit=limit)

    assert attempt.outcome is Outcome.SUCCESS
    assert said == [Progress(fraction=0.1)]


async def test_a_long_reply_may_begin_as_progress_does(said: list[Progress]) -> None:
    """Nothing comes after it."""
    body = reply(result="x" * 100_000).replace(b"{", b'{"progress": 1, ', 1)
    attempt = await attempt_with(after_request(http(line(0.1) + body, "200 OK", STREAM)), said)

    assert attempt.outcome is Outcome.SUCCESS


@pytest.mark.parametrize("after", [line(0.9), b"x", reply()])
async def test_nothing_may_follow_the_reply(said: list[Progress], after: bytes) -> None:
    """Not even progress: nobody could say which of two lines counts."""
    attempt = await attempt_with(after_request(http(reply() + b"\n" + after, "200 OK", STREAM)), said)

    assert attempt.result.error_code == "invalid_response"


@pytest.mark.parametrize("body", [b"", b"\n\n", line(0.5), line(1, "done") * 3, line(0.5)[:-1]])
async def test_a_stream_without_a_reply_is_an_invalid_one(said: list[Progress], body: bytes) -> None:
    """Saying that all is done is not the reply."""
    attempt = await attempt_with(after_request(http(body, "200 OK", STREAM)), said)

    assert (attempt.outcome, attempt.result.error_code) == (Outcome.UNKNOWN, "invalid_response")


async def _die(peer: Peer) -> None:
    await peer.request()
    await peer.send(HEAD, chunk(line(0.5, "half")))


async def _reset(peer: Peer) -> None:
    await _die(peer)
    peer.reset()


@pytest.mark.parametrize(
    ("death", "codes"), [(_die, {"invalid_response"}), (_reset, {"invalid_response", "module_error"})]
)
async def test_a_module_that_dies_on_its_way_leaves_the_end_unknown(
    said: list[Progress], death: Callable[[Peer], Awaitable[None]], codes: set[str]
) -> None:
    """What it said before does not count."""
    attempt = await attempt_with(death, said)

    assert attempt.outcome is Outcome.UNKNOWN
    assert attempt.result.error_code in codes


async def test_a_module_that_only_talks_is_timed_out(said: list[Progress]) -> None:
    """Progress buys no time: the limit is the call's."""

    async def behave(peer: Peer) -> None:
        await peer.request()
        await peer.send(HEAD)
        await peer.send_for_ever(chunk(line(0.5)), every=0.02)

    with pytest.raises(TimeoutError):
        await attempt_with(behave, said, seconds=0.5)

    assert said


async def test_a_flood_of_lines_is_read_slowly(said: list[Progress], monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the call's time is over; of those lines that came together only the latest was passed on."""
    monkeypatch.setattr(reply_module, "_BYTES_AT_ONCE", 2**16)
    seen: list[int] = []

    class Counted(reply_module._Pace):
        def pause(self, taken: int) -> float:
            seen.append(taken)
            return super().pause(taken)

    monkeypatch.setattr(reply_module, "_Pace", Counted)
    flood = chunk(line(0.5, "x") * 2000)

    async def behave(peer: Peer) -> None:
        await peer.request()
        await peer.send(HEAD)
        await peer.send_for_ever(flood)

    with pytest.raises(TimeoutError):
        await attempt_with(behave, said, limit=1000, seconds=0.3)

    assert 0 < seen[-1] < 2**20  # the first 64 kB, 300 kB more, and what had arrived by then
    assert len(said) < seen[-1] / len(line(0.5, "x")) / 20


async def test_much_progress_of_a_long_call_costs_no_result(said: list[Progress]) -> None:
    """Twenty megabytes of it, as hours of work make them, are not too many; only as one flood they would take a while."""
    piece = line(0.5, "x" * 500) * 2000
    lines = reply_module._Lines(2**20)
    for _ in range(20 * 2**20 // len(piece)):
        lines.feed(piece)
    lines.feed(reply(result=7))

    assert json.loads(lines.finish())["result"] == 7
    assert lines.progress_bytes > 19 * 2**20
    assert reply_module._Pace().pause(2**20) == 0


async def test_a_line_that_never_ends_is_not_kept(said: list[Progress]) -> None:
    """The reply's limit holds for its line."""

    async def behave(peer: Peer) -> None:
        await peer.request()
        await peer.send(HEAD, chunk(line(0.5)))
        await peer.send_for_ever(chunk(b"x" * 2**16))

    assert (await attempt_with(behave, said)).result.error_code == "result_too_large"


async def test_a_reply_over_the_limit_is_too_large_also_in_a_line(said: list[Progress]) -> None:
    """However small the limit is."""
    attempt = await attempt_with(
        after_request(http(line(0.5) + reply(result="x" * 900), "200 OK", STREAM)), said, limit=500
    )

    assert attempt.result.error_code == "result_too_large"


async def test_lines_must_not_be_compressed(said: list[Progress]) -> None:
    """Nobody asked for it, and a piece of a compressed stream is no line."""
    body = gzip.compress(line(0.5) + reply())
    attempt = await attempt_with(after_request(http(body, "200 OK", STREAM, "Content-Encoding: gzip")), said)

    assert attempt.result.error_code == "invalid_response"


async def test_lines_in_a_reply_of_another_type_are_what_they_were() -> None:
    """Only a module that says so streams."""
    attempt = await attempt_with(after_request(http(line(0.5) + reply())), [])

    assert attempt.result.error_code == "invalid_response"
