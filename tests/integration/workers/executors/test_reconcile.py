"""Asking a module what became of a lost call: what it is asked, which answers count, and what the others cost."""

import asyncio
import gzip
import json
from typing import Any

import pytest
from structlog.testing import capture_logs

from support.modules.http_executor import executor_for
from support.modules.raw_module import Behaviour, Peer, after_request, answering, http, raw_module
from support.published_call import published
from support.waiting import wait_until
from toolfleet_registry.contracts import EffectState
from toolfleet_registry.contracts.attempts import Attempt, Outcome

SECONDS = 10  # long enough that only a defect can use it up
LIMIT = 2**20


def answer(state: Any = "done", **fields: Any) -> bytes:
    """An answer about the call that is asked for, unless `fields` name another."""
    return json.dumps({"call_id": "call-1", "state": state, **fields}).encode()


async def asked(behaviour: Behaviour, *, seconds: float = SECONDS) -> Attempt | None:
    async with raw_module(behaviour) as module, executor_for(module.url, max_reply_bytes=LIMIT) as executor:
        return await executor.reconcile(published(), seconds=seconds)


async def test_a_module_is_asked_for_the_call_by_its_id() -> None:
    """POST /reconcile beside /execute, with the call id in the body and the headers of every request."""
    async with raw_module(answering(http(answer()))) as module, executor_for(f"{module.url}/base") as executor:
        await executor.reconcile(published(), seconds=3)

    (request,) = module.requests
    assert request.line == "POST /base/reconcile HTTP/1.1"
    assert request.json == {"call_id": "call-1"}
    assert request.headers["idempotency-key"] == "call-1"
    assert request.headers["toolfleet-time-left-ms"] == "3000"
    assert request.headers["content-type"] == "application/json"


async def test_a_question_takes_the_connection_of_a_call() -> None:
    """Calls and questions share one pool."""
    async with raw_module(answering(http(answer()))) as module, executor_for(module.url) as executor:
        await executor.execute(published(), seconds=SECONDS)
        await executor.reconcile(published(), seconds=SECONDS)

    assert len(module.requests) == 2
    assert module.connections == 1


async def test_a_call_that_was_done_ends_with_its_reply() -> None:
    """The lost result is delivered after all."""
    attempt = await asked(answering(http(answer(success=True, result={"paid": 7}))))

    assert attempt is not None
    assert attempt.outcome is Outcome.SUCCESS
    assert (attempt.result.result, attempt.result.effect_state) == ({"paid": 7}, "done")


@pytest.mark.parametrize(
    ("fields", "error", "effect_state"),
    [
        ({"success": False, "error": "No \x1b[31mmoney."}, "No money.", "done"),  # it was executed, and it failed
        ({"success": False, "error": "no", "effect_state": "none"}, "no", "none"),  # before it did anything
        ({"success": False, "error": "no", "effect_state": None}, "no", "done"),
        ({"success": False, "error": "no", "effect_state": "maybe"}, "no", "unknown"),  # no such state
        (
            {},
            "Tool execution error: the module has executed the call, and its reply is lost",
            "done",
        ),
    ],
)
async def test_a_call_that_was_done_and_failed_says_so(
    fields: dict[str, Any], error: str, effect_state: EffectState
) -> None:
    """What the module says is judged as a reply would have been; that it was executed is sure unless it says otherwise."""
    attempt = await asked(answering(http(answer(**fields))))

    assert attempt is not None
    assert attempt.outcome is Outcome.FAILED
    assert attempt.result.error_code == "module_error"
    assert (attempt.result.error, attempt.result.effect_state) == (error, effect_state)


async def test_a_call_that_was_never_begun_has_done_nothing() -> None:
    """It may be repeated, whatever its effect."""
    attempt = await asked(answering(http(answer("none"))))

    assert attempt is not None
    assert attempt.outcome is Outcome.NOT_SENT
    assert attempt.result.effect_state == "none"


