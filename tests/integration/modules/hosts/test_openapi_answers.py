"""Operations of an OpenAPI document as tools: what a service's answer means for a call."""

import asyncio
import contextlib
import json
import socket
from base64 import b64decode
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from support.hosts.bird_service import PNG, BirdService, bird_service, document, json_body, operation, parameter
from support.hosts.openapi_document import HostedDocument, hosted_document
from support.servers.web_site import web_site
from support.waiting import wait_until
from toolfleet_modules.hosts.openapi.operation_tool import HttpSender
from toolfleet_modules.hosts.openapi.outgoing_request import OutgoingRequest

pytestmark = pytest.mark.asyncio(loop_scope="module")

METHODS = ("get", "put", "post")
PATHS: dict[str, Any] = {
    "/status/{code}": {
        method: operation(
            f"{method}_status", parameter("code", "path"), parameter("retry-after"), parameter("location")
        )
        for method in METHODS
    },
    "/content/{kind}": {"get": operation("content", parameter("kind", "path"))},
    "/slow": {method: operation(f"{method}_slow") for method in METHODS},
    "/silent": {method: operation(f"{method}_silent") for method in METHODS},
    "/owls": {"get": operation("owls")},
}


@pytest.fixture(scope="module")
def service() -> Iterator[BirdService]:
    with bird_service() as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def birds(service: BirdService, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HostedDocument]:
    """One host of that service for all that need no other."""
    folder = tmp_path_factory.mktemp("birds")
    async with hosted_document(folder, document(PATHS), base=service.url, result_bytes=100_000) as birds:
        yield birds


async def status(birds: HostedDocument, method: str, code: int, **headers: str) -> tuple[Any, ...]:
    """Whether it succeeded, the effect, whether a repeat may help, and when to come back; 503 is the host being busy."""
    ended = await birds.call(f"{method}_status", code=code, **headers)
    return ended.success, ended.effect_state, ended.retryable, ended.retry_after_seconds


async def test_each_kind_of_content_is_a_result(birds: HostedDocument) -> None:
    """JSON as it is, text in its own encoding, nothing as null, and anything else as a file."""
    kinds = ("text", "empty", "gzip", "image", "mislabelled", "named")
    text, empty, packed, image, mislabelled, named = [await birds.call("content", kind=kind) for kind in kinds]

    assert (text.result, empty.result, packed.result) == ("hoot ü", None, {"owls": 5})
    assert [(file.kind, file.media_type, b64decode(file.data)) for file in image.files] == [("image", "image/png", PNG)]
    assert mislabelled.files[0].media_type == "image/png"
    assert (named.files[0].name, named.files[0].media_type) == ("owls.pdf", "application/pdf")


@pytest.mark.parametrize("kind", ["large", "bomb"])
async def test_an_answer_that_cannot_be_used_has_had_its_effect(birds: HostedDocument, kind: str) -> None:
    """More than may be read, also once it is unpacked."""
    failed = await birds.call("content", kind=kind)

    assert (failed.success, failed.effect_state) == (False, "done")
    assert "100000" in str(failed.error)


FINE = (True, None, False, None)
REFUSED = (False, "none", False, None)
LATER = (False, "none", False, 1.0)
UNKNOWN = (False, "unknown", False, None)
MAY_REPEAT = (False, "unknown", True, None)
STATUSES = [
    # success, effect, whether a repeat may help, when to come back: of GET, PUT and POST
    (201, FINE, FINE, FINE),
    (304, REFUSED, REFUSED, REFUSED),
    (400, REFUSED, REFUSED, REFUSED),
    (404, REFUSED, REFUSED, REFUSED),
    (408, LATER, LATER, LATER),
    (429, LATER, LATER, LATER),
    (500, MAY_REPEAT, MAY_REPEAT, UNKNOWN),
    # Without a time, whoever says 503 may be a proxy whose connection broke after the request.
    (503, LATER, LATER, UNKNOWN),
    (301, REFUSED, REFUSED, REFUSED),
    (303, REFUSED, REFUSED, UNKNOWN),
]


