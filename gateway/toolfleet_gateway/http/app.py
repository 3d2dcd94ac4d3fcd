"""Builds the gateway's app out of its routes, and writes the OpenAPI 3.1 document of them all.

The app adds the routes that every gateway has: health, the metadata that says where tokens come from, and the document.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from importlib.metadata import version
from types import MappingProxyType
from typing import Any, Final

from pydantic import BaseModel, RootModel, TypeAdapter
from pydantic.json_schema import models_json_schema
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from toolfleet_gateway.auth.authenticator import WELL_KNOWN, ProtectedResource
from toolfleet_gateway.http.entrance import ANONYMOUS, Entrance
from toolfleet_gateway.http.middleware import (
    ROUTE,
    AccessLog,
    BodySize,
    BodyTime,
    RequestChecks,
    SecurityHeaders,
    ShownIds,
    check_headers,
    check_query,
    host_check,
    origin_check,
)
from toolfleet_gateway.http.problems import (
    MEDIA_TYPE,
    Problem,
    ProblemAnswers,
    ProblemBody,
    not_found,
    problem_of,
    title_of,
    unavailable,
)
from toolfleet_gateway.http.routes import (
    Answer,
    AnyRoute,
    ClientGone,
    HeaderParameter,
    Route,
    RouteRequest,
    declared_routes,
    json_answer,
    list_fields,
    read_bytes,
    read_json_body,
    read_query,
    route,
    text_answer,
)
from toolfleet_gateway.http.streams import LAST
from toolfleet_gateway.tracing import TracedPath
from toolfleet_registry.settings import Settings
from toolfleet_registry.spans import Tracing

_REF = "#/components/schemas/{model}"
_OF_ALL = (400, 421, 500)
_OF_KNOWN = (401, 403, 429, 503)  # of routes that ask who it is
_OF_BODIES = (408, 413, 415)

Json = dict[str, Any]

LIVE, READY = "/livez", "/readyz"
_READY_SECONDS = 2.0

BODY_SECONDS: Final = 30.0
"""How long a body may take to arrive: the largest one does within it at 140 kB a second, and one that trickles holds a connection no longer."""

_CALLS_IN_A_BODY = 4  # with the largest arguments: a batch of more large ones than that is sent in parts

ENDPOINT: Final = "/mcp"
"""The endpoint of the Model Context Protocol, which is a resource of its own: clients ask for tokens by its URL."""

_DOCUMENT = "/openapi.json"


def openapi_document(routes: Sequence[AnyRoute], *, root_path: str = "") -> Json:
    """Return the document of these routes, served below `root_path`."""
    models = sorted(_models_of(routes), key=lambda model: model.__name__)
    _, schemas = models_json_schema([(model, "validation") for model in models], ref_template=_REF)
    paths: dict[str, Json] = {}
    for each in routes:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each)
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
    for each in routes:
        answers = each.answers.values()
        data = (model for answer in answers for model in answer.events.values())
        found.update(model for model in (each.body, *(answer.model for answer in answers), *data) if model)
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
    """Return the schema of one event of a stream: before OpenAPI 3.2 that is the schema of `text/event-stream`."""
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
    """Return a reference to a model's schema. It never leads to another reference, which generators take for a model."""
    root: Any = model.model_fields["root"].annotation if issubclass(model, RootModel) else None
    has_own = isinstance(root, type) and (is_dataclass(root) or issubclass(root, BaseModel))
    return {"$ref": _REF.format(model=root.__name__ if has_own else model.__name__)}


def build_app(
    routes: Sequence[AnyRoute],
    entrance: Entrance,
    settings: Settings,
    *,
    is_ready: Callable[[], Awaitable[bool]],
    apps: Mapping[str, ASGIApp] = MappingProxyType({}),
    tracing: Tracing | None = None,
    shown: ShownIds = lambda _: {},
) -> Starlette:
    """Build the app of `routes`, and of the routes that every gateway has. A path is tried before those that could contain it.

    `apps` answer all requests at other paths, in a protocol of their own. `shown` as of `AccessLog`.
    """
    known = list(routes)
    known += declared_routes(
        _OwnRoutes(is_ready, lambda: openapi_document(known, root_path=settings.gateway_root_path)), tag="health"
    )
    by_path = dict[str, list[AnyRoute]]()
    for each in known:
        by_path.setdefault(each.path, []).append(each)
    by_endpoint = [
        (path, _traced(path, Endpoint(of_path, entrance), tracing))
        for path, of_path in sorted(
            by_path.items(), key=lambda each: [part.startswith("{") for part in each[0].split("/")]
        )
    ]
    app = Starlette(
        routes=[StarletteRoute(path, answer) for path, answer in (*by_endpoint, *apps.items())],
        middleware=_bounds(settings, shown),
        exception_handlers={HTTPException: _answer_of_router},
    )
    app.router.redirect_slashes = False
    return app


def _traced(path: str, app: ASGIApp, tracing: Tracing | None) -> ASGIApp:
    if tracing is None or path in {LIVE, READY}:  # these are asked every few seconds
        return app
    return TracedPath(path, app, tracing)


async def _answer_of_router(request: Request, error: Exception) -> Response:
    """Answer a request for an unknown path, for which Starlette would answer in plain text."""
    return problem_of(error).answer(request.url.path)


def _bounds(settings: Settings, shown: ShownIds) -> list[Middleware]:
    """Return the middleware, outermost first."""
    root = settings.gateway_root_path
    health = frozenset({root + LIVE, root + READY})
    hosts = settings.gateway_hosts
    checks = (check_headers, host_check(hosts, health), origin_check(settings.gateway_origins, hosts), check_query)
    return [
        Middleware(SecurityHeaders),
        Middleware(AccessLog, quiet=health, shown=shown),
        Middleware(ProblemAnswers),
        Middleware(RequestChecks, checks=checks),
        Middleware(BodySize, most=_CALLS_IN_A_BODY * settings.max_arguments_bytes),
        Middleware(BodyTime, seconds=BODY_SECONDS),
    ]


