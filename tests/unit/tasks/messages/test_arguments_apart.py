"""Calls whose arguments stand apart: they are parsed when something looks at them, and reach the module as they were sealed."""

import json
import time
from collections.abc import Callable
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import pytest
from kombu.connection import Connection
from kombu.transport import virtual

from support.published_call import published
from toolfleet_registry.contracts import Caller, PublishedCall, SealedCall, ToolResult, Turn
from toolfleet_registry.contracts.inputs import CallInputs
from toolfleet_registry.errors import MessageRefused
from toolfleet_registry.settings import Settings
from toolfleet_tasks.ledger.contents import reason_of
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.messages.envelope import (
    Label,
    begins_when_taken,
    call_message,
    message,
    text_alone,
    usual_text,
    with_deaths,
)
from toolfleet_tasks.messages.signing import APART, Seal, arguments_digest, digest_of
from toolfleet_tasks.operations.fleet_facts import age_of
from toolfleet_tasks.scripts import TURNS_SINCE
from toolfleet_tasks.transport.fetcher import read_message
from toolfleet_tasks.transport.redis_publisher import is_sent_apart
from toolfleet_workers.executors.request import Target, build_request

KEY = "0123456789abcdef0123456789abcdef"
SEAL, SEAL_OF_NONE = Seal(KEY), Seal(None)
ARGUMENTS = {"b": '🦉 "quoted" \\ \u2028', "a": {"head": '{"head":1', "none": None}, "pin": "1234"}
CALL = published(
    "owls.count",
    arguments=ARGUMENTS,
    user_id="ada",
    caller=Caller(user_id="ada", permission="user"),
    effect="read",
    sensitive=("/pin",),
    inputs=CallInputs(round=1, responses={}, state="s"),
)
TARGET = Target.of("http://owls:1", {})
QUEUE = "tools.owls"


def sealed(call: PublishedCall = CALL, seal: Seal = SEAL) -> str:
    """The text of a call whose arguments stand apart."""
    text = seal.seal_apart(call)
    assert text is not None
    return text


def opened(text: str | None = None, seal: Seal = SEAL) -> SealedCall:
    """The call as a worker has it, before anything has looked at its arguments."""
    call = seal.open(sealed() if text is None else text, task_id="call-1")
    assert isinstance(call, SealedCall)
    return call


def test_the_call_is_the_one_that_was_sealed() -> None:
    """With every field; the text is ASCII, and JSON for those who look into a queue."""
    text = sealed()

    assert opened().whole() == CALL
    assert (text.isascii(), json.loads(text)["arguments"]) == (True, ARGUMENTS)
    assert json.loads(text)["call"]["v"] == json_text.READS_APART


def test_a_call_that_waits_for_its_turn_is_for_workers_that_know_of_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """An older one leaves it to them. It is claimed by itself, and not published once more; other calls cost nothing for that."""
    plain = published("owls.count", effect="read")
    call = plain.model_copy(update={"turn": Turn(line="owls:0f")})
    assert json.loads(sealed(call))["call"]["v"] == json.loads(SEAL_OF_NONE.seal(call))["v"] == TURNS_SINCE
    assert (begins_when_taken(plain), begins_when_taken(call)) == (True, False)
    assert (is_sent_apart(plain), is_sent_apart(call)) == (True, False)
    monkeypatch.setattr(json_text, "version_of", None)
    assert json.loads(sealed(plain))["call"]["v"] == json_text.READS_APART


def test_nothing_is_parsed_before_something_looks() -> None:
    """What has been looked at may have been changed in place: then the parsed value counts."""
    call = opened()
    assert call.unparsed == json.dumps(ARGUMENTS, separators=(",", ":"))

    call.arguments["more"] = 1

    assert opened().unparsed is not None
    assert json.loads(build_request(call, TARGET, seconds=1).body)["arguments"] == {**ARGUMENTS, "more": 1}


def test_a_copy_with_other_arguments_has_only_these() -> None:
    """As personal data is hidden, and as middleware of a profile changes a call; another copy keeps the text."""
    changed = opened().model_copy(update={"arguments": {"b": 2}})

    assert (changed.unparsed, changed.arguments) == (None, {"b": 2})
    assert opened().model_copy(update={"effect": "destructive"}).unparsed is not None
    assert json.loads(build_request(changed, TARGET, seconds=1).body)["arguments"] == {"b": 2}


def test_the_module_gets_the_bytes_that_were_sealed() -> None:
    """The rest of the request is as ever."""
    call = opened()
    body = build_request(call, TARGET, seconds=1).body
    usual = json.loads(build_request(CALL, TARGET, seconds=1).body)

    assert json.dumps(ARGUMENTS, separators=(",", ":")).encode() in body
    assert call.unparsed is not None
    assert json.loads(body) == usual


