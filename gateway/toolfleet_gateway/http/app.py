"""Builds the gateway's app out of routes: bounds around it, one endpoint a path, and the document of all."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, TypeAdapter
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolfleet_gateway.http.access_log import ROUTE, AccessLog, ShownIds
from toolfleet_gateway.http.answers import text_answer
from toolfleet_gateway.http.body import ClientGone, list_fields, read_bytes, read_json_body, read_query
from toolfleet_gateway.http.bounds import BodySize, BodyTime, HeaderRules, HostCheck, OriginCheck, QueryKeys
from toolfleet_gateway.http.entrance import ANONYMOUS, Entrance
from toolfleet_gateway.http.health import LIVE, READY, health_routes
from toolfleet_gateway.http.openapi import Json, openapi_document
from toolfleet_gateway.http.problem_answers import ProblemAnswers, problem_of
from toolfleet_gateway.http.problems import Problem
from toolfleet_gateway.http.routes import Answer, AnyRoute, Route, RouteRequest
from toolfleet_gateway.tracing import TracedPath
from toolfleet_registry.config.gateway_settings import GatewaySettings
from toolfleet_registry.tracing.port import Tracing

_DOCUMENT = "/openapi.json"

_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
]
_SECURITY_HEADERS = frozenset(name for name, _ in _HEADERS)


def build_app(  # noqa: PLR0913 - what is not obvious has a default
    routes: Sequence[AnyRoute],
    entrance: Entrance,
    settings: GatewaySettings,
    *,
    is_ready: Callable[[], Awaitable[bool]],
    apps: Mapping[str, ASGIApp] = MappingProxyType({}),
    tracing: Tracing | None = None,
    shown: ShownIds = lambda _: {},
) -> Starlette:
    """Build the app of `routes`, and of the routes that every gateway has. A path is tried before those whose part it could be.

    `apps` answer all requests at other paths, in a protocol of their own. `shown` as of `AccessLog`.
    """
    known = [*routes, *health_routes(is_ready)]
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


def _bounds(settings: GatewaySettings, shown: ShownIds) -> list[Middleware]:
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
        Middleware(BodySize, most=settings.gateway_max_body_bytes),
        Middleware(BodyTime, seconds=settings.gateway_body_seconds),
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


class SecurityHeaders:
    """Adds security headers; an answer's own ones, such as the `Cache-Control` of one with an `ETag`, stay."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI."""

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = message["headers"]
                said = _SECURITY_HEADERS.intersection(name for name, _ in headers)
                message["headers"] = [*headers, *(one for one in _HEADERS if one[0] not in said)]
            await send(message)

        await self._app(scope, receive, sending if scope["type"] == "http" else send)