@pytest.mark.parametrize(("code", "get", "put", "post"), STATUSES)
async def test_a_status_says_what_has_happened(birds: HostedDocument, code: int, get: Any, put: Any, post: Any) -> None:
    """Of reads, of what may be repeated, and of what is for once."""
    assert [await status(birds, method, code) for method in METHODS] == [get, put, post]


async def test_a_service_says_when_to_come_back(birds: HostedDocument) -> None:
    """In seconds, also with 503, which is believed then; nonsense is a second."""
    assert await status(birds, "post", 503, **{"retry-after": "7"}) == (False, "none", False, 7.0)
    assert await status(birds, "post", 429, **{"retry-after": "soon"}) == (False, "none", False, 1.0)


@pytest.mark.parametrize(
    ("tool", "code", "words"),
    [
        ("get_status", 404, "birds.get_status has answered with status 404 (Not Found): You have said None."),
        ("put_status", 307, "redirect (307) to /owls/, which is not followed"),
        ("post_status", 304, "304 (Not Modified)"),  # nothing leads elsewhere
    ],
)
async def test_an_error_is_told_in_the_services_words(birds: HostedDocument, tool: str, code: int, words: str) -> None:
    """With its status: a model reads it and does something else."""
    failed = await birds.call(tool, code=code, **({"location": "/owls/"} if code == 307 else {}))

    assert words in str(failed.error)
    assert ("redirect" in str(failed.error)) is (code == 307)


NAMED: dict[str, Any] = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def saying(code: int, responses: dict[str, Any]) -> dict[str, Any]:
    """A document whose operation `say` answers with its body, and with the headers that it is given."""
    body = json_body({"type": "string"}, media_type="text/plain", required=False)
    said = operation("say", parameter("headers"), requestBody=body, responses=responses)
    return document({f"/say/{code}": {"post": said}})


def described(schema: Any = None, *, media_type: str = "application/json", **more: Any) -> dict[str, Any]:
    return {"description": "ok", "content": {media_type: {"schema": NAMED if schema is None else schema}}, **more}


async def told(birds: HostedDocument, body: str, **headers: str) -> dict[str, Any]:
    """The whole reply to a call."""
    arguments = {"body": body, "headers": json.dumps(headers)} if body else {"headers": json.dumps(headers)}
    answer = await birds.client.http.post("/execute", json={"tool_name": "birds.say", "arguments": arguments})
    reply: dict[str, Any] = answer.json()
    return reply


OWL = '{"name":"owl"}'
TYPES: list[tuple[str, str, str, Any, bool]] = [
    # the type in the document, the type of the answer, its body, the result, whether that is what the document says
    ("application/json", "application/json", OWL, {"name": "owl"}, True),
    ("application/json", "text/json", OWL, {"name": "owl"}, True),
    ("text/json", "application/json", OWL, {"name": "owl"}, True),
    ("application/json", "", OWL, {"name": "owl"}, True),
    ("application/json", "text/plain", OWL, {"name": "owl"}, True),
    ("application/json", "text/html; charset=utf-8", OWL, {"name": "owl"}, True),
    ("application/json", "application/hal+json; version=2", OWL, {"name": "owl"}, True),
    ("application/json", "application/json; charset=iso-8859-1", '{"name":"M\xfcller"}', {"name": "Müller"}, True),
    ("application/json", "application/json; charset=utf-16", '{"name":"Müller"}', {"name": "Müller"}, True),
    ("application/json", "application/json; charset=nonsense", OWL, {"name": "owl"}, True),
    ("application/json", "application/json", "\ufeff" + OWL, {"name": "owl"}, True),
    ("application/json", "application/json", "OK", "OK", False),
    ("application/json", "application/json", '{"name": ', '{"name": ', False),
    ("application/json", "text/plain", "done", "done", False),
    ("application/json", "", "done", "done", False),
    ("application/json", "application/json", "", None, False),
    ("application/json", "application/x-ndjson", f"{OWL}\n{OWL}", f"{OWL}\n{OWL}", False),
    ("text/plain", "text/plain", OWL, OWL, True),
    ("text/plain", "", OWL, {"name": "owl"}, True),
]


