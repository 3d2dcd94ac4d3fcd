"""Operations of an OpenAPI document as tools: what a service is sent for a call's arguments."""

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from support.hosts.bird_service import BirdService, bird_service, document, json_body, operation, parameter
from support.hosts.openapi_document import hosted_document
from toolfleet_registry.spans import TraceContext, carrying

pytestmark = pytest.mark.asyncio


@pytest.fixture(scope="module")
def service() -> Iterator[BirdService]:
    with bird_service() as running:
        yield running


async def test_parameters_stand_where_the_document_says(service: BirdService, tmp_path: Path) -> None:
    """In the path, the query, a header and a cookie, quoted as each place needs it."""
    find = operation(
        "find",
        parameter("wood", "path", {"type": "string"}),
        parameter("kinds", "query", {"type": "array", "items": {"type": "string"}}),
        parameter("where", "query", {"type": "object"}, style="deepObject"),
        parameter("X-Night", "header", {"type": "integer"}),
        parameter("nest", "cookie", {"type": "string"}),
        parameter("left out", "query", {"type": "string"}),
    )
    async with hosted_document(tmp_path, document({"/woods/{wood}/owls": {"get": find}}), base=service.url) as birds:
        arguments = {"wood": "a&b ü", "kinds": ["barn", "tawny&"], "where": {"lat": 1.5}, "X-Night": 3, "nest": "n;1"}
        done = await birds.call("find", **arguments)

        assert done.success, done.error
        assert done.result["path"] == "/woods/a%26b%20%C3%BC/owls"
        assert done.result["query"] == "kinds=barn&kinds=tawny%26&where%5Blat%5D=1.5"
        assert done.result["headers"]["x-night"] == "3"
        assert done.result["headers"]["cookie"] == "nest=n%3B1"
        assert birds.host.tools["birds.find"].definition.effect == "read"


async def test_a_traced_call_is_traced_on(service: BirdService, tmp_path: Path) -> None:
    """Its service is told where the call is in its trace, unless the document itself has a word there."""
    own = operation("own", parameter("traceparent", "header", {"type": "string"}))
    paths = {"/woods/traced": {"get": operation("look")}, "/woods/own": {"get": own}}
    context = TraceContext("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "a=1")
    async with hosted_document(tmp_path, document(paths), base=service.url) as birds:
        with carrying(context):
            traced, given = await birds.call("look"), await birds.call("own", traceparent="mine")
        untraced = await birds.call("look")

    assert {name: traced.result["headers"].get(name) for name in context.headers} == context.headers
    assert given.result["headers"]["traceparent"] == "mine"
    assert "traceparent" not in untraced.result["headers"]


async def test_names_that_clash_say_where_they_stand(service: BirdService, tmp_path: Path) -> None:
    """Each is an argument of its own, and each value goes where it belongs."""
    nest = {"properties": {"trees": {"type": "integer"}, "name": {"type": "string"}}, "required": ["name"]}
    put = operation(
        "put",
        parameter("name", "path"),
        parameter("name", "query"),
        requestBody=json_body(nest),
    )
    async with hosted_document(tmp_path, document({"/nests/{name}": {"put": put}}), base=service.url) as birds:
        arguments = {"name_in_path": "a", "name_in_query": "b", "name_in_body": "c", "trees": 2}
        done = await birds.call("put", **arguments)

        assert set(birds.input_schema("put")["properties"]) == set(arguments)
        assert birds.input_schema("put")["required"] == ["name_in_path", "name_in_body"]
        assert (done.result["path"], done.result["query"]) == ("/nests/a", "name=b")
        assert json.loads(done.result["body"]) == {"name": "c", "trees": 2}
        assert birds.host.tools["birds.put"].definition.effect == "idempotent"


async def test_several_parts_have_texts_json_and_files(service: BirdService, tmp_path: Path) -> None:
    """Bytes come as base64, and go as a file."""
    schema = {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"type": "string"},
            "marks": {"type": "array", "items": {"type": "integer"}},
            "egg": {"type": "object"},
            "photo": {"type": "string", "format": "binary"},
        },
    }
    post = operation("post", requestBody=json_body(schema, media_type="multipart/form-data"))
    async with hosted_document(tmp_path, document({"/nests": {"post": post}}), base=service.url) as birds:
        done = await birds.call("post", name="a", marks=[1, 2], egg={"size": 3}, photo="aG9vdA==")
        wrong = await birds.call("post", name="a", photo="§")

        boundary = done.result["headers"]["content-type"].removeprefix("multipart/form-data; boundary=")
        parts = done.result["body"].split(f"--{boundary}")
        assert [part.strip().rpartition("\r\n\r\n")[2] for part in parts[1:-1]] == ["a", "1", "2", '{"size":3}', "hoot"]
        assert 'name="photo"; filename="photo"' in parts[-2]
        assert "application/json" in parts[-3]
        assert (wrong.success, wrong.effect_state) == (False, "none")


