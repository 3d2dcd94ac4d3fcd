"""The gateway's OpenAPI document is valid, and says all that routes answer."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from redis.asyncio import Redis

from toolfleet import ToolFleet
from toolfleet_gateway.gateway import routes_of
from toolfleet_gateway.http.app import openapi_document
from toolfleet_gateway.http.streams import OpenStreams
from toolfleet_registry.agents.data_guards import DataGuards
from toolfleet_registry.settings import Settings
from toolfleet_tasks.aio import Closing
from toolfleet_tasks.operations.call_index import CallIndex

_WITHOUT_BODY = frozenset({"204", "304"})
_ALWAYS_THERE = frozenset({("LogMessage", "data")})  # what a tool says may be null, and is written so


@pytest.fixture
def document() -> dict[str, Any]:
    settings = Settings(redis_url="redis://127.0.0.1:1/0")
    closing = Closing()
    streams = OpenStreams(1, closing, None, None)  # type: ignore[arg-type] # nobody opens one
    calls = CallIndex(Redis(), settings, DataGuards(settings))  # nobody asks it
    routes = routes_of(ToolFleet(settings=settings), settings, closing, streams, calls)
    return openapi_document(routes, root_path="/fleet")


def test_the_document_is_valid(document: dict[str, Any]) -> None:
    """It is an OpenAPI 3.1 document, below the path that the gateway is served at."""
    from openapi_spec_validator import OpenAPIV31SpecValidator  # large, and each process reads this file

    OpenAPIV31SpecValidator(document).validate()

    assert document["openapi"].startswith("3.1")
    assert document["servers"] == [{"url": "/fleet"}]


def test_each_operation_has_a_name_of_its_own(document: dict[str, Any]) -> None:
    """Generated clients name their functions so."""
    names = [operation["operationId"] for path in document["paths"].values() for operation in path.values()]

    assert len(names) > 5
    assert len(set(names)) == len(names)


def test_each_operation_says_its_problems(document: dict[str, Any]) -> None:
    """Whoever asks for a key answers 401, and whoever takes a body 413 and 415; each is a problem."""
    begin = document["paths"]["/calls"]["post"]["responses"]

    assert {"200", "202", "400", "401", "403", "404", "409", "413", "415", "422", "429", "503"} <= set(begin)
    assert set(begin["413"]["content"]) == {"application/problem+json"}
    assert {parameter["name"] for parameter in document["paths"]["/calls"]["post"]["parameters"]} == {
        "Idempotency-Key",
        "Prefer",
    }


def test_each_operation_says_what_a_generated_client_needs(document: dict[str, Any]) -> None:
    """Its name, what it takes and what it answers by a schema, events and answers without a body aside; and a problem's schema."""
    assert [fault for path, operations in document["paths"].items() for fault in _missing(path, operations)] == []


def test_no_schema_is_only_another_ones_name(document: dict[str, Any]) -> None:
    """Generators make a model of each schema, and of two with one title none: each is there once, and each reference leads to one."""
    schemas: dict[str, Any] = document["components"]["schemas"]
    titles = [schema.get("title", name) for name, schema in schemas.items()]
    answers = {
        operation["operationId"]: operation["responses"]["200"]["content"]["application/json"]["schema"]["$ref"]
        for path in document["paths"].values()
        for operation in path.values()
        if operation["operationId"] in {"getFleetStatus", "showCall", "countCalls", "getWakeup", "listCalls"}
    }

    assert [name for name, schema in schemas.items() if "$ref" in schema] == []
    assert len(set(titles)) == len(titles)
    assert _reached(document["paths"], schemas) <= schemas.keys()
    assert {reference.rpartition("/")[2] for reference in answers.values()} == {
        "FleetStatus",
        "CallStory",
        "CallCharts",
        "KeptWake",
        "FoundCalls",
    }


def test_what_may_be_missing_is_optional(document: dict[str, Any]) -> None:
    """Answers leave out what is `None`: no field that may be null is required, in no model that any route answers."""
    schemas: dict[str, Any] = document["components"]["schemas"]
    answered = _reached([one["responses"] for path in document["paths"].values() for one in path.values()], schemas)
    required = {(name, field) for name in answered for field in schemas[name].get("required", ())}
    faults = {(name, field) for name, field in required if _is_nullable(schemas[name]["properties"][field], schemas)}

    assert {"KeptWake", "FleetStatus", "ProblemBody"} <= answered
    assert faults == _ALWAYS_THERE


def _reached(part: Any, schemas: dict[str, Any]) -> set[str]:
    """The names of all schemas that a part of the document refers to, and of those that these refer to."""
    found, parts = set[str](), [part]
    while parts:
        match parts.pop():
            case {"$ref": str(reference)}:
                name = reference.rpartition("/")[2]
                parts += [] if name in found else [schemas[name]]
                found.add(name)
            case dict() as named:
                parts += named.values()
            case list() as several:
                parts += several
            case _:
                pass
    return found


def _is_nullable(schema: dict[str, Any], schemas: dict[str, Any]) -> bool:
    match schema:
        case {"$ref": str(reference)}:
            return _is_nullable(schemas[reference.rpartition("/")[2]], schemas)
        case {"anyOf": choices} | {"oneOf": choices}:
            return any(_is_nullable(choice, schemas) for choice in choices)
        case {"const": value}:
            return value is None
        case {"enum": values}:
            return None in values
        case {"type": kind}:
            return "null" in ([kind] if isinstance(kind, str) else kind)
        case _:
            return True


def _missing(path: str, operations: dict[str, Any]) -> Iterator[str]:
    for method, operation in operations.items():
        place = f"{method} {path}"
        if not re.fullmatch(r"[a-z][A-Za-z0-9]*", operation["operationId"]):
            yield f"{place}: {operation['operationId']!r} is no name of a function"
        named = {each["name"] for each in operation.get("parameters", ()) if each["in"] == "path"}
        if named != set(re.findall(r"{(\w+)}", path)):
            yield f"{place}: takes {named}"
        bodies: dict[str, Any] = {"request": operation["requestBody"]} if "requestBody" in operation else {}
        for what, body in {**bodies, **operation["responses"]}.items():
            contents: dict[str, dict[str, Any]] = body.get("content", {"": {}})
            media, content = next(iter(contents.items()))
            expected = "application/problem+json" if what >= "400" and what != "request" else media
            if what not in _WITHOUT_BODY and (media != expected or not content.get("schema")):
                yield f"{place}: {what} has no schema, but {media!r}"
