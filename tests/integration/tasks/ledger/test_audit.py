"""Each call that ends has one audit line: written in the ledger with its end, by whoever has ended it."""

import asyncio
import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from redis.asyncio import Redis
from structlog.testing import capture_logs

from support.fleet import SIGNING_KEY
from support.published_call import published
from support.workers.ledgers import ENDING, SUCCESS, begun, close, finish, refused, worker_ledger
from toolfleet_registry.contracts import Audit, Caller, PublishedCall, Terms, ToolCall, ToolResult
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.settings import Settings
from toolfleet_tasks.ledger.audit import EVENT, Auditor
from toolfleet_tasks.ledger.ledger import ANY_DATA, Ledger
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.messages.fleet_results import CallEnding
from toolfleet_tasks.messages.signing import Signatures, arguments_digest
from toolfleet_tasks.redis_connection import RedisConnectionLost
from toolfleet_tasks.results.stored import celery_value

CALL = published(user_id="ada", arguments={"query": "owls", "pin": "1234"}, sensitive=("/pin",))
OTHER_PIN = CALL.model_copy(update={"arguments": {"pin": "9999", "query": "owls"}})
SEEN = Audit(
    call_id="call-1", tool=CALL.tool_name, ts=5, attempts=2, queued_ms=1.5, duration_ms=2.5, worker="celery@here"
)
KEY = Keys().audit


async def lines(redis: Redis) -> list[dict[str, Any]]:
    entries: Any = await redis.xrange(KEY)
    return [json.loads(entry["line"]) for _, entry in entries]


def told(logs: Any) -> list[dict[str, Any]]:
    return [entry for entry in logs if entry["event"] == EVENT]


async def test_a_line_says_who_what_and_how_it_ended(ledger: Ledger, redis: Redis) -> None:
    """All that is known, in the stream and in the log; neither arguments nor result."""
    call = CALL.model_copy(update={"replay_of": "call-0", "terms": Terms(cost="cheap")})
    result = SUCCESS.result.model_copy(update={"audit": SEEN, "result": "a snowy owl"})
    with capture_logs() as logs:
        await ledger.finish(await begun(ledger, call), result, attempt=SUCCESS, decisions={"permission": "allowed"})

    expected = {
        "call_id": "call-1",
        "tool": "research.search_docs",
        "ts": 5,
        "user_id": "ada",
        "permission": "owner",
        "signed": False,
        "arguments": arguments_digest(OTHER_PIN.arguments, ("/pin",)),
        "cost": "cheap",
        "replay_of": "call-0",
        "decisions": {"permission": "allowed", "published": "yes"},
        "attempts": 2,
        "queued_ms": 1.5,
        "duration_ms": 2.5,
        "worker": "celery@here",
        "outcome": "success",
        "effect_state": "done",
    }
    assert await lines(redis) == [expected]
    assert told(logs) == [{**expected, "event": EVENT, "log_level": "info"}]


@pytest.mark.parametrize(
    ("call", "value", "kept"),
    [
        (published(), {"message": None, "side_effects": ["created:a.md", "searched:x:owls"]}, True),
        (published(), {"message": "", "side_effects": []}, False),
        (published(), {"message": "", "side_effects": "created"}, False),
        (published(), {"side_effects": ["hers"], "message": "", "name": "Ada"}, False),  # a module's own result
        (published(hides_results=True), {"message": None, "side_effects": ["paid"]}, False),
        (CALL, {"message": None, "side_effects": ["paid with 1234"]}, False),  # a sensitive argument may be in it
    ],
)
def test_a_line_has_the_side_effects_that_a_tags_tool_names(call: PublishedCall, value: object, kept: bool) -> None:
    """A list of texts, as in its `TagResult`, whether or not it succeeded; nothing else of a result."""
    for result in (SUCCESS.result, ENDING.unknown):
        line = json.loads(Auditor(Settings()).line_of(call, result.model_copy(update={"result": value}), {}))

        assert line.get("side_effects") == (["created:a.md", "searched:x:owls"] if kept else None)