async def test_an_idempotency_header_carries_the_calls_id(service: BirdService, tmp_path: Path) -> None:
    """No model sees it; the tool is idempotent then, and a repeat says the same."""
    paths = {
        "/plain": {"post": operation("plain", parameter("Idempotency-Key", "header"))},
        "/uuid": {"post": operation("uuid", parameter("X-Idempotency-Key", "header", {"format": "uuid"}))},
        "/none": {"post": operation("none")},
    }
    async with hosted_document(tmp_path, document(paths), base=service.url) as birds:
        plain = await birds.client.send("birds.plain", {}, call_id="call-1")
        uuids = [
            (await birds.client.send("birds.uuid", {}, call_id=call_id)).result["headers"]["x-idempotency-key"]
            for call_id in ("call-2", "call-3")
        ]

        assert plain.result["headers"]["idempotency-key"] == "call-1"
        assert birds.input_schema("plain")["properties"] == {}
        assert len(set(uuids)) == 2
        assert all(len(each) == 36 for each in uuids)
        effects = {name: tool.definition.effect for name, tool in birds.host.tools.items()}
        assert effects == {"birds.plain": "idempotent", "birds.uuid": "idempotent", "birds.none": "once"}


SLASH_LINE = '[hosts.birds] slashes = ["delete.id"]'
OTHER_PATHS = [
    ("", "is a part of the path", "is a part of the path"),
    ("..", "'.' or '..'", "'.' or '..'"),
    (".", "'.' or '..'", "'.' or '..'"),
    ("%2e%2E", "'.' or '..'", "'.' or '..'"),
    ("%252e%252e", "'.' or '..'", "'.' or '..'"),
    ("..;x=1", "'.' or '..'", "'.' or '..'"),
    (".. ", "'.' or '..'", "'.' or '..'"),
    ("1/keys", SLASH_LINE, None),
    ("1%2Fkeys", SLASH_LINE, None),
    ("1%252fkeys", SLASH_LINE, None),
    ("1%25252Fkeys", SLASH_LINE, None),
    ("1%%32%46keys", SLASH_LINE, None),
    ("../admin", SLASH_LINE, "'.' or '..'"),
    ("a/%2e%2e/b", SLASH_LINE, "'.' or '..'"),
    ("a/./b", SLASH_LINE, "'.' or '..'"),
    ("1\\keys", "'\\'", "'\\'"),
    ("1%5ckeys", "'\\'", "'\\'"),
    ("1%255Ckeys", "'\\'", "'\\'"),
    (f"1%{'25' * 40}2Fkeys", "too many times", "too many times"),
    ("100% ü?#..b", None, None),
]


@pytest.mark.parametrize("slashes", [(), ("delete.id",)], ids=["as it is", "with slashes"])
async def test_an_argument_makes_no_other_path(service: BirdService, tmp_path: Path, slashes: tuple[str, ...]) -> None:
    """`DELETE /owls/1/keys` may be another operation: nothing is sent. An operator allows `/`, and nothing else of it."""
    delete = operation("delete", parameter("id", "path", {"type": "string"}))
    paths = {"/private/owls/{id}": {"delete": delete}}
    async with hosted_document(tmp_path, document(paths), base=service.url, slashes=slashes) as birds:
        for value, words, words_with_slashes in OTHER_PATHS:
            expected, before = words_with_slashes if slashes else words, len(service.asked)
            done = await birds.call("delete", id=value)
            if expected is None:
                assert done.result["path"] == f"/private/owls/{quote(value, safe='')}"
            else:
                assert (done.success, done.effect_state) == (False, "none"), value
                assert expected in str(done.error)
            assert len(service.asked) - before == (expected is None), value