async def test_an_answer_is_json_where_it_is_json(tmp_path: Path) -> None:
    """Whatever type it names, in its own encoding; else it is its text, which is not held against the schema."""
    paths: dict[str, Any] = {}
    ends, wanted = list[tuple[Any, ...]](), list[tuple[Any, ...]]()
    async with web_site() as site:
        for number, (said, media_type, body, result, is_checked) in enumerate(TYPES):
            charset = media_type.partition("charset=")[2]
            data = body.encode({"iso-8859-1": "latin-1", "utf-16": "utf-16"}.get(charset, "utf-8"))
            site.page(f"/{number}", data, *([f"Content-Type: {media_type}"] if media_type else []))
            paths[f"/{number}"] = {"get": operation(f"say{number}", responses={"200": described(media_type=said)})}
            wanted.append((True, result, None if is_checked else "its body is not what the document says"))
        async with hosted_document(tmp_path, document(paths), base=f"http://127.0.0.1:{site.port}") as birds:
            for number in range(len(TYPES)):
                asked = {"tool_name": f"birds.say{number}", "arguments": {}}
                reply = (await birds.client.http.post("/execute", json=asked)).json()
                ends.append((reply["success"], reply["result"], reply.get("unchecked")))

    assert ends == wanted


@pytest.mark.parametrize(
    ("code", "responses", "is_checked"),
    [
        (200, {"200": described()}, True),
        (201, {"2XX": described()}, True),
        (201, {"2xx": described()}, True),
        (204, {"200": described(), "204": {"description": "gone"}}, True),
        (204, {"200": described()}, False),
        (202, {"200": described()}, False),
        (201, {"200": described()}, False),
        (202, {"200": described(), "default": described({"type": "object", "required": ["error"]})}, False),
    ],
)
async def test_a_status_is_held_against_its_own_schema(
    service: BirdService, tmp_path: Path, code: int, responses: dict[str, Any], *, is_checked: bool
) -> None:
    """An answer of a status that the document does not describe is passed on, and says that it was not checked."""
    async with hosted_document(tmp_path, saying(code, responses), base=service.url) as birds:
        reply = await told(birds, "" if code == 204 else OWL, **{"content-type": "application/json"})

    assert (reply["success"], reply["result"]) == (True, None if code == 204 else {"name": "owl"})
    assert reply.get("unchecked") == (None if is_checked else f"the document does not describe the status {code}")


async def test_headers_that_a_model_needs_are_shown(service: BirdService, tmp_path: Path) -> None:
    """Those that lead on, and those that the document describes; no cookie, whatever it says."""
    headers = {
        "Link": '<https://birds.test/owls?page=2>; rel="next"',
        "X-Total-Count": "57",
        "X-Mood": "grim",
        "X-Other": "no",
        "Set-Cookie": "session=1",
        "Content-Type": "application/json",
    }
    responses = {"200": described(headers={"x-mood": {}, "Set-Cookie": {}})}
    async with hosted_document(tmp_path, saying(200, responses), base=service.url) as birds:
        reply = await told(birds, OWL, **headers)
        plain = await told(birds, OWL, **{"Content-Type": "application/json"})

    assert reply["note"] == "\n".join(f"{name}: {headers[name]}" for name in ("Link", "X-Mood", "X-Total-Count"))
    assert plain == {"tool_name": "birds.say", "success": True, "result": {"name": "owl"}, "error": None}


@pytest.mark.parametrize("code", [408, 425, 429, 503])
async def test_a_service_that_turns_a_call_away_says_why(service: BirdService, tmp_path: Path, code: int) -> None:
    """In its own words, and with its own status."""
    async with hosted_document(tmp_path, saying(code, {}), base=service.url) as birds:
        arguments = {"body": '{"error":"monthly quota of 100 calls is used up"}', "headers": '{"Retry-After": "9"}'}
        answer = await birds.client.http.post("/execute", json={"tool_name": "birds.say", "arguments": arguments})
        reply = answer.json()

    assert (answer.status_code, answer.headers["retry-after"]) == (503, "9")
    assert (reply["tool_name"], reply["success"], reply["effect_state"]) == ("birds.say", False, "none")
    assert f"status {code} (" in reply["error"]
    assert reply["error"].endswith(': {"error":"monthly quota of 100 calls is used up"}')


