"""Asks the gateway's own routes in its own process, so that rights, refusals and audit lines are those of its REST clients."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json
from starlette.requests import Request

from toolfleet_gateway.auth.identity import Identity
from toolfleet_gateway.http.problems import invalid_request
from toolfleet_gateway.http.routes import AnyRoute, RouteRequest, faults_of

Json = Any
"""What a route has answered."""


@dataclass(frozen=True, slots=True)
class RouteQuestion:
    """A request to a route: the parts of its path, its query, body and headers."""

    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, Any] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


NOTHING: Final = RouteQuestion()
"""A route is asked as it is."""


class GatewayRoutes:
    """The routes by their names. Each checks itself who may ask it."""

    def __init__(self, routes: Iterable[AnyRoute]) -> None:
        self._routes = {route.name: route for route in routes}
        self._readers = dict[type[Any], TypeAdapter[Any]]()

    async def ask(self, who: Identity, name: str, asked: RouteQuestion = NOTHING) -> Json:
        """Return the route's answer to `who`, as JSON; `None` for an answer without a body.

        Raises the route's errors, such as `Problem`.
        """
        route = self._routes[name]
        body = None if route.body is None else self._read(route.body, asked.body or {})
        query = None if route.query is None else self._read(route.query, asked.query, strict=False)
        answer = await route.handle(RouteRequest(who, body, query, asked.path, _request(route, asked.headers)))
        text = bytes(answer.body)
        return json.loads(text) if text else None

    def _read(self, model: type[Any], value: Mapping[str, Any], *, strict: bool = True) -> Any:
        reader = self._readers.get(model) or self._readers.setdefault(model, TypeAdapter(model))
        try:
            # As JSON, as over HTTP: only so pydantic takes lists for sets.
            return reader.validate_json(to_json(value), strict=True) if strict else reader.validate_python(dict(value))
        except ValidationError as exc:
            raise invalid_request(f"That cannot be asked: {faults_of(exc)}.") from None


def _request(route: AnyRoute, headers: Mapping[str, str]) -> Request:
    """A request without what the browser has sent: its headers are the console's."""
    return Request(
        {
            "type": "http",
            "method": route.method,
            "path": route.path,
            "query_string": b"",
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()],
        }
    )
