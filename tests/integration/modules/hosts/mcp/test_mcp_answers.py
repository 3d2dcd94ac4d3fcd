"""What a server's answers come to: none of them decides that a call was not executed, and none is waited for in vain."""

import asyncio
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from support.hosts.mcp_server import HostedServer, hosted_server
from support.hosts.odd_server import JSON, Answer, odd_http, odd_program
from support.waiting import wait_until, wait_until_answered
from toolfleet_modules.hosts.secrets import Secrets

pytestmark = pytest.mark.asyncio

TEXT = {"Content-Type": "text/plain"}
EVENTS = {"Content-Type": "text/event-stream"}
CUT = {**JSON, "Content-Length": "1000", "Connection": "close"}


def error(code: object, message: str = "the card was charged", number: str = "%d") -> str:
    """An error of the protocol, as a server writes it."""
    return f'{{"jsonrpc": "2.0", "id": {number}, "error": {{"code": {json.dumps(code)}, "message": "{message}"}}}}'


CODES = (-32000, -32001, -32600, -32601, -32603, *range(-31906, -31900))
"""Those that the host, its SDK or other SDKs have used for connections that ended, or for requests that were not sent."""

STATUSES = (400, 402, 403, 404, 405, 406, 409, 410, 413, 415, 422, 426, 428, 431, 499, 500, 501, 502, 503, 504, 599)

HTTP: dict[str, Answer | None] = {
    **{f"code{code}": Answer(200, error(code)) for code in CODES},
    **{f"event{code}": Answer(200, f"data: {error(code)}\n\n", EVENTS) for code in CODES},
    **{f"status{status}": Answer(status, "the card was charged", TEXT) for status in STATUSES},
    **{f"error{status}": Answer(status, error(-32000, "the card was charged in session 5")) for status in STATUSES},
    **{f"null{status}": Answer(status, error(-32000, number="null")) for status in STATUSES},
    **{f"code{code}-at-500": Answer(500, error(code)) for code in CODES},
    "terminated": Answer(400, error(-32600, "Session terminated")),
    "terminated-200": Answer(200, error(-32600, "Session terminated")),
    "nothing": None,
    "accepted": Answer(202),
    "no-content": Answer(204),
    "page": Answer(200, "<html>the card was charged</html>", {"Content-Type": "text/html"}),
    "other-id": Answer(200, error(5, number="77")),
    "broken-events": Answer(200, ": hello\n\n", EVENTS),
    "other-events": Answer(200, f"data: {error(5, number='77')}\n\n", EVENTS),
    "elsewhere": Answer(302, "", {"Location": "/other"}),
    "compressed": Answer(200, error(5), {**JSON, "Content-Encoding": "gzip"}),
    "cut": Answer(200, error(5), CUT),
    "cut-at-500": Answer(500, error(5), CUT),
}

UNREAD = {"other-id", "other-events", "compressed", "cut", "cut-at-500"}
"""Their words are another request's, or cannot be read."""

LINES = {
    **{f"code{code}": error(code) for code in CODES},
    "terminated": error(-32600, "Session terminated"),
    "wait": error(-31902).replace('"message"', '"data": {"retry_after_seconds": 0}, "message"'),
}


async def test_no_answer_of_a_server_says_that_a_call_was_not_executed(tmp_path: Path) -> None:
    """Over HTTP: each call is sent once, ends, and its effect is not said to be none. The server's words are shown."""
    ends: dict[str, Any] = {}
    with odd_http(HTTP) as (odd, server):
        async with hosted_server(server, tmp_path / "notes") as served:
            for name, answer in HTTP.items():
                ended = await served.call(name)
                ends[name] = (ended.status, ended.success, ended.effect_state, odd.executed[name])
                if answer is not None and "charged" in answer.body and name not in UNREAD:
                    assert "the card was charged" in str(ended.error), (name, ended)

    assert ends == dict.fromkeys(HTTP, (200, False, "unknown", 1))


async def test_no_line_of_a_program_says_that_a_call_was_not_executed(tmp_path: Path) -> None:
    """Its errors are failures in its words, whatever their codes are."""
    async with hosted_server(odd_program(tmp_path, LINES), tmp_path / "notes") as served:
        for name in LINES:
            ended = await served.call(name)
            assert (ended.status, ended.success, ended.effect_state) == (200, False, "unknown"), (name, ended)
            assert str(ended.error).startswith(f"nest.{name} failed: "), ended
    assert json.loads((tmp_path / "executed").read_text()) == dict.fromkeys(LINES, 1)


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (Answer(401, "who are you?", TEXT), 200),
        (Answer(403, "more", {**TEXT, "WWW-Authenticate": 'Bearer error="insufficient_scope", scope="eggs"'}), 200),
        (Answer(408), 503),
        (Answer(425), 503),
        (Answer(429), 503),
        (Answer(503, error(-32603), {**JSON, "Retry-After": "0"}), 503),
    ],
)
async def test_documented_refusals_are_not_taken(tmp_path: Path, answer: Answer, status: int) -> None:
    """Credentials that do not count are a failure, and what comes back later is turned away."""
    with odd_http({"lay": answer}) as (_, server):
        async with hosted_server(server, tmp_path / "notes") as served:
            ended = await served.call("lay")
    assert (ended.status, ended.success, ended.effect_state) == (status, False, "none")


