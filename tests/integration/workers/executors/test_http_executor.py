"""One call over HTTP: what a module is sent, and what its answer, its status or its silence comes to."""

import asyncio
import json
import types
from collections.abc import Coroutine, Generator
from typing import Any

import pytest

from support.modules.http_executor import executor_for
from support.modules.raw_module import Peer, answering, http, raw_module, reply
from support.published_call import published
from support.waiting import wait_until
from toolfleet_registry.contracts import EffectState, ErrorCode
from toolfleet_registry.contracts.attempts import Outcome
from toolfleet_workers.executors.http_client import HttpClient
from toolfleet_workers.executors.http_executor import HttpExecutor

SECONDS = 10  # long enough that only a defect can use it up


async def test_a_module_is_sent_the_call_as_the_contract_says() -> None:
    """POST /execute with the tool, its arguments and the user; the call id and the time left are in the headers."""
    call = published(call_id="c-42", user_id="anna", arguments={"query": "Käuze 🦉", "deep": {"__type__": "x"}})
    async with raw_module(answering(http(reply()))) as module, executor_for(module.url) as executor:
        await executor.execute(call, seconds=12.5)

    (request,) = module.requests
    assert request.line == "POST /execute HTTP/1.1"
    assert request.json == {"tool_name": call.tool_name, "arguments": call.arguments, "user_id": "anna"}
    assert request.body.isascii()  # no proxy and no module has to guess an encoding
    assert request.headers["idempotency-key"] == "c-42"
    assert request.headers["toolfleet-time-left-ms"] == "12500"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["accept-encoding"] == "identity"


async def test_a_call_without_a_user_says_nothing_about_one() -> None:
    """`user_id` is left out, not null: old modules validate it as text."""
    async with raw_module(answering(http(reply()))) as module, executor_for(module.url) as executor:
        await executor.execute(published(user_id=None), seconds=SECONDS)

    assert module.requests[0].json.keys() == {"tool_name", "arguments"}


async def test_large_arguments_arrive_whole() -> None:
    """Arguments that are sent in pieces are one body with its length, as small ones are."""
    call = published(arguments={"text": "0123456789" * 200_000})
    async with raw_module(answering(http(reply()))) as module, executor_for(module.url) as executor:
        attempt = await executor.execute(call, seconds=SECONDS)

    assert attempt.outcome is Outcome.SUCCESS
    assert module.requests[0].json["arguments"] == call.arguments
    assert "transfer-encoding" not in module.requests[0].headers


async def test_a_base_url_may_have_a_path_and_credentials() -> None:
    """`http://user:password@host/base/` posts to `/base/execute` with HTTP basic authentication."""
    async with raw_module(answering(http(reply()))) as module:
        url = module.url.replace("://", "://user:p%40ss@") + "/base/"
        async with executor_for(url) as executor:
            attempt = await executor.execute(published(), seconds=SECONDS)

    assert attempt.outcome is Outcome.SUCCESS
    assert module.requests[0].line == "POST /base/execute HTTP/1.1"
    assert module.requests[0].headers["authorization"] == "Basic dXNlcjpwQHNz"


async def test_a_success_carries_the_modules_result() -> None:
    """What the module returned is the result, and the effect has happened."""
    async with raw_module(answering(http(reply(result=[1, "ä"])))) as module, executor_for(module.url) as executor:
        attempt = await executor.execute(published(), seconds=SECONDS)

    assert attempt.outcome is Outcome.SUCCESS
    assert attempt.result.success
    assert attempt.result.result == [1, "ä"]
    assert attempt.result.effect_state == "done"


async def test_a_reason_phrase_in_any_encoding_does_not_hide_the_reply() -> None:
    """The words after the status are for people; what they are made of changes nothing."""
    async with raw_module(answering(http(reply(), "200 \xff\xfe"))) as module, executor_for(module.url) as executor:
        attempt = await executor.execute(published(), seconds=SECONDS)

    assert attempt.outcome is Outcome.SUCCESS


