"""Messages are one JSON string in which everything passes unchanged."""

import json
from typing import Annotated, Any

import pytest
from kombu.utils.json import loads as kombu_loads

from toolfleet_registry.contracts import Audit, Caller, Message, PublishedCall, Since, ToolCall, ToolResult
from toolfleet_registry.contracts.jobs import JobSpec, Poll
from toolfleet_registry.local.scheduler_tools import is_newer_job
from toolfleet_tasks.messages import json_text

AWKWARD = [
    {"__type__": "datetime", "__value__": "2020-01-01T00:00:00"},  # kombu would make a datetime of it
    {"__type__": "nonsense", "__value__": 1},  # kombu would raise
    {"deep": [{"__type__": "uuid", "__value__": {"hex": "x"}}]},
    {"text": "\ud800 half a character"},  # a lone surrogate is no UTF-8
    {"emoji": "🦉", "zero": "\x00", "line": "\u2028"},
    {"big": 2**70, "tiny": 1e-300, "nothing": None, "yes": True},
    {"": {"": []}},
]


def published(arguments: dict[str, Any]) -> PublishedCall:
    return PublishedCall(
        call_id="c1",
        tool_name="research.search",
        arguments=arguments,
        user_id="u1",
        caller=Caller(user_id="u1", permission="user", allowed_modules=frozenset({"research"})),
        effect="read",
        limit_seconds=30,
        published_at=1.5,
        deadline_at=2.5,
    )


@pytest.mark.parametrize("value", AWKWARD)
def test_arguments_pass_unchanged(value: dict[str, Any]) -> None:
    """What an agent sends is what a worker reads, also through kombu's own serializer around it."""
    call = published(value)
    through_kombu = kombu_loads(json.dumps([[json_text.dump(call)], {}, {}]))[0][0]

    assert json_text.load(PublishedCall, through_kombu) == call


@pytest.mark.parametrize("value", AWKWARD)
def test_results_pass_unchanged(value: dict[str, Any]) -> None:
    """What a module answers is what the agent gets."""
    result = ToolResult.ok("research.search", [value])

    assert json_text.load(ToolResult, json_text.dump(result)) == result


def test_all_modules_stay_all_modules() -> None:
    """A caller's `*` is not turned into a set of one character."""
    caller = Caller(allowed_modules="*")

    assert json_text.load(Caller, json_text.dump(caller)).allowed_modules == "*"


class Inner(Message):
    size: int = 0
    colour: Annotated[str | None, Since(2)] = None


class Outer(Message):
    name: str = ""
    parts: tuple[Inner, ...] = ()
    one: Inner | None = None
    weight: Annotated[int, Since(3)] = 0


@pytest.mark.parametrize(
    ("message", "version"),
    [
        (Outer(name="x", parts=(Inner(size=1),)), 1),
        (Outer(parts=(Inner(), Inner(colour="red"))), 2),
        (Outer(one=Inner(colour="red")), 2),
        (Outer(one=Inner(colour="red"), weight=1), 3),
    ],
)
def test_a_message_names_the_version_that_its_reader_needs(message: Outer, version: int) -> None:
    """That of the latest field that it uses, inside of it as well; what any version reads names none."""
    written = json.loads(json_text.dump(message))

    assert json_text.version_of(message) == version
    assert written.get("v", 1) == version


@pytest.mark.parametrize(
    ("tool", "arguments", "version"),
    [
        ("scheduler.add_job", {"tool_name": "mail.send", "at": "2030-01-01T09:00:00Z"}, 1),
        ("scheduler.add_job", {"tool_name": "mail.send", "delay_seconds": 3_600}, 2),
        ("scheduler.add_job", {"poll_url": "https://owls.example", "workflow_id": "w"}, 2),
        ("mail.send", {"delay_seconds": 3_600}, 1),
    ],
)
def test_a_worker_gets_no_job_that_it_would_make_another_one_of(
    tool: str, arguments: dict[str, Any], version: int
) -> None:
    """Version 1 knows no delay, and would poll the tool at once and for a day."""
    call = published({}).model_copy(update={"tool_name": tool, "newer_job": is_newer_job(tool, arguments)})

    assert json_text.version_of(call) == version


def test_a_worker_gets_no_call_whose_version_it_would_not_look_at() -> None:
    """Version 1 knows nothing of that: not in a call, a job, or a job's poll."""
    named = published({}).model_copy(update={"tool_version": "1.0.0"})
    poll = Poll(tool_name="a.b", tool_version="1.0.0")
    start = ToolCall(tool_name="a.b", tool_version="1.0.0")
    spec = JobSpec(job_id="j", caller=Caller(), created_at=1, deadline_at=2)
    jobs = [
        spec.model_copy(update={name: step})
        for name, step in (("poll", poll), ("start", start), ("on_complete", (start,)))
    ]

    assert [json_text.version_of(one) for one in (named, *jobs)] == [2, 2, 2, 2]
    assert [json_text.version_of(one) for one in (published({}), spec)] == [1, 1]


def test_a_message_of_this_version_is_read_as_it_was() -> None:
    """Its version is no field of its own."""
    message = Outer(one=Inner(colour="red"))

    assert json_text.load(Outer, json_text.dump(message)) == message


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (f'{{"v":{json_text.VERSION + 1},"name":"x"}}', json_text.VERSION + 1),
        ('{"v":"new"}', None),
        ('{"name":"x","surprise":1}', None),
        ('{"one":{"surprise":1}}', None),
    ],
)
def test_a_newer_message_is_known_as_one(text: str, version: int | None) -> None:
    """By the version that it names, or by a field that nobody here knows; it is told apart from what is no message."""
    with pytest.raises(json_text.NewerMessage) as raised:
        json_text.load(Outer, text)

    assert raised.value.version == version


def test_not_a_number_is_refused() -> None:
    """NaN is no JSON: it never gets into a queue."""
    with pytest.raises(ValueError, match="JSON compliant"):
        json_text.dump(published({"x": float("nan")}))


def test_a_permission_that_an_earlier_process_has_made_up_is_a_guests() -> None:
    """Its agents took any word; whatever else is wrong is so, too."""
    old = json_text.dump(published({})).replace('"permission":"user"', '"permission":"emperor"')
    assert json_text.load(PublishedCall, old).caller == Caller(
        user_id="u1", permission="guest", allowed_modules=frozenset({"research"})
    )
    for wrong in (old.replace('"emperor"', "7"), old.replace('"read"', '"emperor"')):
        with pytest.raises(ValueError, match="validation error"):
            json_text.load(PublishedCall, wrong)


def test_a_result_that_nobody_has_seen_is_written_without_an_audit() -> None:
    """As earlier readers expect it; to whoever holds one, its audit is there all the same."""
    result = ToolResult.ok("owls.count", 7)

    assert "audit" not in json_text.dump(result)
    assert (result.audit.call_id, result.audit.attempts) == ("", 0)
    seen = result.model_copy(update={"audit": Audit(call_id="c", tool="owls.count", ts=1.0, attempts=1)})
    assert json_text.load(ToolResult, json_text.dump(seen)).audit == seen.audit != result.audit
    assert len({seen.audit, result.audit, json_text.load(ToolResult, json_text.dump(seen)).audit}) == 2
