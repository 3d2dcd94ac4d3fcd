"""Builds the gateway's app out of its routes, and of those that every gateway has: health, where tokens come from, the document of all."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, Final

from pydantic import BaseModel, TypeAdapter
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
    HeaderRules,
    HostCheck,
    OriginCheck,
    QueryKeys,
    SecurityHeaders,
    ShownIds,
)
from toolfleet_gateway.http.openapi import Json, openapi_document
from toolfleet_gateway.http.problems import Problem, ProblemAnswers, not_found, problem_of, unavailable
from toolfleet_gateway.http.routes import (
    Answer,
    AnyRoute,
    ClientGone,
    Route,
    RouteRequest,
    json_answer,
    list_fields,
    read_bytes,
    read_json_body,
    read_query,
    text_answer,
)
from toolfleet_gateway.tracing import TracedPath
from toolfleet_registry.settings import Settings
from toolfleet_registry.spans import Tracing

LIVE, READY = "/livez", "/readyz"
_READY_SECONDS = 2.0

BODY_SECONDS: Final = 30.0
"""How long a body may take to arrive: the largest one does within it at 140 kB a second, and one that trickles holds a connection no longer."""

_CALLS_IN_A_BODY = 4  # with the largest arguments: a batch of more large ones than that is sent in parts

ENDPOINT: Final = "/mcp"
"""The endpoint of the Model Context Protocol, which is a resource of its own: clients ask for tokens by its URL."""

_DOCUMENT = "/openapi.json"


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
    """Build the app of `routes`, and of the routes that every gateway has. A path is tried before those whose part it could be.

    `apps` answer all requests at other paths, in a protocol of their own. `shown` as of `AccessLog`.
    """
    known = [*routes, *_health_routes(is_ready)]
    known.append(_document_route(lambda: openapi_document(known, root_path=settings.gateway_root_path)))
    by_path = dict[str, list[AnyRoute]]()
    for route in known:
        by_path.setdefault(route.path, []).append(route)
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
    """A path that no route has; Starlette would answer in plain text."""
    return problem_of(error).answer(request.url.path)


def _bounds(settings: Settings, shown: ShownIds) -> list[Middleware]:
    """Outermost first."""
    root = settings.gateway_root_path
    health = frozenset({root + LIVE, root + READY})
    hosts = settings.gateway_hosts
    return [
        Middleware(SecurityHeaders),
        Middleware(AccessLog, quiet=health, shown=shown),
        Middleware(ProblemAnswers),
        Middleware(HeaderRules),
        Middleware(HostCheck, hosts=hosts, paths=health),
        Middleware(OriginCheck, origins=settings.gateway_origins, hosts=hosts),
        Middleware(QueryKeys),
        Middleware(BodySize, most=_CALLS_IN_A_BODY * settings.max_arguments_bytes),
        Middleware(BodyTime, seconds=BODY_SECONDS),
    ]


def _document_route(write: Callable[[], Json]) -> AnyRoute:
    @cache
    def text() -> str:
        return json.dumps(write(), separators=(",", ":"))

    async def document(_: RouteRequest[None, None]) -> Response:
        # Written when it is first asked for: that takes most of a gateway's start, and would hold up its other requests.
        return text_answer(await asyncio.to_thread(text))

    return Route(
        method="GET",
        path=_DOCUMENT,
        name="openapi",
        summary="This document",
        handle=document,
        answers={200: Answer("The OpenAPI document of this gateway.", media="application/json")},
        tag="health",
        is_public=True,
    )


class _Empty(BaseModel, extra="forbid"):
    """The query of a route that takes none."""


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
        """As ASGI."""
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


def _health_routes(is_ready: Callable[[], Awaitable[bool]]) -> list[AnyRoute]:
    """`/livez` and `/readyz`. `is_ready` asks whether calls would get through now."""

    async def live(_: RouteRequest[None, None]) -> Response:
        return json_answer(HealthAnswer())

    async def ready(_: RouteRequest[None, None]) -> Response:
        try:
            async with asyncio.timeout(_READY_SECONDS):
                if await is_ready():
                    return json_answer(HealthAnswer())
        except TimeoutError:
            pass
        raise unavailable("The gateway is not ready: it is ending, or Redis or the broker does not answer.")

    answers = {200: Answer("It is well.", HealthAnswer)}
    return [
        Route(
            method="GET",
            path=LIVE,
            name="live",
            summary="Whether the process lives",
            handle=live,
            answers=answers,
            tag="health",
            is_public=True,
        ),
        Route(
            method="GET",
            path=READY,
            name="ready",
            summary="Whether calls would get through",
            handle=ready,
            answers=answers,
            problems=(503,),
            tag="health",
            is_public=True,
        ),
    ]


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
    """The endpoint that is asked about. Raises `Problem` for one that is no resource of its own."""
    names = [path[name] for name in ("endpoint", "module") if name in path]
    endpoint = "".join(f"/{name}" for name in names)
    if endpoint and f"/{names[0]}" != ENDPOINT:
        raise not_found("There is nothing at this path.")
    return endpoint