@pytest.mark.parametrize("user_id", ["\ud800", "NaN"])
def test_a_request_that_is_written_slowly_has_them_as_well(user_id: str) -> None:
    """Of a user with half a character, say."""
    text = sealed(CALL.model_copy(update={"user_id": user_id}))

    assert json.loads(build_request(opened(text), TARGET, seconds=1).body)["arguments"] == ARGUMENTS


LOOKS: dict[str, Callable[[PublishedCall], Any]] = {
    "a local function, personal data, a profile's middleware": lambda call: call.arguments,
    "an error that quotes them": lambda call: reason_of(call, failed(call.tool_name, "pin 1234 is wrong")),
    "a message that is written again": SEAL.seal,
    "a record": lambda call: call.model_dump(mode="json"),
    "the audit": digest_of,
}


def failed(tool_name: str, error: str) -> ToolResult:
    return ToolResult.failed(tool_name, "module_error", error, effect_state="none")


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_whoever_looks_sees_what_they_would_have_seen(look: Callable[[PublishedCall], Any]) -> None:
    """Each consumer of the arguments finds the same as in a call that was parsed at once."""
    assert look(opened()) == look(CALL)


def test_the_audits_digest_comes_from_the_agent() -> None:
    """Without the sensitive arguments, and whatever their order."""
    simple = published(arguments={"a": 1, "b": "x"})
    for call in (CALL, simple):
        text = sealed(call)
        assert digest_of(opened(text)) == arguments_digest(call.arguments, call.sensitive)
        assert opened(text).unparsed is not None
    assert "digest" not in json.loads(sealed(simple))["call"]


_ABOUT_NONE: str = f'"length":3,"sha256":"{sha256(b"{}").hexdigest()}",'


def respelled(old: str, new: str) -> Callable[[str], str]:
    return lambda text: text.replace(old, new, 1)


SPLICED: dict[str, Callable[[str], str]] = {
    "other arguments of the same length": respelled('"pin":"1234"', '"pin":"1235"'),
    "longer arguments": respelled('"pin":"1234"', '"pin":"12345"'),
    "a member more": lambda text: f'{text[:-2]},"more":1}}}}',
    "a blank at the end": lambda text: f"{text[:-1]} }}",
    "a second object": lambda text: f"{text}{{}}",
    "those of another call": lambda text: (
        text[: text.index(',"arguments":')] + (other := sealed(published()))[other.index(',"arguments":') :]
    ),
    "a length that was changed": respelled('"length":', '"length":1'),
    "a digest that was changed": respelled('"sha256":"', '"sha256":"0'),
    "another permission": respelled('"user"', '"owner"'),
    "another end of the head": lambda text: text.replace(APART, f"{APART}1", 1),
    "a head that holds its arguments": lambda text: apart(json_text.dump(CALL)),
    "a head that says another length": lambda text: apart(json_text.dump_without(CALL, "arguments", _ABOUT_NONE)),
    "another name for its arguments": respelled('},"arguments":', '},"argumentz":'),
    "another end": lambda text: f"{text[:-1]}]",
    "no signature": lambda text: sealed(seal=Seal(None)),
    "another key": lambda text: sealed(seal=Seal("another key of thirty-two characters")),
    "none of it": lambda text: APART,
}


def apart(head: str, text: str = "{}") -> str:
    """A message around any head that the fleet has signed, and any arguments."""
    signature = SEAL.sign(head).partition(" ")[0]
    return f'{APART}{len(head)},"seal":"{signature}","call":{head},"arguments":{text}}}'


def signed(text: str) -> str:
    """A message that a signer has made whose arguments are this text."""
    about = f'"length":{len(text)},"sha256":"{sha256(text.encode()).hexdigest()}",'
    return apart(json_text.dump_without(CALL, "arguments", about), text)


@pytest.mark.parametrize("splice", SPLICED.values(), ids=SPLICED)
def test_a_spliced_message_is_refused(splice: Callable[[str], str]) -> None:
    """As a forged one is: by its signature, or as its arguments have another length or digest than was signed."""
    with pytest.raises(MessageRefused):
        SEAL.open(splice(sealed()), task_id="call-1")


@pytest.mark.parametrize("text", ["[1]", "null", '{"a":1', "", "1}"])
def test_arguments_that_are_no_object_are_refused(text: str) -> None:
    """Whoever has signed them."""
    with pytest.raises(MessageRefused):
        SEAL.open(signed(text), task_id="call-1")


def test_arguments_replace_nothing_else_that_a_module_is_told() -> None:
    """What a signer writes behind them comes before what the worker says."""
    call = opened(signed('{"a":1},"user_id":"somebody","x":{}'))
    body = json.loads(build_request(call, TARGET, seconds=1).body)

    assert (body["user_id"], body["tool_name"]) == (CALL.user_id, CALL.tool_name)


