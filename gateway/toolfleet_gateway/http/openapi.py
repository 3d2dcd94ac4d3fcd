"""Writes the OpenAPI 3.1 document of routes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from importlib.metadata import version
from typing import Any

from pydantic import BaseModel, RootModel
from pydantic.json_schema import models_json_schema

from toolfleet_gateway.http.problems import MEDIA_TYPE, ProblemBody, title_of
from toolfleet_gateway.http.routes import Answer, AnyRoute, HeaderParameter
from toolfleet_gateway.http.streams import LAST

_REF = "#/components/schemas/{model}"
_OF_ALL = (400, 421, 500)
_OF_KNOWN = (401, 403, 429, 503)  # of routes that ask who it is
_OF_BODIES = (408, 413, 415)

Json = dict[str, Any]


def openapi_document(routes: Sequence[AnyRoute], *, root_path: str = "") -> Json:
    """The document of these routes, served below `root_path`."""
    models = sorted(_models_of(routes), key=lambda model: model.__name__)
    _, schemas = models_json_schema([(model, "validation") for model in models], ref_template=_REF)
    paths: dict[str, Json] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Toolfleet gateway",
            "version": version("toolfleet"),
            "description": "Calls tools through the fleet, follows and cancels calls.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": root_path or "/"}],
        "paths": paths,
        "components": {
            "schemas": {name: schema for name, schema in schemas["$defs"].items() if "$ref" not in schema},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "An API key, or an OAuth token."},
                "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            },
        },
        "security": [{"bearer": []}, {"apiKey": []}],
    }


def _models_of(routes: Sequence[AnyRoute]) -> set[type[BaseModel]]:
    found: set[type[BaseModel]] = {ProblemBody}
    for route in routes:
        answers = route.answers.values()
        data = (model for answer in answers for model in answer.events.values())
        found.update(model for model in (route.body, *(answer.model for answer in answers), *data) if model)
    return found


def _operation(route: AnyRoute) -> Json:
    operation: Json = {
        "operationId": route.name,
        "summary": route.summary,
        "tags": [route.tag],
        "responses": {str(status): _answer(answer) for status, answer in sorted(route.answers.items())},
    }
    statuses = {*_OF_ALL, *route.problems, *(() if route.is_public else _OF_KNOWN)}
    statuses.update(_OF_BODIES if route.body else ())
    for status in sorted(statuses - set(route.answers)):
        operation["responses"][str(status)] = _problem(status)
    if parameters := [*_path_parameters(route), *_query_parameters(route), *map(_header, route.headers)]:
        operation["parameters"] = parameters
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": _ref(route.body)}}}
    if route.is_public:
        operation["security"] = []
    return operation


def _answer(answer: Answer) -> Json:
    said: Json = {"description": answer.description}
    if answer.model is not None:
        said["content"] = {answer.media: {"schema": _ref(answer.model)}}
    elif answer.events:
        said["content"] = {answer.media: {"schema": _event(answer.events)}}
    elif answer.media != "application/json":
        said["content"] = {answer.media: {"schema": {"type": "string"}}}
    if answer.headers:
        said["headers"] = {
            name: {"description": text, "schema": {"type": "string"}} for name, text in answer.headers.items()
        }
    return said


def _event(kinds: Mapping[str, type[BaseModel] | None]) -> Json:
    """One event of a stream: before OpenAPI 3.2 the schema of `text/event-stream` is that of each."""
    of_all: dict[str, type[BaseModel] | None] = dict.fromkeys(LAST)
    return {"oneOf": [_event_of(kind, model) for kind, model in {**kinds, **of_all}.items()]}


def _event_of(kind: str, model: type[BaseModel] | None) -> Json:
    data: Json = {"type": "string", "contentMediaType": "application/json"}
    if model is not None:
        data["contentSchema"] = _ref(model)
    properties = {"event": {"type": "string", "const": kind}, "data": data, "id": {"type": "string"}}
    return {"type": "object", "properties": properties, "required": ["event", "data"]}


def _problem(status: int) -> Json:
    return {"description": title_of(status), "content": {MEDIA_TYPE: {"schema": _ref(ProblemBody)}}}


def _path_parameters(route: AnyRoute) -> list[Json]:
    names = re.findall(r"{(\w+)(?::\w+)?}", route.path)
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}} for name in names
    ]


def _query_parameters(route: AnyRoute) -> list[Json]:
    if route.query is None:
        return []
    schema = route.query.model_json_schema(ref_template=_REF)
    needed = set(schema.get("required", ()))
    return [
        {
            "name": name,
            "in": "query",
            "required": name in needed,
            "description": facts.get("description", name),
            "schema": {key: value for key, value in facts.items() if key != "description"},
        }
        for name, facts in schema.get("properties", {}).items()
    ]


def _header(parameter: HeaderParameter) -> Json:
    facts: Json = {"type": "string", "pattern": parameter.pattern}
    if parameter.pattern is None:
        facts["maxLength"] = parameter.most
    return {
        "name": parameter.name,
        "in": "header",
        "required": parameter.is_required,
        "description": parameter.description,
        "schema": {key: fact for key, fact in facts.items() if fact is not None},
    }


def _ref(model: type[BaseModel]) -> Json:
    """A reference to its schema, and not to one that is nothing but a reference: generators take that for a model of its own."""
    root: Any = model.model_fields["root"].annotation if issubclass(model, RootModel) else None
    has_own = isinstance(root, type) and (is_dataclass(root) or issubclass(root, BaseModel))
    return {"$ref": _REF.format(model=root.__name__ if has_own else model.__name__)}