async def test_a_tool_says_which_line_allows_slashes(service: BirdService, tmp_path: Path) -> None:
    """Where they are allowed, and where none can be, it says nothing. A line that allows nothing is listed."""
    plain = {"n": {"type": "integer"}, "m": {"type": ["integer", "null"]}, "u": {"type": "string", "format": "uuid"}}
    others = [parameter(name, "path", schema) for name, schema in plain.items()]
    delete = operation("delete", parameter("id", "path", {"type": "string"}), *others)
    body = document({"/owls/{id}/{n}/{m}/{u}": {"delete": delete}})
    async with hosted_document(tmp_path, body, base=service.url) as birds:
        properties = birds.input_schema("delete")["properties"]
        assert SLASH_LINE in properties["id"]["description"]
        assert {name: properties[name] for name in plain} == plain
    async with hosted_document(tmp_path, body, base=service.url, slashes=("delete.id", "delete.key")) as birds:
        assert birds.input_schema("delete")["properties"]["id"] == {"type": "string"}
        assert birds.errors() == {"slashes delete.key": "ParameterUnknown"}


async def test_a_tool_is_called_by_its_former_name(service: BirdService, tmp_path: Path) -> None:
    """The reply is in the name that the call has, the manifest lists the present one, and `slashes` may use either."""
    paths = {"/orders/{id}": {"get": operation(None, parameter("id", "path", {"type": "string"}))}}
    former = "get_orders_id-x9a110b7d"
    for slashes in ("get_orders_id.id", f"{former}.id"):
        async with hosted_document(tmp_path, document(paths), base=service.url, slashes=(slashes,)) as birds:
            done = await birds.call(former, id="a/b")
            (offered,) = (await birds.client.manifest()).tools

            assert done.success, done.error
            assert done.result["path"] == "/orders/a%2Fb"
            assert offered.names == ("birds.get_orders_id", f"birds.{former}")
            assert birds.errors() == {}
            for arguments in ({"id": "1"}, {}):
                asked = {"tool_name": f"birds.{former}", "arguments": arguments}
                replied = (await birds.client.http.post("/execute", json=asked)).json()
                assert (replied["tool_name"], replied["success"]) == (asked["tool_name"], bool(arguments))


async def test_an_argument_adds_no_header(service: BirdService, tmp_path: Path) -> None:
    """Line ends in one are refused; names that are the connection's close the tool."""
    paths = {
        "/a": {"get": operation("a", parameter("X-Owl", "header", {"type": "string"}))},
        "/b": {"get": operation("b", parameter("Host", "header", {"type": "string"}, required=True))},
        "/c": {"get": operation("c", parameter("Authorization", "header", {"type": "string"}))},
    }
    async with hosted_document(tmp_path, document(paths), base=service.url) as birds:
        refused = await birds.call("a", **{"X-Owl": "a\r\nX-Other: b"})

        assert (refused.success, refused.effect_state) == (False, "none")
        assert birds.errors() == {"GET /b": "UnsupportedParameter"}
        assert birds.input_schema("c")["properties"] == {}


async def test_a_default_is_said_and_not_sent(service: BirdService, tmp_path: Path) -> None:
    """What a partial change does not name stays as it is in the service."""
    schema = {"type": "object", "properties": {"state": {"type": "string", "default": "new"}, "n": {"type": "integer"}}}
    patch = operation("patch", requestBody=json_body(schema))
    async with hosted_document(tmp_path, document({"/nests": {"patch": patch}}), base=service.url) as birds:
        done = await birds.call("patch", n=1)

        assert done.result["body"] == '{"n":1}'
        assert "takes new" in birds.input_schema("patch")["properties"]["state"]["description"]