@pytest.mark.parametrize("digest", ['sha256:00","user_id":"somebody', "sha256:00", "none"])
def test_a_digest_that_is_none_is_refused(digest: str) -> None:
    """It goes into the audit as it is."""
    about = _ABOUT_NONE.replace('"length":3', '"length":2') + f'"digest":{json.dumps(digest)},'
    with pytest.raises((MessageRefused, ValueError)):
        SEAL.open(apart(json_text.dump_without(CALL, "arguments", about)), task_id="call-1")


def test_another_calls_message_is_refused() -> None:
    """Whose call it is, is in the head that is signed."""
    with pytest.raises(MessageRefused, match="another call"):
        SEAL.open(sealed(), task_id="call-2")


def test_a_newer_version_is_left_to_newer_workers() -> None:
    """What it needs is said in the head."""
    newer = json_text.dump_without(CALL, "arguments").replace(f'"v":{json_text.READS_APART}', '"v":99', 1)
    with pytest.raises(json_text.NewerMessage, match="version 99"):
        SEAL.open(apart(newer.replace("{", '{"length":2,"sha256":"","colour":"red",', 1)), task_id="call-1")


def test_unsigned_arguments_are_parsed_at_once() -> None:
    """Nobody vouches for them."""
    call = Seal(None).open(sealed(seal=Seal(None)), task_id="call-1")

    assert (type(call), call) == (PublishedCall, CALL)


@pytest.mark.parametrize("arguments", [{"a": "\ud800"}, {"a": float("nan")}, {"a": "NaN"}])
def test_what_is_no_strict_json_goes_the_usual_way(arguments: dict[str, Any]) -> None:
    """Or might be none: the other form has its own words for it."""
    assert SEAL.seal_apart(CALL.model_construct(**{**CALL.__dict__, "arguments": arguments})) is None


def test_the_message_is_one_json_object_around_it() -> None:
    """Nothing is quoted twice, and workers find its headers without reading the call."""
    text = sealed()
    item = call_message(CALL.model_copy(update={"inputs": None}), text=text, origin="here", now=CALL.published_at)
    found = read_message(item.encode(), QUEUE, "w1")

    assert json.loads(item)["sealed"]["arguments"] == ARGUMENTS
    assert item.startswith('{"claim":"120 read call-1",')
    assert (found["body"][0], found["properties"]["delivery_tag"]) == ([text], "w1")
    assert {"task", "id", "shadow", "timelimit", "argsrepr", "retries"} <= set(found["headers"])
    assert text_alone(found) == text
    assert virtual.Message(found, channel=Connection("memory://").channel()).payload == found["body"]


def test_what_agents_are_to_read_is_written_in_the_usual_form() -> None:
    """A call that waits for an answer: an agent of any version may give it."""
    app, usual = SimpleNamespace(settings=Settings(), seal=SEAL), SEAL.seal(CALL)

    assert [usual_text(text, app, task_id="call-1") for text in (sealed(), usual)] == [usual, usual]


def test_it_is_published_again_as_it_came() -> None:
    """With its limits, not before its time, and with the workers that have died with it."""
    text = sealed()
    label = Label("call-1", "owls.count", "(b=…)", QUEUE, (31, 40))
    again = with_deaths(message(text, label, origin="", retries=2, eta="2031-01-02T03:04:05+00:00"), ["ab"])
    found = read_message(again.encode(), QUEUE, "w1")
    headers = found["headers"]

    assert found["body"][0] == [text]
    assert (headers["retries"], headers["eta"], headers["timelimit"]) == (2, "2031-01-02T03:04:05+00:00", [40, 31])
    assert (headers["redelivered"], headers["toolfleet_died"]) == (True, "ab")


@pytest.mark.parametrize(
    "item",
    [
        f'{{"headers":{{}},"sealed":{sealed()}}}',
        f'{{"sealed":{sealed()}}}',
        f'{{"headers":[],"sealed":{sealed()}}}',
        f'{{"headers":{{"task":"t","id":"call-1"}},"sealed":{sealed()[:-1]}é}}}}',
        '{"headers":{"task":"t","id":"call-1"},"properties":{},"body":[["x"],{},{}]}',
    ],
)
def test_a_message_that_is_none_is_set_aside(item: str) -> None:
    """It is for an operator to look at."""
    with pytest.raises(ValueError, match="not "):
        read_message(item.encode(), QUEUE, "w1")


@pytest.mark.parametrize("seal", [SEAL, Seal(None)])
def test_the_age_of_what_waits_is_found(seal: Seal) -> None:
    """In both forms."""
    for text in (seal.seal(CALL), sealed(seal=seal)):
        item = call_message(CALL, text=text, origin="", now=time.time())
        assert age_of(item.encode(), CALL.published_at + 5) == pytest.approx(5)