class _Empty(BaseModel, extra="forbid"):
    """The query of a route without query fields."""


class Endpoint:
    """The routes of one path, as an ASGI app. `HEAD` is `GET` without its body."""

    def __init__(self, routes: Sequence[AnyRoute], entrance: Entrance) -> None:
        self.path = routes[0].path
        self._entrance = entrance
        self._readers: dict[str, _Reader] = {route.method: _Reader(route) for route in routes}
        if "GET" in self._readers:
            self._readers["HEAD"] = self._readers["GET"]
        self._allow = ", ".join(sorted(self._readers))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Implement ASGI."""
        scope[ROUTE] = self.path
        reader = self._readers.get(scope["method"])
        if reader is None:
            raise _other_method(scope["method"], self._allow)
        request = Request(scope, receive)
        who = ANONYMOUS if reader.route.is_public else await self._entrance.admit(scope)
        scope["toolfleet.who"] = who
        try:
            body, query = await reader.body(scope, receive), reader.query(scope)
        except ClientGone:
            return
        asked = RouteRequest(who, body, query, scope.get("path_params", {}), request)
        answer = await reader.route.handle(asked)
        await answer(scope, receive, send)


class _Reader:
    def __init__(self, route: AnyRoute) -> None:
        self.route = route
        self._body: TypeAdapter[Any] | None = None if route.body is None else TypeAdapter(route.body)
        query: type[BaseModel] = route.query or _Empty
        self._names, self._query = list_fields(query), TypeAdapter[Any](query)
        self._nothing = None if route.query is None or _needs(route.query) else self._query.validate_python({})

    async def body(self, scope: Scope, receive: Receive) -> Any:
        if self.route.takes_bytes:
            return await read_bytes(receive)
        return None if self._body is None else read_json_body(scope, await read_bytes(receive), self._body)

    def query(self, scope: Scope) -> Any:
        if not scope["query_string"] and (self._nothing is not None or self.route.query is None):
            return self._nothing
        query = read_query(scope, self._query, self._names)
        return None if self.route.query is None else query


def _needs(model: type[BaseModel]) -> bool:
    return any(field.is_required() for field in model.model_fields.values())


def _other_method(method: str, allow: str) -> Problem:
    detail = f"This path does not take {method[:20]}: it takes {allow}."
    return Problem(405, "method_not_allowed", detail, headers={"allow": allow})


class HealthAnswer(BaseModel):
    """It is well."""

    status: str = "ok"
    """Always `ok`: else the answer is a problem."""


_WELL = {200: Answer("It is well.", HealthAnswer)}


class _OwnRoutes:
    """The routes of every gateway: `/livez`, `/readyz`, and the document. `is_ready` asks whether calls would get through now."""

    def __init__(self, is_ready: Callable[[], Awaitable[bool]], write: Callable[[], Json]) -> None:
        self._is_ready = is_ready
        self._document = cache(lambda: json.dumps(write(), separators=(",", ":")))

    @route("GET", LIVE, "Whether the process lives", _WELL, is_public=True)
    async def live(self, _: RouteRequest[None, None]) -> Response:
        return json_answer(HealthAnswer())

    @route("GET", READY, "Whether calls would get through", _WELL, problems=(503,), is_public=True)
    async def ready(self, _: RouteRequest[None, None]) -> Response:
        try:
            async with asyncio.timeout(_READY_SECONDS):
                if await self._is_ready():
                    return json_answer(HealthAnswer())
        except TimeoutError:
            pass
        raise unavailable("The gateway is not ready: it is ending, or Redis or the broker does not answer.")

    @route("GET", _DOCUMENT, "This document", {200: Answer("The OpenAPI document of this gateway.")}, is_public=True)
    async def openapi(self, _: RouteRequest[None, None]) -> Response:
        # Written when it is first asked for: that takes most of a gateway's start, and would hold up its other requests.
        return text_answer(await asyncio.to_thread(self._document))


def metadata_routes(resource: ProtectedResource | None) -> list[AnyRoute]:
    """Return the routes at which clients look for the metadata: with the gateway's path appended, and without.

    None: it takes no tokens.
    """
    if resource is None:
        return []
    where = resource.metadata_path

    def serving(path: str, number: int) -> AnyRoute:
        async def metadata(request: RouteRequest[None, None]) -> Response:
            return text_answer(json.dumps(resource.metadata(_endpoint_of(request.path))))

        return Route(
            method="GET", path=path, name=f"resourceMetadata{number or ''}", summary="Where tokens come from",
            handle=metadata, answers={200: Answer("The metadata of RFC 9728.")}, tag="health", is_public=True,
        )  # fmt: skip

    endpoints = ("", "/{endpoint}", "/{endpoint}/{module}")
    paths = dict.fromkeys([WELL_KNOWN, where(), *(where(endpoint) for endpoint in endpoints[1:])])
    return [serving(path, number) for number, path in enumerate(paths)]


def _endpoint_of(path: Mapping[str, str]) -> str:
    """Return the endpoint that the path names. Raises `Problem` if it is not a resource of its own."""
    names = [path[name] for name in ("endpoint", "module") if name in path]
    endpoint = "".join(f"/{name}" for name in names)
    if endpoint and f"/{names[0]}" != ENDPOINT:
        raise not_found("There is nothing at this path.")
    return endpoint
