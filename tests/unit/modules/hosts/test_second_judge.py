"""Requests of odd documents, each read by openapi-core, and the values of which no request is made."""

from dataclasses import replace
from typing import Any

import pytest

from support.hosts.bird_service import document, json_body, operation, parameter
from support.hosts.second_judge import DISAGREEMENTS, second_judge
from toolfleet_modules.hosts.openapi.document import OpenApiDocument
from toolfleet_modules.hosts.openapi.openapi_host import OpenApiOptions, tools_of
from toolfleet_modules.hosts.openapi.operation_tool import HttpSender
from toolfleet_modules.hosts.openapi.outgoing_request import OutgoingRequest, ValueRefused
from toolfleet_registry.schemas.validation import checked

BASE = "http://birds.test/api"
FORM, MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"
TEXT: dict[str, Any] = {"type": "string"}
LIST: dict[str, Any] = {"type": "array", "items": TEXT}
OBJECT: dict[str, Any] = {"type": "object", "properties": {"a": TEXT, "b": {"type": "integer"}}}
ODD = "a b,ü&=?#%+;:@$'()*!~|[]{}\"<>^`"
"""A text with all that means something in some place of a request, but for what no path may have."""


def bodied(schema: Any, media_type: str, *, required: bool = True, **more: Any) -> dict[str, Any]:
    return {"requestBody": {"required": required, "content": {media_type: {"schema": schema, **more}}}}


def of_parts(*names: str, schema: Any = None) -> dict[str, Any]:
    return {"type": "object", "properties": dict.fromkeys(names, schema or TEXT), "required": list(names)}


def built(
    said: dict[str, Any], arguments: dict[str, Any], path: str = "/a", method: str = "get"
) -> tuple[dict[str, Any], OutgoingRequest]:
    """Return a document with one operation, and its request for arguments that fit the tool's schema."""
    whole = document({path: {method: said}})
    found = tools_of(OpenApiDocument.of(whole), OpenApiOptions("birds", "b.json", base=BASE), HttpSender(most_bytes=1))
    assert not found.faults
    (tool,) = found.tools.values()
    held = checked(tool.definition, arguments)
    assert held.arguments is not None, held.fault
    return whole, tool.form.request(held.arguments, "call-1")


STYLES = [
    ("query", "form", None),
    ("query", "spaceDelimited", False),
    ("query", "pipeDelimited", False),
    ("query", "deepObject", True),
    ("header", "simple", None),
    ("cookie", "form", None),
    ("path", "simple", None),
    ("path", "label", None),
    ("path", "matrix", None),
]
VALUES: list[tuple[dict[str, Any], Any]] = [
    (TEXT, "plain"),
    (TEXT, "a b&=?"),
    ({"type": "integer"}, 5.0),
    ({"type": "boolean"}, True),
    ({"type": "number"}, 0.5),
    (LIST, ["a", "b&c"]),
    (OBJECT, {"a": "x y", "b": 1}),
]


FORMS = [
    (place, style, explode, schema, value)
    for place, style, only in STYLES
    for explode in (True, False)
    for schema, value in VALUES
    if only is None or (explode is only and isinstance(value, dict if style == "deepObject" else list))
]


@pytest.mark.parametrize(("place", "style", "explode", "schema", "value"), FORMS)
def test_each_style_is_written_as_the_second_judge_reads_it(
    place: str, style: str, explode: bool, schema: dict[str, Any], value: Any
) -> None:
    """In each place, for each kind of value that the style has."""
    said = operation("op", parameter("v", place, schema, style=style, explode=explode, required=True))
    whole, request = built(said, {"v": value}, "/a/{v}" if place == "path" else "/a")

    assert second_judge(whole, BASE, request) == []


BODIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "JSON": (bodied(of_parts("a"), "application/json"), {"a": ODD}),
    "JSON of a vendor, with parameters": (bodied(of_parts("a"), "application/vnd.owl+json; v=1"), {"a": ODD}),
    "JSON in another character set": (bodied(of_parts("a"), "application/json; charset=iso-8859-1"), {"a": ODD}),
    "any type": (bodied(of_parts("a"), "*/*"), {"a": ODD}),
    "a list": (bodied(LIST, "application/json"), {"body": [ODD]}),
    "null in a merge patch": (
        bodied({"type": "object", "properties": {"a": {"type": ["string", "null"]}}}, "application/merge-patch+json"),
        {"a": None},
    ),
    "a form": (bodied(of_parts("a"), FORM), {"a": ODD}),
    "a list in a form": (bodied(of_parts("a", schema=LIST), FORM), {"a": [ODD, "b"]}),
    "a deep object in a form": (
        bodied(of_parts("a", schema=OBJECT), FORM, encoding={"a": {"style": "deepObject", "explode": True}}),
        {"a": {"a": ODD, "b": 2}},
    ),
    "several parts": (bodied(of_parts("a", "b"), MULTIPART), {"a": ODD, "b": "x"}),
    "text": (bodied(TEXT, "text/plain"), {"body": ODD}),
    "text in another character set": (bodied(TEXT, "text/plain; charset=iso-8859-1"), {"body": ODD}),
    "alternatives": (
        bodied({"oneOf": [of_parts("a"), of_parts("b")]}, "application/json"),
        {"body": {"a": ODD}},
    ),
    "no argument": (bodied({"type": "object", "properties": {"a": TEXT}}, "application/json"), {}),
    "an optional body without arguments": (
        bodied({"type": "object", "properties": {"a": TEXT}}, "application/json", required=False),
        {},
    ),
    "only a query": ({"parameters": [parameter("q", "query", TEXT)]}, {"q": ODD}),
}


