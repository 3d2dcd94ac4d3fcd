"""Requests that operations of a document make: one table for each kind of argument that is easily sent wrong."""

from base64 import b64encode
from typing import Any
from urllib.parse import unquote

import pytest

from support.hosts.bird_service import document, json_body, operation, parameter
from support.hosts.second_judge import second_judge
from toolfleet_modules.hosts.openapi.document import OpenApiDocument
from toolfleet_modules.hosts.openapi.openapi_host import DocumentTools, OpenApiOptions, tools_of
from toolfleet_modules.hosts.openapi.operation_tool import HttpSender
from toolfleet_modules.hosts.openapi.outgoing_request import OutgoingRequest
from toolfleet_registry.schemas.validation import checked

BASE = "http://birds.test/api"
FORM, MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"


def tools(body: dict[str, Any], **options: Any) -> DocumentTools:
    options = {"base": BASE, **options}
    return tools_of(
        OpenApiDocument.of(body), OpenApiOptions("birds", "birds.json", **options), HttpSender(most_bytes=1)
    )


def one(path: str, said: dict[str, Any], method: str = "get", **more: Any) -> dict[str, Any]:
    """A document with the operation `op`."""
    return document({path: {method: said}}, **more)


def posting(request_body: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A document with the operation `op`, which has a body."""
    return one("/f", operation("op", requestBody=request_body), "post", **more)


def body_of(schema: Any, media_type: str = MULTIPART, **more: Any) -> dict[str, Any]:
    return {"required": True, "content": {media_type: {"schema": schema, **more}}}


def returning(schema: Any, **more: Any) -> dict[str, Any]:
    answer = {"description": "ok", "content": {"application/json": {"schema": schema}}}
    return one("/x", operation("op", responses={"200": answer}), **more)


def properties_of(body: dict[str, Any]) -> dict[str, Any]:
    (tool,) = tools(body).tools.values()
    return dict((tool.definition.input_schema or {})["properties"])


def description_of(body: dict[str, Any]) -> str:
    (tool,) = tools(body).tools.values()
    return tool.definition.description


def sent(body: dict[str, Any], arguments: dict[str, Any]) -> OutgoingRequest:
    """What the operation `op` sends for arguments that fit its schema."""
    found = tools(body)
    assert not found.faults
    (tool,) = found.tools.values()
    held = checked(tool.definition, arguments)
    assert held.arguments is not None, held.fault
    request = tool.form.request(held.arguments, None)
    assert second_judge(body, BASE, request) == []
    return request


def parts_of(request: OutgoingRequest) -> list[tuple[str, bytes]]:
    """The parts of a body, each with its header."""
    boundary = request.headers["Content-Type"].partition("boundary=")[2].encode()
    parts = [each.removeprefix(b"\r\n").removesuffix(b"\r\n") for each in request.body.split(b"--" + boundary)[1:-1]]
    return [(head.decode(), data) for head, _, data in (each.partition(b"\r\n\r\n") for each in parts)]


NULLABLE: dict[str, Any] = {"type": ["string", "null"]}
NULLS: list[tuple[Any, str]] = [
    ({"a": "x", "b": None}, "a=x"),
    ({"a": "x", "c": [None, "y", None]}, "a=x&c=y"),
    ({"a": "x", "c": [None]}, "a=x"),
    ({"a": "null", "b": ""}, "a=null&b="),
    ({"b": None}, ""),
]


@pytest.mark.parametrize(("arguments", "written"), NULLS)
@pytest.mark.parametrize("media_type", [FORM, MULTIPART, "query"])
def test_null_is_left_out_where_no_text_can_say_it(media_type: str, arguments: dict[str, Any], written: str) -> None:
    """In forms, parts and queries, also as an item; the text `null` and an empty one are texts."""
    properties = {"a": NULLABLE, "b": NULLABLE, "c": {"type": "array", "items": NULLABLE}}
    if media_type == "query":
        body = one("/f", operation("op", *(parameter(name, schema=each) for name, each in properties.items())))
        assert sent(body, arguments).url == f"{BASE}/f{'?' if written else ''}{written}"
        return
    schema = {"type": "object", "properties": properties}
    request = sent(posting(json_body(schema, media_type=media_type)), arguments)
    if media_type == FORM:
        assert request.body.decode() == written
    else:
        texts = [data.decode() for _, data in parts_of(request)]
        assert texts == [each.partition("=")[2] for each in written.split("&") if each]


@pytest.mark.parametrize("style", ["form", "spaceDelimited", "pipeDelimited", "deepObject"])
@pytest.mark.parametrize("explode", [True, False])
def test_null_in_an_object_of_a_query_is_left_out(style: str, explode: bool) -> None:
    """Also deeper, and in a header and a path."""
    said = parameter("o", schema={}, style=style, explode=explode)
    request = sent(one("/f", operation("op", said)), {"o": {"a": 1, "b": None, "c": {"d": 2}}})
    assert "b" not in unquote(request.url.partition("?")[2])
    assert '"d":2' in unquote(request.url) or "o[c][d]=2" in unquote(request.url)
    for place, shown in (("header", "a,1"), ("path", "a,1")):
        request = sent(
            one("/f/{o}" if place == "path" else "/f", operation("op", parameter("o", place))),
            {"o": {"a": 1, "b": None}},
        )
        assert (request.headers.get("o") or unquote(request.url).rpartition("/")[2]) == shown


def test_null_in_json_is_null() -> None:
    """It says something there, also in a parameter that is JSON."""
    body = posting(json_body({"type": "object", "properties": {"b": NULLABLE}}))
    content = {"name": "q", "in": "query", "content": {"application/json": {"schema": {}}}}

    assert sent(body, {"b": None}).body == b'{"b":null}'
    assert unquote(sent(one("/f", operation("op", content)), {"q": {"a": None}}).url).endswith('?q={"a":null}')


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (["a", "b"], "v[0]=a&v[1]=b"),
        ([{"price": "p1", "n": 2}, {"price": "p2"}], "v[0][price]=p1&v[0][n]=2&v[1][price]=p2"),
        ({"a": ["x", "y"], "b": {"c": [1]}}, "v[a][0]=x&v[a][1]=y&v[b][c][0]=1"),
        ([["a"], ["b", "c"]], "v[0][0]=a&v[1][0]=b&v[1][1]=c"),
        ({"a": None, "b": [None, {"c": None, "d": True}]}, "v[b][0][d]=true"),
        ([], ""),
        ({}, ""),
        ("a", "v=a"),
        (5.0, "v=5"),
    ],
)
@pytest.mark.parametrize("place", ["query", FORM])
def test_lists_of_deep_objects_have_indices(place: str, value: Any, written: str) -> None:
    """As services with such documents read them, in queries and forms."""
    deep: dict[str, Any] = {"style": "deepObject", "explode": True}
    if place == "query":
        request = sent(one("/s", operation("op", parameter("v", schema={}, **deep))), {"v": value})
        assert unquote(request.url) == f"{BASE}/s{'?' if written else ''}{written}"
        return
    body = posting(body_of({"type": "object", "properties": {"v": {}}}, FORM, encoding={"v": deep}))
    assert unquote(sent(body, {"v": value}).body.decode()) == written


@pytest.mark.parametrize(
    ("path", "url"),
    [
        ("/files#shared", "/files?q=needle"),
        ("/files/{id}#get", "/files/a%23b?q=needle"),
        ("/files?kind=text", "/files?kind=text&q=needle"),
        ("/files?kind=text#shared", "/files?kind=text&q=needle"),
        ("/files#shared?kind=text", "/files?q=needle"),
        ("/files/?", "/files/?q=needle"),
        ("/files?a&b=", "/files?a&b=&q=needle"),
        ("/files(name='{id}')/$value#x", "/files(name='a%23b')/$value?q=needle"),
        ("/files;v=1#x", "/files;v=1?q=needle"),
    ],
)
def test_a_path_of_a_document_may_have_a_query_and_a_fragment(path: str, url: str) -> None:
    """The query stays, and arguments are added to it; the fragment, which tells paths apart, is not sent."""
    places = [parameter("id", "path", {"type": "string"})] if "{id}" in path else []
    body = one(path, operation("op", *places, parameter("q", schema={"type": "string"})))

    assert sent(body, {"q": "needle", **({"id": "a#b"} if places else {})}).url == f"{BASE}{url}"
    assert sent(body, {"id": "a#b"} if places else {}).url == f"{BASE}{url.removesuffix('q=needle').rstrip('?&')}"


def test_a_parameter_in_a_fragment_costs_the_operation() -> None:
    """It cannot be sent, and is required."""
    found = tools(one("/files#{id}", operation("op", parameter("id", "path"))))

    assert (found.tools, [each.kind for each in found.faults]) == ({}, ["InvalidOperation"])


@pytest.mark.parametrize(
    ("value", "written"),
    [(5.0, "5"), (-2.0, "-2"), (0.0, "0"), (1e20, "100000000000000000000"), (2**70, str(2**70)), (1.5, "1.5")],
)
@pytest.mark.parametrize("schema", [{"type": "integer"}, {"type": "number"}, {}, {"type": ["integer", "null"]}])
def test_a_whole_number_is_written_as_one(schema: dict[str, Any], value: float, written: str) -> None:
    """In a path, a query, a header, a form and JSON, wherever in them; services do not read `5.0` as an integer."""
    if value == 1.5 and schema and schema["type"] != "number":
        return
    listed = {"type": "array", "items": schema}
    get = operation(
        "op", parameter("id", "path", schema), parameter("q", schema=listed), parameter("X-N", "header", schema)
    )
    request = sent(one("/owls/{id}", get), {"id": value, "q": [value], "X-N": value})
    assert (request.url, request.headers["X-N"]) == (f"{BASE}/owls/{written}?q={written}", written)
    properties = {"type": "object", "properties": {"n": schema, "l": listed}}
    for media_type, text in (
        (FORM, f"n={written}&l={written}"),
        ("application/json", f'{{"n":{written},"l":[{written}]}}'),
    ):
        body = posting(json_body(properties, media_type=media_type))
        assert sent(body, {"n": value, "l": [value]}).body.decode() == text


BINARY: dict[str, Any] = {"type": "string", "format": "binary"}
PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00\x00"
FILES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "3.0": (BINARY, {}),
    "3.1": ({"type": "string", "contentMediaType": "application/octet-stream"}, {}),
    "3.1 without a type": ({"contentMediaType": "image/png"}, {}),
    "3.1 by its encoding": ({}, {"contentType": "image/png"}),
    "Swagger 2": ({"type": "file"}, {}),
    "nullable in 3.0": ({**BINARY, "nullable": True}, {}),
    "nullable in 3.1": ({**BINARY, "type": ["string", "null"]}, {}),
    "FastAPI's optional file": ({"anyOf": [BINARY, {"type": "null"}], "title": "File"}, {}),
    "a reference": ({"$ref": "#/components/schemas/Photo"}, {}),
    "all of a reference": ({"allOf": [{"$ref": "#/components/schemas/Photo"}], "description": "A photo."}, {}),
}


def upload(schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    components = {"schemas": {"Photo": BINARY, "Base": {"type": "object", "properties": {"photo": BINARY}}}}
    return posting(body_of(schema, **more), components=components)


@pytest.mark.parametrize("said", FILES.values(), ids=FILES.keys())
@pytest.mark.parametrize("is_list", [False, True], ids=["one", "a list"])
def test_a_file_is_sent_as_one(said: tuple[dict[str, Any], dict[str, Any]], *, is_list: bool) -> None:
    """With its bytes and a name, and a list of them as one part each; a model writes base64."""
    file, encoding = said
    schema = {"type": "array", "items": file, "maxItems": 3} if is_list else file
    body = upload({"type": "object", "properties": {"photo": schema}}, encoding={"photo": encoding} if encoding else {})
    shown = properties_of(body)["photo"]
    encoded = [b64encode(each).decode() for each in ((PNG, b"one!") if is_list and not encoding else (PNG,))]
    parts = parts_of(sent(body, {"photo": encoded if is_list else encoded[0]}))

    assert (shown["items"] if is_list else shown)["contentEncoding"] == "base64"
    assert shown.get("maxItems") == (3 if is_list else None)
    assert [data for _, data in parts] == [PNG, b"one!"][: len(parts)]
    assert len(parts) == len(encoded)
    assert 'name="photo"; filename="photo.png"' in parts[0][0]
    assert "Content-Type: image/png" in parts[0][0]
    assert all('filename="photo' in head for head, _ in parts)


BODIES: dict[str, dict[str, Any]] = {
    "all of": {"allOf": [{"$ref": "#/components/schemas/Base"}, {"properties": {"name": {"type": "string"}}}]},
    "all of, deeper": {
        "allOf": [{"allOf": [{"$ref": "#/components/schemas/Base"}]}, {"properties": {"name": {"type": "string"}}}],
        "required": ["photo"],
    },
    "one of": {"oneOf": [{"$ref": "#/components/schemas/Base"}, {"type": "object", "required": ["url"]}]},
    "further members": {"type": "object", "properties": {"photo": BINARY}, "additionalProperties": True},
}


@pytest.mark.parametrize("schema", BODIES.values(), ids=BODIES.keys())
def test_a_file_in_any_form_is_sent_as_one(schema: dict[str, Any]) -> None:
    """Also where the form is composed of others, or is one argument."""
    arguments: dict[str, Any] = {"photo": b64encode(PNG).decode(), "name": "owl"}
    is_whole = not any("all of" in name and schema is each for name, each in BODIES.items())
    parts = dict(parts_of(sent(upload(schema), {"body": arguments} if is_whole else arguments)))

    assert sorted(parts.values()) == sorted([PNG, b"owl"])
    assert [head for head in parts if 'filename="photo.png"' in head and "image/png" in head]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "format": "byte"},
        {"type": "string", "contentEncoding": "base64", "contentMediaType": "image/png"},
        {"type": "string"},
        {"type": "object", "format": "binary"},
        {},
    ],
)
def test_what_is_no_file_is_sent_as_a_text(schema: dict[str, Any]) -> None:
    """Base64 that the document wants stays base64."""
    value: Any = {"a": 1} if schema.get("type") == "object" else b64encode(PNG).decode()
    ((head, data),) = parts_of(sent(upload({"type": "object", "properties": {"photo": schema}}), {"photo": value}))

    assert "filename" not in head
    assert data == (b'{"a":1}' if isinstance(value, dict) else value.encode())


@pytest.mark.parametrize(
    ("said", "name"),
    [("image/jpeg", "photo.jpg"), ("text/csv; header=present", "photo.csv"), ("image/png, image/jpeg", "photo.png")],
)
def test_a_files_name_has_the_ending_of_its_type(said: str, name: str) -> None:
    """As the document says, else as its bytes do; services tell formats by it."""
    body = upload({"type": "object", "properties": {"photo": BINARY}}, encoding={"photo": {"contentType": said}})
    ((head, _),) = parts_of(sent(body, {"photo": b64encode(PNG).decode()}))

    assert f'filename="{name}"' in head


LEFT_OUT: dict[str, tuple[dict[str, Any], str]] = {
    **{
        name: (parameter(name, "header", {"type": "string"}), "the connection's")
        for name in ("Content-Encoding", "Connection", "Host", "Cookie", "Expect", "transfer-encoding")
    },
    "style": (parameter("day", "query", style="spoken"), "style"),
    "outside": (parameter("day", "query", {"$ref": "other.json#/Day"}), "other.json"),
    "outside, deeper": (parameter("day", "query", {"$ref": "#/components/schemas/Far"}), "other.json"),
    "nowhere": (parameter("day", "query", {"$ref": "#/components/schemas/None"}), "not there"),
    "no schema": (parameter("day", "query", {"properties": {"a": 3}}), "int"),
}
FAR = {
    "schemas": {
        "Far": {"properties": {"a": {"$ref": "#/components/schemas/Further"}}},
        "Further": {"$ref": "other.json"},
    }
}


@pytest.mark.parametrize(("said", "words"), LEFT_OUT.values(), ids=LEFT_OUT.keys())
def test_an_optional_parameter_that_cannot_be_sent_is_left_out(said: dict[str, Any], words: str) -> None:
    """The tool says so. A required one costs the operation, with the reason."""
    other = parameter("q", schema={"type": "string"})
    optional = one("/mail", operation("op", said, other), "post", components=FAR)
    none = tools(one("/mail", operation("op", {**said, "required": True}, other), "post", components=FAR))

    assert list(properties_of(optional)) == ["q"]
    assert f"'{said['name']}' is left out" in description_of(optional)
    assert words in description_of(optional)
    assert (none.tools, words in none.faults[0].message) == ({}, True)


@pytest.mark.parametrize(
    "content",
    [
        {"application/xml": {}},
        {"application/json": {"schema": {"$ref": "other.json"}}},
        {FORM: {"schema": {"type": "array"}}},
        {},
    ],
)
def test_an_optional_body_that_cannot_be_sent_is_left_out(content: dict[str, Any]) -> None:
    """As an optional parameter is."""
    none = tools(posting({"content": content, "required": True}))

    assert "Its body is left out: " in description_of(posting({"content": content}))
    assert (none.tools, len(none.faults)) == ({}, 1)


ELSEWHERE = {"$ref": "owls.yaml#/owl"}
PARTS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "needs header fields": (BINARY, {"headers": {"X-Owl": {"required": True}}}, "needs header fields of its own"),
    "is an object, and XML": ({"type": "object"}, {"contentType": "application/xml"}, "is 'application/xml'"),
    "is in another file": (ELSEWHERE, {}, "owls.yaml"),
}


@pytest.mark.parametrize(("schema", "encoding", "words"), PARTS.values(), ids=PARTS)
def test_a_part_that_cannot_be_sent_is_left_out(schema: Any, encoding: dict[str, Any], words: str) -> None:
    """If it is optional, with a note; a required one costs the operation, with the reason. In JSON, too, where it can be so."""
    for media_type in (MULTIPART, "application/json")[: 2 if schema == ELSEWHERE else 1]:
        whole = {"type": "object", "properties": {"a": {"type": "string"}, "b": schema}}
        said: dict[str, Any] = {"media_type": media_type, "encoding": {"b": encoding}}
        (tool,) = tools(posting(body_of(whole, **said))).tools.values()
        assert tool.argument_names == {"a"}
        assert "Its part 'b' is left out: " in tool.definition.description
        assert words in tool.definition.description

        (fault,) = tools(posting(body_of({**whole, "required": ["b"]}, **said))).faults
        assert words in fault.message


@pytest.mark.parametrize(
    ("name", "encoding", "is_noted"),
    [
        ("X-Owl", {"headers": {"X-Owl": {"schema": {}}}}, True),
        ("Content-Type", {"headers": {"Content-Type": {"required": True}}}, False),
        ("", {"contentType": "image/png"}, False),
    ],
)
def test_header_fields_of_a_part_are_noted(name: str, encoding: dict[str, Any], *, is_noted: bool) -> None:
    """They are optional, and nobody can say them. The type of a part is no such field."""
    body = body_of({"type": "object", "properties": {"b": BINARY}}, encoding={"b": encoding})
    (tool,) = tools(posting(body)).tools.values()

    assert tool.argument_names == {"b"}, name
    assert ("'b' is sent without header fields of its own" in tool.definition.description) is is_noted


@pytest.mark.parametrize(
    ("content", "written"),
    [
        ({"application/xml": {}}, None),
        ({"text/csv": {}}, None),
        ({"text/plain": {"schema": {"type": "string"}}}, "q=%7Bx"),
        ({"text/csv": {}, "application/json": {}}, "q=%22%7Bx%22"),
        ({"application/vnd.owl+json": {}}, "q=%22%7Bx%22"),
    ],
)
def test_a_parameter_is_written_as_its_content_says(content: dict[str, Any], written: str | None) -> None:
    """As JSON or as text; one of another type is left out with a note, and costs the operation if it is required."""
    body = one("/a", operation("op", {"name": "q", "in": "query", "content": content}))
    if written is not None:
        assert sent(body, {"q": "{x"}).url.partition("?")[2] == written
        return
    assert f"'q' is left out: 'q' is written as {next(iter(content))!r}." in description_of(body)
    required = {"name": "q", "in": "query", "required": True, "content": content}
    (fault,) = tools(one("/a", operation("op", required))).faults
    assert fault.kind == "UnsupportedParameter"


@pytest.mark.parametrize("method", ["get", "head"])
def test_a_body_of_get_is_sent_where_openapi_has_one(method: str) -> None:
    """3.1 has it; 3.0 says that it is to be ignored, and the tool's description says that it is."""
    said = operation("op", requestBody=json_body({"type": "object", "properties": {"a": {}}, "required": ["a"]}))
    assert sent(one("/a", said, method), {"a": 1}).body == b'{"a":1}'
    old = one("/a", said, method, version="3.0.3")
    assert sent(old, {}).body == b""
    assert "Its body is left out" in description_of(old)


@pytest.mark.parametrize(
    ("pattern", "shown"),
    [
        (r"^[\w-\.]+@([\w-]+\.)+[\w-]{2,4}$", r"^[\w\-\.]+@([\w\-]+\.)+[\w\-]{2,4}$"),
        (r"[.-\d]\w-\d", r"[.\-\d]\w\-\d"),
        (r"[\\w-z]\-\d", r"[\\w-z]\-\d"),
        ("^[a-z]+$", "^[a-z]+$"),
        ("^.{1,10000}$", None),
    ],
)
@pytest.mark.parametrize("place", ["query", "body"])
def test_a_pattern_that_other_languages_take_costs_no_tool(place: str, pattern: str, shown: str | None) -> None:
    """A dash beside a class is written as all engines read it; one that is too large is said in words, for the service checks it."""
    schema = {"type": "string", "pattern": pattern}
    body = json_body({"type": "object", "properties": {"a": schema}})
    said = operation("op", parameter("a", "query", schema)) if place == "query" else operation("op", requestBody=body)
    whole = one("/a", said, "post")
    words = {"pattern": shown} if shown else {"description": f"The service checks it by the pattern {pattern}."}

    assert not tools(whole).faults
    assert properties_of(whole)["a"] == {"type": "string", **words}


@pytest.mark.parametrize(("path", "is_listed"), [("owls", True), ("x-owls", False)])
def test_a_path_that_is_none_is_listed(path: str, *, is_listed: bool) -> None:
    """An extension of OpenAPI is no path."""
    assert [each.label for each in tools(one(path, operation("op"))).faults] == ([path] if is_listed else [])


NEST = {
    "type": "object",
    "properties": {"trees": {"type": "integer"}, "name": {"type": "string"}},
    "required": ["name"],
}


MEMBERS = {"type": "object", "additionalProperties": {"type": "integer"}}
IMAGE, LATIN, GFM = b64encode(PNG).decode(), "; charset=iso-8859-1", "text/markdown; variant=GFM"
BODY_TABLE: list[tuple[dict[str, Any], dict[str, Any], str | None, bytes]] = [
    # The properties of a plain object are arguments of their own; what is no plain object is the argument `body`.
    (json_body(NEST), {"name": "ü"}, "application/json", b'{"name":"\xc3\xbc"}'),
    (json_body({"type": "array"}), {"body": [1, None]}, "application/json", b"[1,null]"),
    (json_body({"properties": {"n": {}}}, required=False), {}, None, b""),
    (json_body({"properties": {"n": {}}}), {}, "application/json", b"{}"),
    (json_body(MEMBERS), {"body": {"any": 1}}, "application/json", b'{"any":1}'),
    (json_body(NEST, media_type=FORM), {"name": "a b&", "trees": 2}, FORM, b"trees=2&name=a+b%26"),
    # A text is in the character set that the document names, and of the type that a data URL names if that has a `*`.
    *(
        (json_body({"type": "string"}, media_type=media_type), {"body": value}, content_type, written)
        for media_type, value, content_type, written in [
            ("image/*", f"data:image/png;base64,{IMAGE}", "image/png", PNG),
            ("image/*", IMAGE, "image/png", PNG),
            ("image/*", "AAE=", "application/octet-stream", b"\x00\x01"),
            ("application/pdf", IMAGE, "application/pdf", PNG),
            ("text/plain", "ü", "text/plain; charset=utf-8", b"\xc3\xbc"),
            (f"text/plain{LATIN}", "ü", f"text/plain{LATIN}", b"\xfc"),
            (GFM, "ü", f"{GFM}; charset=utf-8", b"\xc3\xbc"),
            (f"application/json{LATIN}", "ü", f"application/json{LATIN}", b'"\\u00fc"'),
            ("application/json", "ü", "application/json", b'"\xc3\xbc"'),
        ]
    ),
    # A file of any type that is no text is its bytes.
    *(
        (json_body(BINARY, media_type=media_type), {"body": "AAECAw=="}, media_type, b"\0\1\2\3")
        for media_type in ("application/zip", "audio/mpeg", "video/mp4", "application/octet-stream")
    ),
]


@pytest.mark.parametrize(("body", "arguments", "content_type", "written"), BODY_TABLE)
def test_a_body_is_written_as_the_document_says(
    body: dict[str, Any], arguments: dict[str, Any], content_type: str | None, written: bytes
) -> None:
    """Of the type, in the character set and from the arguments that it names."""
    request = sent(posting(body), arguments)

    assert (request.headers.get("Content-Type"), request.body) == (content_type, written)


def test_a_header_that_only_the_host_sends_is_named() -> None:
    """Of those that every request has by itself nothing is said."""
    headers = [parameter(name, "header") for name in ("Authorization", "Accept", "Content-Type")]

    assert description_of(one("/mail", operation("op", *headers, summary="Sends."), "post")) == (
        "Sends.\n\nThe header 'Authorization' is not sent: only the host's auth or headers send it."
    )


OUTPUTS: dict[str, Any] = {
    "a type that is none": {"type": "file"},
    "too large patterns": {"properties": {f"p{i}": {"type": "string", "pattern": "^.{1,10000}$"} for i in range(12)}},
    "a broken pattern": {"type": "string", "pattern": "(?<n>x"},
    "outside": {"$ref": "other.json"},
    "outside, deeper": {"$ref": "#/components/schemas/Far"},
    "no schema": {"properties": {"a": 3}},
    "a list": [],
    "a broken list": {"allOf": 3, "minimum": "x"},
}


@pytest.mark.parametrize("schema", OUTPUTS.values(), ids=OUTPUTS.keys())
def test_what_is_returned_costs_no_tool(schema: Any) -> None:
    """Its results are not checked, and the tool says so."""
    found = tools(returning(schema, components=FAR))
    (tool,) = found.tools.values()

    assert (found.faults, tool.definition.output_schema) == ([], None)
    assert "Its results are not checked: " in tool.definition.description


def test_a_name_that_is_required_twice_is_required_once() -> None:
    """Such a schema is as good as any."""
    schema = {"type": "object", "required": ["id", "id"], "properties": {"id": {"type": "string"}}}
    (tool,) = tools(returning(schema)).tools.values()

    assert tool.definition.output_schema == {**schema, "required": ["id"]}
    assert tool.definition.description == "GET /x"
