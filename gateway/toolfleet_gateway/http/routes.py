"""Describes a route, reads its requests into models, and writes its answers; the OpenAPI document is made of routes."""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Generic, Literal, TypeAlias, TypeVar, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope

from toolfleet_gateway.auth.identity import Identity
from toolfleet_gateway.http.problems import Problem, invalid_request
from toolfleet_registry.system.http_bodies import loads_strict, without_lone_surrogates

B = TypeVar("B")
Q = TypeVar("Q")

Method = Literal["GET", "POST", "PUT", "DELETE"]

M = TypeVar("M")

_MOST_FAULTS = 5  # that one answer names
_MOST_FIELDS = 100  # of a query

JSON = "application/json"
_FACTS = "toolfleet_route"  # the attribute of a method that has what `route` declares


@dataclass(frozen=True, slots=True)
class RouteRequest(Generic[B, Q]):
    """A request that was let in: `who` sends it, its `body` and `query` as the route's models have read them.

    `path` has the parts of the path that the route names. `raw` is Starlette's own, for headers and the like.
    """

    who: Identity
    body: B
    query: Q
    path: Mapping[str, str]
    raw: Request


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of a route: its body's `model`, if there is one, or another `media` type than JSON."""

    description: str
    model: type[BaseModel] | None = None
    media: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    """Header -> what it says."""
    events: Mapping[str, type[BaseModel] | None] = field(default_factory=dict)
    """Of a stream: the kinds of its own events, and the model of their data, if there is one."""


@dataclass(frozen=True, slots=True)
class HeaderParameter:
    """A header that a route takes."""

    name: str
    description: str
    most: int | None = 256
    """Characters; `None`: what is too long is not refused, or its pattern says it."""
    pattern: str | None = None
    """What it looks like, as a regular expression of ECMA-262; it bounds the length, too."""
    is_required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Route(Generic[B, Q]):
    """One method of one path. `name` is the operation's id in the OpenAPI document, and its name in generated clients.

    `handle` gets the request and answers it, or raises `Problem`. `problems`: the statuses of its possible problems, in
    addition to those of every route. `body` and `query` are read by their models; a route without a `body` does not
    read one.
    """

    method: Method
    path: str
    name: str
    summary: str
    handle: Callable[[RouteRequest[B, Q]], Awaitable[Response]]
    answers: Mapping[int, Answer]
    body: type[B] | None = None
    query: type[Q] | None = None
    headers: tuple[HeaderParameter, ...] = ()
    problems: tuple[int, ...] = ()
    tag: str = "calls"
    is_public: bool = False
    """Whether it answers those who do not say who they are."""
    takes_bytes: bool = False
    """Whether the body is handed over as it came, for a route that verifies it first: it reads `body` by itself."""


AnyRoute: TypeAlias = Route[Any, Any]
Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Response]])


def route(
    method: Method, path: str, summary: str, answers: Mapping[int, Answer], **facts: Any
) -> Callable[[Handler], Handler]:
    """Declare a method of a class as a route. See `Route` for the `facts`.

    The method's name, such as `list_jobs`, makes the route's name, `listJobs`; the annotation of its request names the models of the
    body and the query.
    """

    def declared(handle: Handler) -> Handler:
        setattr(handle, _FACTS, {"method": method, "path": path, "summary": summary, "answers": answers, **facts})
        return handle

    return declared


def declared_routes(about: object, *, tag: str) -> list[AnyRoute]:
    """Return the routes that the class of an object declares with `route`, in their order."""
    return [
        _declared_route(getattr(about, name), {"tag": tag, **getattr(each, _FACTS)})
        for name, each in vars(type(about)).items()
        if hasattr(each, _FACTS)
    ]


def _declared_route(
    handle: Callable[[RouteRequest[Any, Any]], Awaitable[Response]], facts: Mapping[str, Any]
) -> AnyRoute:
    first, *others = handle.__name__.split("_")
    asked = next(hint for hint in get_type_hints(handle).values() if get_origin(hint) is RouteRequest)
    body, query = (None if model is type(None) else model for model in get_args(asked))
    name = first + "".join(word.capitalize() for word in others)
    return Route(**{"name": name, "handle": handle, "body": body, "query": query, **facts})


class ClientGone(Exception):
    """The client has closed the connection before its request was complete: no answer is needed."""


async def read_bytes(receive: Receive) -> bytes:
    """Return the whole body, within the bounds around `receive`. Raises `ClientGone`."""
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body", False):
        return bytes(message.get("body", b""))
    parts = list[bytes]()
    while message["type"] == "http.request":
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)
        message = await receive()
    raise ClientGone