@pytest.mark.parametrize("method", ["post", "put", "patch", "delete", "get"])
@pytest.mark.parametrize(("said", "arguments"), BODIES.values(), ids=BODIES)
def test_each_body_is_written_as_the_second_judge_reads_it(
    said: dict[str, Any], arguments: dict[str, Any], method: str
) -> None:
    """With each method, also those for which a body is unusual: OpenAPI 3.1 has it for all of them."""
    whole, request = built({**operation("op"), **said}, arguments, method=method)

    assert second_judge(whole, BASE, request) == []


PLANTED: dict[str, dict[str, Any]] = {
    "a parameter is missing": {"url": f"{BASE}/a?l=x"},
    "a number is none": {"url": f"{BASE}/a?n=owl&l=x"},
    "another path": {"url": f"{BASE}/b?n=1"},
    "another service": {"url": "http://larks.test/a?n=1"},
    "another method": {"method": "PUT"},
    "another media type": {"headers": {"Content-Type": "text/plain"}},
    "a field of the body has another type": {"body": b'{"a":5}'},
    "a field of the body is missing": {"body": b"{}"},
    "no body": {"body": b""},
}


@pytest.mark.parametrize("wrong", PLANTED.values(), ids=PLANTED)
def test_the_second_judge_finds_planted_faults(wrong: dict[str, Any]) -> None:
    """None of them looks like a disagreement that is known."""
    numbers = parameter("n", "query", {"type": "integer"}, required=True)
    said = operation("op", numbers, parameter("l", "query", LIST), requestBody=json_body(of_parts("a")))
    whole, request = built(said, {"n": 1, "l": ["x"], "a": "y"}, method="post")

    assert second_judge(whole, BASE, request) == []
    assert second_judge(whole, BASE, replace(request, **wrong)) != []


def test_each_disagreement_says_why() -> None:
    """In a sentence."""
    assert all(why.startswith("It ") and why.endswith(".") for *_, why in DISAGREEMENTS)


def in_path(schema: Any = None, **more: Any) -> dict[str, Any]:
    return operation("op", parameter("v", "path", schema, **more))


REFUSED: dict[str, tuple[dict[str, Any], Any, str]] = {
    "a slash in the path": (in_path(), "a/b", "v has '/', which could lead to another operation."),
    "an encoded slash": (in_path(), "a%252Fb", "v has '/', which could lead to another operation."),
    "a backslash": (in_path(), "a\\b", r"v has '\\', and is a part of the path."),
    "a segment of dots": (in_path(), "..", "a segment would be '.' or '..'."),
    "an empty segment": (in_path(), "", "v is empty, and is a part of the path."),
    "a list without items in the path": (in_path(), [None], "v is empty, and is a part of the path."),
    "null in the path": (in_path(), None, "v is missing, and is a part of the path."),
    "text that is encoded too often": (in_path(), f"%{'25' * 20}2F", "percent-encoded too many times."),
    "a list with a slash": (
        in_path({"type": "array"}),
        ["a", "b/c"],
        "v has '/', which could lead to another operation.",
    ),
    "a member's name": (in_path({"type": "object"}), {"a/b": 1}, "v has '/', which could lead to another operation."),
    "a label of a dot": (in_path(TEXT, style="label"), ".", "a segment would be '.' or '..'."),
    "a matrix": (
        in_path({"type": "object"}, style="matrix"),
        {"a": "b%2fc"},
        "v has '/', which could lead to another operation.",
    ),
    "a line break in a header": (
        operation("op", parameter("v", "header")),
        "a\r\nX: b",
        "v has characters that a header cannot have.",
    ),
    **{
        f"a required {place} of {value!r}": (
            operation("op", parameter("v", place, required=True, style=style, explode=True)),
            value,
            "v is required, and an empty value would leave it out of the request.",
        )
        for place, style, value in list[tuple[str, str, Any]](
            [
                ("query", "form", []),
                ("query", "form", None),
                ("query", "form", {}),
                ("query", "deepObject", {"a": None}),
                ("cookie", "form", []),
                ("cookie", "form", None),
            ]
        )
    },
    **{
        f"a required field of {value!r} in {media_type}": (
            {**operation("op"), **bodied(of_parts("v", schema={"nullable": True}), media_type)},
            value,
            "v is required, and an empty value would leave it out of the request.",
        )
        for media_type in (FORM, MULTIPART)
        for value in list[Any]([[], [None], None])
    },
    "a character that the body's set lacks": (
        {**operation("op"), **bodied(TEXT, "text/plain; charset=ascii")},
        "ü",
        "The body is sent in ascii, which does not have all of its characters.",
    ),
    "bytes that are no base64": (
        {**operation("op"), **bodied({}, "application/octet-stream")},
        "ü",
        "body is no base64",
    ),
}


@pytest.mark.parametrize(("said", "value", "words"), REFUSED.values(), ids=REFUSED)
def test_a_value_that_would_make_another_request_is_refused(said: dict[str, Any], value: Any, words: str) -> None:
    """One table for all of them: nothing is sent, and the words name the argument without a path to it."""
    name = "v" if said["parameters"] or "v" in str(said.get("requestBody")) else "body"

    with pytest.raises(ValueRefused, match=words.replace("(", r"\(")):
        built(said, {name: value}, "/a/{v}" if "'path'" in str(said) else "/a", "post")