def test_side_effects_are_bounded() -> None:
    """In number and in length: it is a line."""
    value = {"message": None, "side_effects": ["x" * 1000] * 1000}
    line = Auditor(Settings()).line_of(published(), SUCCESS.result.model_copy(update={"result": value}), {})

    assert json.loads(line)["side_effects"] == ["x" * 256] * 20


def test_a_line_is_written_as_ever() -> None:
    """To the byte: programs follow the stream, and compare what they have exported."""
    auditor, own = Auditor(Settings()), CALL.model_copy(update={"terms": Terms(cost="cheap"), "replay_of": "call-0"})
    decisions = {"permission": "allowed", "conversation_id": "chat \u00fc", "user_id": "\ud800da", "gate": "allowed"}
    agent = own.model_copy(update={"caller": Caller(user_id="ada", permission="user", agent='the "owl"')})
    failed = ENDING.unknown.model_copy(update={"audit": SEEN.model_copy(update={"queued_ms": None})})

    assert auditor.line_of(agent, SUCCESS.result.model_copy(update={"audit": SEEN}), decisions, (1.5, 0.0)) == (
        r'{"call_id":"call-1","tool":"research.search_docs","ts":5.0,"user_id":"?da","permission":"user"'
        r',"signed":false'
        r',"arguments":"sha256:98935849676a9049cde1236439b70cfb1407495c889f838655a37c2ad5826741"'
        r',"conversation_id":"chat \u00fc","decisions":{"permission":"allowed","gate":"allowed"'
        r',"published":"yes"},"agent":"the \"owl\"","cost":"cheap","replay_of":"call-0","attempts":2'
        r',"queued_ms":1.5,"duration_ms":2.5,"worker":"celery@here","own_ms":[1.5,0.0],"outcome":"success"'
        r',"effect_state":"done"}'
    )
    assert auditor.line_of(published(user_id=None), failed, {}) == (
        r'{"call_id":"call-1","tool":"research.search_docs","ts":5.0,"permission":"owner","signed":false'
        r',"arguments":"sha256:f1f0dca295eb5f60b0b2687095633380a3d1a7470b872a7503febf246ef7de6a"'
        r',"decisions":{"published":"yes"},"attempts":2,"duration_ms":2.5,"worker":"celery@here"'
        r',"outcome":"unknown","effect_state":"unknown","error_code":"timed_out"}'
    )


@pytest.mark.parametrize("key", [None, SIGNING_KEY], ids=["", "signed"])
@pytest.mark.parametrize("size", [0, 5_000], ids=["made by Redis", "large"])
async def test_what_redis_makes_of_a_result_is_what_a_worker_writes(
    redis: Redis, redis_url: str, key: str | None, size: int
) -> None:
    """Celery's value, which older processes read, and the line, to the byte, whatever the tool has answered."""
    value = {"audit": {"call_id": "x", "ts": 1, "attempts": 9}, "text": 'a/b "\\" \u00fc %1 \n', "more": "x" * size}
    seen = SEEN.model_copy(update={"ts": 1_700_000_000.25})
    result = SUCCESS.result.model_copy(update={"audit": seen, "result": value})
    async with worker_ledger(redis_url, signing_key=key) as ledger:
        await ledger.finish(await begun(ledger, CALL), result, attempt=SUCCESS, decisions={"gate": "allowed"})
        line = Auditor(Settings(signing_key=key)).line_of(CALL, result, {"gate": "allowed"})
        text = json_text.dump(result)
        written = json.loads(
            celery_value("call-1", text, Signatures(Settings(signing_key=key), "result").of("call-1", text))
        )

    stored = json.loads(str(await redis.get(Keys().result("call-1"))))
    assert list(stored) == list(written)
    assert {**stored, "date_done": ""} == {**written, "date_done": ""}
    assert size or stored["date_done"] == "2023-11-14T22:13:20.250000+00:00"
    entries: Any = await redis.xrange(KEY)
    assert entries[0][1]["line"] == line