async def test_a_redirect_is_followed_within_the_origin_only(birds: HostedDocument) -> None:
    """Of reads: another server is sent nothing."""
    async with web_site() as other:
        other.page("/owls", b"{}")
        within = await birds.call("get_status", code=302, location="/owls?day=3")
        elsewhere = await birds.call("get_status", code=302, location=f"http://127.0.0.1:{other.port}/owls")
        wrote = await birds.call("put_status", code=307, location="/owls?day=3")
        endless = await birds.call("get_status", code=302, location="/status/302?location=/status/302")

        assert within.result["query"] == "day=3"
        assert (elsewhere.success, elsewhere.effect_state, other.asked) == (False, "none", [])
        assert (wrote.success, wrote.effect_state) == (False, "none")
        assert not endless.success


async def test_nobody_listens(tmp_path: Path) -> None:
    """Nothing has happened, and a repeat may help."""
    async with hosted_document(tmp_path, document(PATHS), base="http://127.0.0.1:1") as birds:
        for method in METHODS:
            failed = await birds.call(f"{method}_slow")
            assert (failed.success, failed.effect_state, failed.retryable) == (False, "none", True)


async def test_a_service_that_takes_no_connection_was_sent_nothing(tmp_path: Path) -> None:
    """That is known before the call's time is over, so that the caller hears it."""
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        stack.enter_context(socket.create_connection(full.getsockname()))  # and nobody takes it
        base = f"http://127.0.0.1:{full.getsockname()[1]}"
        async with hosted_document(tmp_path, document(PATHS), base=base) as birds:
            failed = await birds.client.send("birds.post_slow", {}, seconds=0.3)

    assert (failed.success, failed.effect_state, failed.retryable) == (False, "none", True)


async def test_a_connection_is_lost_after_the_request(tmp_path: Path) -> None:
    """Nobody knows what has happened; only what may be repeated is."""
    async with web_site() as site:
        site.pages["/silent"] = b""
        site.pages["/slow"] = b""
        base = f"http://127.0.0.1:{site.port}"
        async with hosted_document(tmp_path, document(PATHS), base=base) as birds:
            lost = [await birds.call(f"{method}_slow") for method in METHODS]
            late = await birds.client.send("birds.post_silent", {}, seconds=0.3)
            body = {"tool_name": "birds.post_slow", "arguments": {}}
            said = (await birds.client.http.post("/execute", json=body)).json()

        assert [(each.effect_state, each.retryable) for each in lost] == [
            ("unknown", True),
            ("unknown", True),
            ("unknown", False),
        ]
        assert (late.success, late.effect_state) == (False, "unknown")
        assert said["error_code"] == "outcome_unknown"  # which the fleet keeps a dead letter of


async def test_a_call_that_is_given_up_ends_its_request(birds: HostedDocument, service: BirdService) -> None:
    """The host waits for nothing that nobody wants."""
    calling = asyncio.ensure_future(birds.client.send("birds.post_slow", {}, seconds=1))
    await wait_until(lambda: "POST /slow" in service.asked, "the request has come")
    ended = await calling

    assert (ended.success, ended.effect_state) == (False, "unknown")
    await wait_until(lambda: "POST /slow is gone" in service.asked, "the service knows")


async def test_a_call_that_is_ended_twice_ends_its_request(service: BirdService) -> None:
    """As where its time is over, and its client goes at the same moment. What is cancelled while it closes leaves it open."""
    sender = HttpSender(most_bytes=1000)
    async with sender.running():
        request = OutgoingRequest("PATCH", f"{service.url}/slow", {})
        sending = asyncio.ensure_future(sender.send(request, seconds=30, may_begin=lambda: True))
        await wait_until(lambda: "PATCH /slow" in service.asked, "the request has come")
        sending.cancel()
        await asyncio.sleep(0)
        sending.cancel()

        await wait_until(lambda: "PATCH /slow is gone" in service.asked, "the service knows")


async def test_cookies_of_one_call_are_not_sent_with_another(birds: HostedDocument) -> None:
    """Callers share connections, and nothing else."""
    assert (await birds.call("content", kind="cookie")).success
    assert "cookie" not in (await birds.call("owls")).result["headers"]
