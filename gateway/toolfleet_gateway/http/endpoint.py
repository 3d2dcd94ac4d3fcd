"""Answers the requests of one path: finds the method's route, who asks, and what they send."""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, TypeAdapter
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from toolfleet_gateway.http.access_log import ROUTE
from toolfleet_gateway.http.body import ClientGone, list_fields, read_bytes, read_json_body, read_query
from toolfleet_gateway.http.entrance import ANONYMOUS, Entrance
from toolfleet_gateway.http.problems import Problem
from toolfleet_gateway.http.routes import AnyRoute, RouteRequest


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