@pytest.mark.parametrize(
    "response",
    [
        http(answer("running")),
        http(answer("unknown")),
        # A module without the endpoint, or one that is not there now.
        *(http(b'{"detail": "Not Found"}', f"{status} X") for status in (404, 405, 501, 500, 503)),
        http(answer(), "201 Created"),
        http(answer(success=True), "404 X"),  # the status counts
        http(b"", "204 X"),
        http(b"", "307 X", "Location: /elsewhere"),
        # Nonsense.
        http(answer(call_id="call-2", success=True)),  # another call's
        http(answer(call_id=None)),
        http(answer("perhaps")),
        http(answer(None)),
        http(answer(["done"])),
        http(answer(success=1)),  # no boolean
        http(answer(success="true")),
        http(answer(success=False)),  # says nothing about why
        http(answer(success=True, error=["x"])),
        http(b'{"state": "none"}'),
        http(b'{"call_id": "call-1"}'),
        http(b'["call-1", "none"]'),
        http(b"null"),
        http(b"none"),
        http(b"<html>none</html>"),
        http(b""),
        http(answer("none")[:-5]),
        http(b"\xff" + answer("none")),
        http(answer("none").replace(b"}", b', "x": NaN}')),
        http(b'{"call_id": "call-1", "state": "none", "x": ' + b"[" * 200 + b"]" * 200 + b"}"),
        http(answer("none"), "200 OK", "Content-Encoding: br"),
        http(gzip.compress(bytes(64 * LIMIT)), "200 OK", "Content-Encoding: gzip"),
        http(answer(result="x" * LIMIT, success=True)),  # announced as too large
        b"HTTP/1.1 200 OK\r\n\r\n" + b" " * (LIMIT + 1),  # not announced
        b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n" + answer("none"),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"",
    ],
)
async def test_any_other_answer_is_none(response: bytes) -> None:
    """Only a clear word about this very call counts; the rest leaves its end as unknown as it was."""
    assert await asked(after_request(response)) is None


async def test_a_redirect_is_not_followed() -> None:
    """A module cannot make the fleet ask another server."""
    async with raw_module(answering(http(answer("none")))) as elsewhere:
        location = f"Location: {elsewhere.url}/reconcile"
        assert await asked(answering(http(b"", "308 X", location))) is None

    assert elsewhere.connections == 0


async def silent(peer: Peer) -> None:
    await peer.request()
    await peer.gone()


async def trickling(peer: Peer) -> None:
    await peer.request()
    await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    await peer.send_for_ever(b"1\r\n \r\n", every=0.02)


async def resetting(peer: Peer) -> None:
    await peer.request()
    peer.reset()


@pytest.mark.parametrize("behaviour", [silent, trickling, resetting])
@pytest.mark.parametrize("seconds", [0.3, 0, -1])
async def test_a_module_that_does_not_answer_is_not_waited_for(behaviour: Behaviour, seconds: float) -> None:
    """The time is for the whole exchange; without any, there is no answer."""
    assert await asked(behaviour, seconds=seconds) is None


async def test_a_module_that_is_away_or_unknown_has_no_answer() -> None:
    """Nothing is raised: the call ends as it would without the question."""
    async with executor_for("http://127.0.0.1:1") as executor:
        assert await executor.reconcile(published(), seconds=SECONDS) is None
        assert await executor.reconcile(published("xyz.search"), seconds=SECONDS) is None
        assert await executor.reconcile(published("xyz"), seconds=SECONDS) is None


async def test_a_question_that_is_cancelled_hangs_up() -> None:
    """A worker that stops does not wait for it, and the module sees its caller go."""

    async def noting(peer: Peer) -> None:
        await silent(peer)
        raise ConnectionError

    async with raw_module(noting) as module, executor_for(module.url) as executor:
        asking = asyncio.create_task(executor.reconcile(published(), seconds=SECONDS))
        await wait_until(lambda: module.requests, "the module is asked")
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await wait_until(lambda: module.departures, "the module has seen its caller go")


@pytest.mark.parametrize(
    ("response", "event"),
    [
        (http(answer("none")), "reconcile_answered"),
        (http(answer(call_id="secret-7")), "reconcile_answer_invalid"),
        (b"", "reconcile_unanswered"),
    ],
)
async def test_the_log_says_what_became_of_the_question(response: bytes, event: str) -> None:
    """One line with the call's id and its tool, and nothing of a foreign answer."""
    with capture_logs() as logs:
        await asked(after_request(response))

    assert [(line["event"], line["call_id"], line["tool"]) for line in logs] == [
        (event, "call-1", "research.search_docs")
    ]
    assert "secret" not in str(logs)


async def test_what_is_no_http_is_not_repeated_in_the_log() -> None:
    """It may be anybody's data: only the kind of the error is told."""
    with capture_logs() as logs:
        await asked(after_request(b"HTTP/1.1 200 OK\r\npin-4711 is no header\r\n\r\n"))

    (entry,) = [entry for entry in logs if entry["event"].startswith("reconcile_")]
    assert entry["event"] == "reconcile_unanswered"
    assert "4711" not in str(logs)