def read_json_body(scope: Scope, data: bytes, adapter: TypeAdapter[M]) -> M:
    """Parse the body by its model. Raises `Problem`: 415 if the header says it is no JSON, 400 if it is invalid.

    Strict: a text is no number here, and 1 is not true: what the OpenAPI document does not allow is refused.
    """
    _check_media_type(scope)
    if not data:
        raise invalid_request("The request has no body: send a JSON object.")
    try:
        value = loads_strict(data)
    except ValueError as exc:
        raise invalid_request(f"The body is {exc}.") from None
    try:
        # As JSON once more: only so pydantic is strict about JSON's own types, and takes lists for sets.
        return adapter.validate_json(to_json(value), strict=True)
    except ValidationError as exc:
        raise invalid_request(f"The body is not as this route takes it: {faults_of(exc)}.") from None


def read_query(scope: Scope, adapter: TypeAdapter[M], names: Mapping[str, bool]) -> M:
    """Parse the query by its model; `names` are its fields, and whether each is a list. Raises `Problem` (400)."""
    try:
        pairs = parse_qsl(
            scope["query_string"].decode("latin-1"),
            keep_blank_values=True,
            strict_parsing=False,
            errors="strict",
            max_num_fields=_MOST_FIELDS,
        )
    except ValueError:
        raise invalid_request(f"The query is not UTF-8, or has more than {_MOST_FIELDS} fields.") from None
    values = dict[str, Any]()
    for name, value in pairs:
        if names.get(name):
            values.setdefault(name, []).append(value)
        elif name in values:
            raise invalid_request(f"The query has {name[:80]!r} twice.")
        else:
            values[name] = value
    try:
        return adapter.validate_python(values)
    except ValidationError as exc:
        raise invalid_request(f"The query is not as this route takes it: {faults_of(exc)}.") from None


@cache  # a schema takes milliseconds, and many routes have the same model
def list_fields(model: type[BaseModel]) -> Mapping[str, bool]:
    """Return a query model's fields by the names that clients use, and whether each is a list."""
    properties = model.model_json_schema()["properties"] if model.model_fields else {}
    return {name: schema.get("type") == "array" for name, schema in properties.items()}


def faults_of(error: ValidationError) -> str:
    """Return what is wrong, field by field, without the values: they may be secret."""
    faults = error.errors(include_url=False, include_input=False, include_context=False)
    said = [f"{_place(fault['loc'])}: {fault['msg']}" for fault in faults[:_MOST_FAULTS]]
    more = len(faults) - len(said)
    return "; ".join([*said, f"and {more} more"] if more > 0 else said)


def _place(loc: tuple[int | str, ...]) -> str:
    return json.dumps(".".join(str(part) for part in loc)[:120], ensure_ascii=True) if loc else "the whole"


def _check_media_type(scope: Scope) -> None:
    content_type = encoding = b""
    for name, value in scope["headers"]:
        if name == b"content-type":
            content_type = value
        elif name == b"content-encoding":
            encoding = value
    if content_type != b"application/json":
        media, _, parameters = content_type.lower().partition(b";")
        charset = parameters.strip().replace(b'"', b"")
        if media.strip() != b"application/json" or charset not in {b"", b"charset=utf-8"}:
            raise Problem(
                415,
                "unsupported_media_type",
                "The body must be JSON in UTF-8: send Content-Type: application/json.",
                headers={"accept": "application/json"},
            )
    if encoding.strip().lower() not in {b"", b"identity"}:
        raise Problem(415, "unsupported_media_type", "The body must not be compressed: send no Content-Encoding.")


def json_answer(model: BaseModel, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a model as JSON, without `None` values."""
    return text_answer(json_text(model), status, headers)


def json_text(model: BaseModel, *, with_none: bool = False) -> str:
    """Return a model as JSON, with or without `None` values.

    A lone surrogate, which texts of agents may have, becomes U+FFFD.
    """
    try:
        return model.model_dump_json(exclude_none=not with_none, by_alias=True)
    except PydanticSerializationError:  # no UTF-8 has such a half
        fields = model.model_dump(exclude_none=not with_none, by_alias=True)
        plain = json.loads(json.dumps(fields, default=to_jsonable_python))
        return to_json(without_lone_surrogates(plain), inf_nan_mode="null").decode()


def text_answer(text: str | bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return an answer of text that is JSON already."""
    return Response(text, status, headers, media_type=JSON)


def nothing(status: int = 204) -> Response:
    """Return an answer without a body."""
    return Response(None, status)