async def test_who_is_late_writes_none(ledger: Ledger, redis: Redis, other: Ledger) -> None:
    """Another one has ended the call, whose line stands; the worker that comes too late adds nothing."""
    claim = await begun(ledger, CALL)
    with capture_logs() as logs:
        await other.end(CALL, ENDING, data_id=ANY_DATA)
        assert await finish(ledger, claim) is None
        await other.end(CALL, ENDING, data_id=ANY_DATA)

    (line,) = await lines(redis)
    assert (line["outcome"], line["error_code"], line["attempts"]) == ("unknown", "timed_out", 1)
    assert len(told(logs)) == 1


async def test_an_attempt_that_is_made_once_more_writes_none(ledger: Ledger, redis: Redis) -> None:
    """A line is a call's, not an attempt's."""
    await close(ledger, await begun(ledger, CALL))
    assert await redis.exists(KEY) == 0
    await finish(ledger, await begun(ledger, CALL))

    assert len(await lines(redis)) == 1


@pytest.mark.parametrize(
    ("is_begun", "outcome", "code"), [(False, "failed", "expired"), (True, "unknown", "timed_out")]
)
async def test_an_end_from_outside_has_the_line_of_what_it_came_to(
    ledger: Ledger, redis: Redis, is_begun: bool, outcome: str, code: str
) -> None:
    """Only Redis knows whether the call was begun, and that decides which line is written."""
    await redis.set("module_manifest:research", "x", ex=60)
    if is_begun:
        await begun(ledger, CALL)
    with capture_logs() as logs:
        await ledger.end(CALL, ENDING, data_id=ANY_DATA)

    (line,) = await lines(redis)
    assert (line["outcome"], line["error_code"], line["attempts"]) == (outcome, code, int(is_begun))
    assert line["user_id"] == "ada"
    assert ("queued_ms" in line) is not is_begun
    assert [entry["error_code"] for entry in told(logs)] == [code]


async def test_an_end_whose_answer_was_lost_is_told_once(redis: Redis, ledger: Ledger) -> None:
    """Sent again, the ledger knows it as its own: one line in the stream, one in the log."""
    await ledger.end(CALL.model_copy(update={"call_id": "call-0"}), ENDING, data_id=ANY_DATA)  # loads the script
    send, lost = ledger._connection.send, list[object]()

    def losing(*command: Any) -> "asyncio.Future[Any]":
        answer = send(*command)
        if lost:
            return answer
        lost.append(answer)
        nothing: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        nothing.set_exception(RedisConnectionLost("gone", sent=True))
        return nothing

    ledger._connection.send = losing  # type: ignore[method-assign] # no fault comes at this very moment
    with capture_logs() as logs:
        with pytest.raises(RedisConnectionLost):
            await ledger.end(CALL, ENDING, data_id=ANY_DATA)
        await ledger.end(CALL, ENDING, data_id=ANY_DATA)

    _, line = await lines(redis)
    (entry,) = told(logs)
    assert (entry["call_id"], entry["error_code"]) == ("call-1", line["error_code"])


async def test_an_end_whose_result_has_expired_is_told(redis: Redis, ledger: Ledger) -> None:
    """Sent again after so long: what it came to nobody knows any more, and that it has ended is told."""
    await ledger.end(CALL, ENDING, data_id=ANY_DATA)
    ledger._unanswered["call-1"] = str(await redis.hget("toolfleet:call:call-1", "by"))
    await redis.delete("celery-task-meta-call-1")
    with capture_logs() as logs:
        assert await ledger.end(CALL, ENDING, data_id=ANY_DATA) == ""

    (entry,) = told(logs)
    assert (entry["call_id"], entry.get("outcome")) == ("call-1", None)


class Refusing(logging.Handler):
    """A program's own, whose file is closed."""

    def handle(self, record: logging.LogRecord) -> bool:
        raise ValueError("I/O operation on closed file.")