@pytest.mark.parametrize(
    ("hints", "retryable"), [({}, False), ({"idempotentHint": True}, True), ({"readOnlyHint": True}, True)]
)
async def test_a_call_whose_session_is_gone_is_repeated_only_if_that_does_no_harm(
    tmp_path: Path, hints: Mapping[str, bool], retryable: bool
) -> None:
    """And is sent in a new session then."""
    with odd_http({"lay": Answer(200, error(1))}, {"lay": {"annotations": hints}}) as (odd, server):
        async with hosted_server(server, tmp_path / "notes", trusted=True) as served:
            odd.forget(Answer(404, error(-32600, "no such session", "null")))
            lost, again = await served.call("lay"), await served.call("lay")

    assert (lost.status, lost.success, lost.retryable) == (200, False, retryable)
    assert lost.effect_state == ("none" if "readOnlyHint" in hints else "unknown")
    assert "the card was charged" in str(again.error)
    assert odd.executed["lay"] == 1


@pytest.mark.parametrize("scope", ["shared", "caller"])
@pytest.mark.parametrize(
    "answer",
    [
        Answer(400, error(-32000, "Bad Request: No valid session ID provided", "null")),
        Answer(400, "no session", TEXT),
        Answer(404),
        Answer(404, error(-32001, "Session not found", '"server-error"')),
        Answer(500, "no session", TEXT),
    ],
)
async def test_a_server_that_was_started_anew_takes_the_second_call(tmp_path: Path, answer: Answer, scope: str) -> None:
    """The first one ends as unknown, and calls that run in the old session have their results."""
    released = threading.Event()
    with odd_http(
        {
            "lay": Answer(200, '{"jsonrpc": "2.0", "id": %d, "result": {"content": []}}'),
            "hatch": Answer(200, error(1, "late")),
        }
    ) as (odd, server):
        odd.before = lambda name: released.wait() if name == "hatch" else None
        async with hosted_server(server, tmp_path / "notes", scope=scope) as served:
            running = asyncio.ensure_future(served.call("hatch"))
            await wait_until(lambda: odd.executed["hatch"], "a call runs")
            odd.forget(answer)
            first, second = await served.call("lay"), await served.call("lay")
            released.set()
            late = await running

    assert (first.status, first.success, first.effect_state) == (200, False, "unknown")
    assert second.success, second
    assert late.error == "nest.hatch failed: late"
    assert odd.executed == {"lay": 1, "hatch": 1}


async def test_a_session_that_a_ping_finds_is_kept(tmp_path: Path) -> None:
    """An error status alone ends no session: the next call asks first, and only once."""
    with odd_http({"lay": Answer(500, "no eggs", TEXT), "sing": Answer(200, error(1))}) as (odd, server):
        async with hosted_server(server, tmp_path / "notes", refresh_seconds=600) as served:
            await served.call("sing")
            odd.methods.clear()
            for name in ("lay", "sing", "sing"):
                await served.call(name)

    assert odd.methods == ["tools/call", "ping", "tools/call", "tools/call"]


OK = '{"jsonrpc": "2.0", "id": %d, "result": {"content": [{"type": "text", "text": "hoot"}]}}'
NONE = "its server's answer is none of the protocol: "
FORMS = {
    "half": (OK.replace("hoot", "cut \\ud83d"), "cut \ufffd"),
    "latin": (OK.replace("hoot", "caf\udce9"), "caf\ufffd"),
    "marked": ("\ufeff" + OK, "hoot"),
    "text-id": (OK.replace("%d", '"%d"'), "hoot"),
    "float-id": (OK.replace("%d", "%d.0"), "hoot"),
    "no-version": (OK.replace('"jsonrpc": "2.0", ', ""), "hoot"),
    "other-version": (OK.replace("2.0", "1.0"), "hoot"),
    "with-method": (OK.replace('"result"', '"method": "tools/call", "result"'), "hoot"),
    "with-null": (OK.replace('"result"', '"error": null, "result"'), "hoot"),
    "batch": (f"[{OK}]", "hoot"),
    "error-text": ('{"jsonrpc": "2.0", "id": %d, "error": "boom"}', "nest.error-text failed: boom"),
    "error-code": (error("E_BOOM", "boom"), "nest.error-code failed: boom (E_BOOM)"),
    "error-bare": ('{"id": %d, "error": {"message": "boom"}}', "nest.error-bare failed: boom"),
    "result-text": ('{"jsonrpc": "2.0", "id": %d, "result": "ok"}', f"nest.result-text did not end: {NONE}ok."),
    "result-null": ('{"jsonrpc": "2.0", "id": %d, "result": null}', f"nest.result-null did not end: {NONE}null."),
    "bare": ('{"jsonrpc": "2.0", "id": %d}', NONE),
    "broken": ('{"jsonrpc": "2.0", "id": %d, "result": {"content": [,]}}', NONE),
}