@pytest.mark.parametrize(
    ("status", "outcome", "code", "effect_state"),
    [
        (201, Outcome.UNKNOWN, "invalid_response", "unknown"),  # taken, but this is no reply
        (204, Outcome.UNKNOWN, "invalid_response", "unknown"),
        (302, Outcome.UNKNOWN, "invalid_response", "unknown"),  # may be sent when the work is done
        (303, Outcome.UNKNOWN, "invalid_response", "unknown"),
        (307, Outcome.PERMANENT, "invalid_response", "none"),  # asks for the same request elsewhere
        (308, Outcome.PERMANENT, "invalid_response", "none"),
        (400, Outcome.PERMANENT, "module_error", "none"),
        (401, Outcome.PERMANENT, "module_error", "none"),  # the fleet is not let in; the caller's rights are not meant
        (404, Outcome.PERMANENT, "module_error", "none"),
        (422, Outcome.PERMANENT, "module_error", "none"),
        (408, Outcome.TURNED_AWAY, "module_error", "none"),
        (425, Outcome.TURNED_AWAY, "module_error", "none"),
        (429, Outcome.TURNED_AWAY, "busy", "none"),
        (500, Outcome.SERVER_ERROR, "module_error", "unknown"),
        (501, Outcome.SERVER_ERROR, "module_error", "unknown"),
        (
            503,
            Outcome.UNKNOWN,
            "module_error",
            "unknown",
        ),  # without Retry-After: a proxy's, perhaps, that lost its module
        (502, Outcome.UNKNOWN, "module_error", "unknown"),  # a gateway that may have passed it on
        (504, Outcome.UNKNOWN, "module_error", "unknown"),
        (600, Outcome.UNKNOWN, "invalid_response", "unknown"),  # no such status
    ],
)
async def test_a_status_decides_what_may_follow(
    status: int, outcome: Outcome, code: ErrorCode, effect_state: EffectState
) -> None:
    """Each status has one outcome, one error code and one statement about the effect."""
    answer = answering(http(b"" if status == 204 else b"no", f"{status} X"))
    async with raw_module(answer) as module, executor_for(module.url) as executor:
        attempt = await executor.execute(published(), seconds=SECONDS)

    assert (attempt.outcome, attempt.result.error_code) == (outcome, code)
    assert attempt.result.effect_state == effect_state
    assert attempt.result.error == f"Module returned status {status}:" + ("" if status == 204 else " no")
    assert len(module.requests) == 1


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        ({"success": False, "error": "no"}, Outcome.SERVER_ERROR),
        ({"success": False, "error": "no", "effect_state": "unknown"}, Outcome.SERVER_ERROR),
        ({"success": True, "result": 1}, Outcome.UNKNOWN),  # contradicts its status
        ({"detail": "upstream connect error or disconnect/reset before headers"}, Outcome.UNKNOWN),
        ("no healthy upstream", Outcome.UNKNOWN),
    ],
)
async def test_a_503_is_a_modules_answer_only_where_it_is_a_reply(body: Any, outcome: Outcome) -> None:
    """A proxy says it of a request that it has passed on, too: nobody knows what became of that."""
    said = {"tool_name": published().tool_name, **body} if isinstance(body, dict) else body
    answer = answering(http(json.dumps(said).encode(), "503 X"))
    async with raw_module(answer) as module, executor_for(module.url) as executor:
        attempt = await executor.execute(published(), seconds=SECONDS)

    assert (attempt.outcome, attempt.result.effect_state) == (outcome, "unknown")


@pytest.mark.parametrize("status", [408, 425, 429, 503])
async def test_a_module_that_turns_a_call_away_may_say_for_how_long(status: int) -> None:
    """Retry-After reaches whoever decides about a retry, and the result."""
    answer = answering(http(b"later", f"{status} X", "Retry-After: 7"))
    async with raw_module(answer) as module, executor_for(module.url) as executor:
        attempt = await executor.execute(published(), seconds=SECONDS)

    assert attempt.retry_after_seconds == 7
    assert attempt.result.retry_after_seconds == 7


@pytest.mark.parametrize(
    ("fields", "stated", "says_retryable"),
    [
        ({}, "unknown", False),
        ({"effect_state": "none"}, "none", False),
        ({"effect_state": "done", "retryable": True}, "done", True),
        ({"success": True, "retryable": True}, "unknown", False),  # which the status denies
        ({"tool_name": "others.tool", "retryable": True}, "unknown", False),
    ],
)
async def test_a_server_error_may_be_a_reply(fields: dict[str, Any], stated: EffectState, says_retryable: bool) -> None:
    """What a module states of the effect and of a repeat counts with a 500 as well; of any other body nothing does."""
    body = reply(**{"success": False, "error": "no index", **fields})
    async with raw_module(answering(http(body, "500 X"))) as module, executor_for(module.url) as executor:
        attempt = await executor.execute(published(), seconds=SECONDS)

    assert (attempt.outcome, attempt.says_retryable) == (Outcome.SERVER_ERROR, says_retryable)
    assert attempt.result.effect_state == stated
    assert str(attempt.result.error).startswith("Module returned status 500: {")


async def test_a_failure_has_no_retry_after() -> None:
    """Retry-After on a status that does not turn the call away is no promise that it was not executed."""
    async with raw_module(answering(http(b"", "500 X", "Retry-After: 7"))) as module, executor_for(module.url) as ex:
        attempt = await ex.execute(published(), seconds=SECONDS)

    assert attempt.retry_after_seconds is None