def test_no_logging_costs_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot write a name, or nothing at all; how many lines that has cost is counted."""
    auditor = Auditor(Settings(redis_url="redis://x"))
    logger = logging.getLogger("test-refusing")
    logger.setLevel(logging.INFO)
    logger.addHandler(Refusing())
    refusing = structlog.wrap_logger(logger, processors=[str_of])
    monkeypatch.setattr("toolfleet_tasks.ledger.audit.log", SimpleNamespace(now=lambda: refusing))
    auditor.tell({"tool": "owls.echo"}, is_kept=False)

    assert (auditor.untold, auditor.missed) == (2, 1)


def str_of(_: Any, __: str, fields: Any) -> str:
    return str(fields)


def test_a_line_has_no_name_that_cannot_be_written() -> None:
    """Models and programs write half characters; files and terminals take none."""
    auditor = Auditor(Settings(redis_url="redis://x"))
    bad = Caller(user_id="\ud800da").model_copy(update={"permission": "own\udfffer"})
    call, result = ToolCall(tool_name="owls.\ud800", arguments={}), ToolResult.refused("owls.?", "unknown_tool", "no")
    refused = auditor.line_of_refused("call-1", call, bad, result, {}, None)
    named = result.model_copy(update={"tool_name": "owls.\ud800"})
    message = auditor.parts_of_refusal("call-1", CallEnding(named, named, named))

    assert (refused["tool"], refused["user_id"], refused["permission"]) == ("owls.?", "?da", "own?er")
    assert json.loads(message[0] + message[1])["tool"] == "owls.?"


async def test_a_refused_message_has_a_line(ledger: Ledger, redis: Redis) -> None:
    """Its id and its tool are all that is known of such a call, and that its message was refused."""
    await ledger.refuse("call-1", ToolResult.refused("owls.echo", "permission_denied", "not signed"))

    (line,) = await lines(redis)
    assert line["decisions"] == {"published": "message_refused"}
    assert (line["tool"], line["outcome"], line["signed"]) == ("owls.echo", "refused", False)


async def test_a_line_that_cannot_be_written_costs_no_result(ledger: Ledger, redis: Redis) -> None:
    """The call ends as it did; the line is in the log, and that it is not in the stream as well."""
    await redis.set(KEY, "somebody else's")
    with capture_logs() as logs:
        assert await finish(ledger, await begun(ledger, CALL))
        second = CALL.model_copy(update={"call_id": "call-2"})
        await ledger.end(second, ENDING, data_id=ANY_DATA)

    assert (await refused(ledger, CALL)).reason == "done"
    assert len(told(logs)) == 2
    (missed,) = [entry for entry in logs if entry["event"] == "audit_not_written"]  # not one for each
    assert missed["lines"] == 1
    await redis.delete(KEY)


async def test_the_stream_is_bounded(redis: Redis, redis_url: str) -> None:
    """It keeps about `audit_kept` lines: Redis drops the oldest, a hundred at a time."""
    async with worker_ledger(redis_url, audit_kept=100) as ledger:
        for number in range(350):
            await ledger.end(CALL.model_copy(update={"call_id": f"call-{number}"}), ENDING, data_id="")

    assert 100 <= await redis.xlen(KEY) < 300
    assert (await lines(redis))[-1]["call_id"] == "call-349"


def test_the_digest_is_that_of_what_may_be_shown() -> None:
    """The same for calls that differ in sensitive arguments only, or in their order; none for what is no JSON."""
    assert arguments_digest(CALL.arguments, CALL.sensitive) == arguments_digest(OTHER_PIN.arguments, CALL.sensitive)
    assert arguments_digest(CALL.arguments, CALL.sensitive) != arguments_digest({"query": "x"}, CALL.sensitive)
    assert arguments_digest({"x": {1, 2}}, ()) is None
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert arguments_digest({"x": deep}, ()) is None


def test_a_signed_fleets_lines_say_so() -> None:
    """Whether the caller's claims could be trusted."""
    auditor = Auditor(Settings(redis_url="redis://x", signing_key="0123456789abcdef0123456789abcdef"))
    caller = CALL.model_copy(update={"caller": Caller(user_id="ada").model_copy(update={"permission": "x" * 10_000})})
    text = auditor.line_of(caller, SUCCESS.result, {})

    assert json.loads(text)["signed"] is True
    assert len(text) < 1_000, "whatever a caller calls itself"