@pytest.mark.parametrize("transport", ["stdio", "http", "events"])
async def test_an_id_that_is_ours_ends_its_call(tmp_path: Path, transport: str) -> None:
    """At once, whatever else the answer is: what can be read of it is shown."""
    events = {name: Answer(200, f"data: {body}\n\n", EVENTS) for name, (body, _) in FORMS.items()}
    bodies = {name: Answer(200, body) for name, (body, _) in FORMS.items()}
    with odd_http(bodies if transport == "http" else events) as (_, web):
        program = odd_program(tmp_path, {name: body for name, (body, _) in FORMS.items()})
        async with hosted_server(program if transport == "stdio" else web, tmp_path / "notes") as served:
            for name, (_, shown) in FORMS.items():
                ended = await served.call(name)
                assert ended.status == 200, (name, ended)
                assert shown in str(ended.result if ended.success else ended.error), (name, ended)
                assert ended.success == (not shown.startswith(("nest.", NONE))), (name, ended)


FINE = '{"jsonrpc": "2.0", "id": %d, "result": {"content": [{"type": "text", "text": "fine"}]}}'


@pytest.mark.parametrize("kind", ["http", "program"])
async def test_an_answer_that_is_nested_too_deep_ends_its_own_call_only(tmp_path: Path, kind: str) -> None:
    """Also where one library reads what another one cannot write: calls before and after it in the session are answered."""
    depths = (150, 201, 256, 300, 900, 5000)
    lines = {f"deep{depth}": FINE.replace('"fine"', "[" * depth + "]" * depth) for depth in depths}
    lines |= {
        f"error{depth}": error(5).replace('"the card was charged"', "[" * depth + "]" * depth) for depth in depths
    }
    lines["fine"] = FINE
    with odd_http({name: Answer(200, line) for name, line in lines.items()}) as (odd, server):
        async with hosted_server(
            server if kind == "http" else odd_program(tmp_path, lines), tmp_path / "notes"
        ) as served:
            for name in lines:
                ended, fine = await served.call(name), await served.call("fine")
                assert (ended.status, fine.result) == (200, "fine"), (name, ended, fine)
                assert ended.effect_state != "none" or ended.success, (name, ended)
        executed = odd.executed if kind == "http" else json.loads((tmp_path / "executed").read_text())
    assert {name: executed[name] for name in lines if name != "fine"} == dict.fromkeys(lines.keys() - {"fine"}, 1)


async def test_a_result_under_the_calls_own_id_is_its_end_and_nothing_else_is(tmp_path: Path) -> None:
    """Also at 404, which would otherwise say that the session is gone; a heartbeat has neither a result nor an error."""
    beats = "".join(f"data: {beat}\n\n" for beat in ("{}", '{"type": "ping"}', FINE))
    with odd_http({"lay": Answer(404, FINE), "beating": Answer(200, beats, EVENTS)}) as (odd, server):
        async with hosted_server(server, tmp_path / "notes") as served:
            ended = [await served.call(name) for name in ("lay", "lay", "beating")]

    assert [(each.success, each.result) for each in ended] == [(True, "fine")] * 3
    assert (odd.executed["lay"], odd.session) == (2, 1)


@pytest.mark.parametrize("at", [0, 490, 980, 3980, 7980])
async def test_no_part_of_a_secret_is_left_where_words_are_cut(tmp_path: Path, at: int) -> None:
    """In the words of a status, of an error, and of a refused handshake: a value is hidden before anything is cut."""
    secrets = Secrets({"KEY": "sk-abcdefghijklmnopqrstuvwxyz0123456789"})
    words = "." * at + " sk-abcdefghijklmnopqrstuvwxyz0123456789"
    gone, unwanted = Answer(404), Answer(401, words, TEXT)
    answers = {"status": Answer(400, words, TEXT), "error": Answer(200, error(5, words)), "fine": Answer(200, FINE)}
    with odd_http(answers) as (odd, server):
        async with hosted_server(server, tmp_path / "notes", secrets=secrets) as served:
            ended = [await served.call("status"), await served.call("error")]
            refusing = patch.object(
                odd, "answer", lambda asked, _: gone if asked["method"] == "tools/call" else unwanted
            )
            with refusing:
                await wait_until_answered(lambda: refused(served, ended), "the handshake is refused")

    assert [each for each in ended if "sk-a" in f"{each.error} {each.result}"] == []


async def refused(served: HostedServer, ended: list[Any]) -> bool:
    ended.append(await served.call("fine"))
    return "cannot be used" in str(ended[-1].error)