async def test_a_wish_that_is_stated_twice_is_none() -> None:
    """Two Retry-After are a list, and a list is no time."""
    answer = answering(http(b"later", "503 X", "Retry-After: 7", "Retry-After: 9"))
    async with raw_module(answer) as module, executor_for(module.url) as executor:
        attempt = await executor.execute(published(), seconds=SECONDS)

    assert attempt.outcome is Outcome.TURNED_AWAY
    assert attempt.retry_after_seconds is None


async def test_no_time_left_is_not_sent() -> None:
    """A call whose time is over is not begun."""
    async with raw_module(answering(http(reply()))) as module, executor_for(module.url) as executor:
        attempt = await executor.execute(published(), seconds=-1)

    assert attempt.outcome is Outcome.NOT_SENT
    assert module.requests == []


async def test_no_time_left_is_not_sent_over_a_connection_that_is_there() -> None:
    """Nor does it say anything of the module: it is the call's time that was over."""
    async with raw_module(answering(http(reply()))) as module, executor_for(module.url) as executor:
        await executor.execute(published(), seconds=SECONDS)
        attempt = await executor.execute(published(), seconds=0)

    assert (attempt.outcome, attempt.result.effect_state) == (Outcome.NOT_SENT, "none")
    assert attempt.unreached is None
    assert len(module.requests) == 1


async def test_a_silent_module_uses_up_the_time() -> None:
    """After sending, the end of the time is a `TimeoutError`: whoever knows the limit words it."""

    async def silent(peer: Peer) -> None:
        await peer.request()
        await peer.gone()

    async with raw_module(silent) as module, executor_for(module.url) as executor:
        with pytest.raises(TimeoutError):
            await executor.execute(published(), seconds=0.2)

    assert len(module.requests) == 1


@types.coroutine
def _thrown_in(running: Coroutine[Any, Any, Any], error: BaseException) -> Generator[Any, Any, Any]:
    """Run a coroutine, and give it `error` in place of a cancellation: what the worker's pool does at a limit."""
    step = running.send(None)
    while True:
        try:
            sent = yield step
        except asyncio.CancelledError:
            step = running.throw(error)
        else:
            step = running.send(sent)


class SoftLimit(Exception, asyncio.CancelledError):  # as the pool's: both kinds at once
    pass


@pytest.mark.parametrize("error", [asyncio.CancelledError(), SoftLimit()])
async def test_a_cancelled_call_ends_its_request(error: BaseException) -> None:
    """A cancellation, and the pool's soft limit, which is one, pass unchanged, and the module sees the caller go."""

    async def silent(peer: Peer) -> None:
        await peer.request()
        await peer.gone()
        raise ConnectionError

    async def drive(executor: HttpExecutor) -> None:
        await _thrown_in(executor.execute(published(), seconds=SECONDS), error)

    async with raw_module(silent) as module, executor_for(module.url) as executor:
        running = asyncio.create_task(drive(executor))
        await wait_until(lambda: module.requests, "the module has the request")
        running.cancel()
        with pytest.raises(type(error)):
            await running
        await wait_until(lambda: module.departures, "the module has seen its caller go")


async def test_an_unknown_module_gets_no_request() -> None:
    """The text is the one that agents know."""
    async with executor_for("http://127.0.0.1:1") as executor:
        attempt = await executor.execute(published("xyz.search"), seconds=SECONDS)

    assert attempt.outcome is Outcome.PERMANENT
    assert attempt.result.error_code == "unknown_module"
    assert attempt.result.error == "Unknown module: xyz"
    assert attempt.result.effect_state == "none"


async def test_a_malformed_name_gets_no_request() -> None:
    """A worker trusts no message to have been checked."""
    async with executor_for("http://127.0.0.1:1") as executor:
        attempt = await executor.execute(published("xyz"), seconds=SECONDS)

    assert attempt.outcome is Outcome.PERMANENT
    assert attempt.result.error == "Invalid tool name format: xyz. Expected 'module.tool_name'."


async def test_arguments_that_are_not_json_get_no_request() -> None:
    """NaN is no JSON, and no module should have to guess what it means."""
    async with executor_for("http://127.0.0.1:1") as executor:
        attempt = await executor.execute(published(arguments={"n": float("nan")}), seconds=SECONDS)

    assert attempt.outcome is Outcome.PERMANENT
    assert attempt.result.error_code == "invalid_arguments"


def test_a_senseless_limit_is_refused_when_the_executor_is_built() -> None:
    """Options are checked at once, not at the first call."""
    with pytest.raises(ValueError, match="max_reply_bytes must be positive"):
        HttpExecutor({}, client=HttpClient(), max_reply_bytes=0)
