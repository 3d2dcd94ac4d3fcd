"""Describes a page of the console: who may see it, what a visit of it has typed, and how it asks the gateway's own routes."""

import json
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import parse_qsl

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import compile_path

from toolfleet_gateway.auth.identity import Identity
from toolfleet_gateway.console.sessions import ConsoleSession
from toolfleet_gateway.http.problems import Problem, invalid_request, not_found
from toolfleet_gateway.http.routes import AnyRoute, RouteRequest, faults_of, read_bytes
from toolfleet_registry.access import Role
from toolfleet_registry.system.http_bodies import loads_strict

_MOST_FIELDS = 500
_OWN_SITES = frozenset({"same-origin", "none"})

Json = Any
"""What a route has answered."""

Tone = Literal["good", "bad"]
"""Whether something has gone well."""

PER_PAGE: Final = 50
"""Rows of one page: few enough to be read, and to be written within milliseconds."""

_SIZES = (10, 200)
_FARTHEST = 1_000_000


class FormFields(dict[str, str]):
    """The fields of a form, or of a query, by name; of one that comes twice the last."""

    def number(self, name: str, usual: int, *, least: int = 0, most: int) -> int:
        """A whole number; the usual one if it is none."""
        text = self.get(name, "")
        return min(max(int(text), least), most) if text.isascii() and text.isdigit() and len(text) < 10 else usual  # noqa: PLR2004 - digits

    def chosen(self, *names: str) -> dict[str, str]:
        """Return the non-empty ones of these fields."""
        return {name: value for name in names if (value := self.get(name, "").strip())}


async def read_form(request: Request) -> FormFields:
    """The form of a `POST`. Raises `Problem` and `ClientGone`."""
    if request.headers.get("sec-fetch-site", "same-origin") not in _OWN_SITES:
        raise Problem(403, "wrong_origin", "Another site has sent this form.")
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/x-www-form-urlencoded":
        raise Problem(415, "unsupported_media_type", "A form must be sent as application/x-www-form-urlencoded.")
    return fields_of((await read_bytes(request.receive)).decode("ascii", "replace"))


def fields_of(text: str) -> FormFields:
    """Parse a query or a form. Raises `Problem`."""
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="replace", max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise invalid_request(f"There are more than {_MOST_FIELDS} fields.") from None
    return FormFields(pairs)


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


@dataclass(frozen=True, slots=True)
class Visit:
    """A request of a signed-in user: `who`, in which `session`, with which `form` or `query`."""

    who: Identity
    session: ConsoleSession
    routes: GatewayRoutes
    request: Request
    path: Mapping[str, str]
    query: FormFields
    form: FormFields

    async def ask(self, name: str, asked: RouteQuestion = NOTHING) -> Json:
        """Ask a route of the gateway, as who is signed in."""
        return await self.routes.ask(self.who, name, asked)

    async def find(self, name: str, asked: RouteQuestion = NOTHING, *, absent: Collection[int] = (404,)) -> Json | None:
        """Ask a route as `ask` does; `None` if there is nothing, or who is signed in may not see it."""
        try:
            return await self.ask(name, asked)
        except Problem as exc:
            if exc.status not in absent:
                raise
            return None


@dataclass(frozen=True, slots=True)
class Shown:
    """A page that is to be written: a `template`, and what it says."""

    template: str
    title: str
    values: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200


@dataclass(frozen=True, slots=True)
class Done:
    """A change that was made: what came of it, and the page (below the console's path) that says so."""

    text: str
    path: str
    tone: Tone = "good"


Outcome: TypeAlias = Shown | Done | Response


@dataclass(frozen=True, slots=True)
class ConsolePage:
    """One method of one path below `/console`. Who has not the role gets neither the page nor a link to it."""

    method: Literal["GET", "POST"]
    path: str
    handle: Callable[[Visit], Awaitable[Outcome]]
    role: Role = "viewer"


class PagePaths:
    """The pages by their paths, in the order in which these are tried."""

    def __init__(self, pages: Sequence[ConsolePage]) -> None:
        self.pages = tuple(pages)
        self._patterns: list[tuple[re.Pattern[str], ConsolePage]] = [
            (compile_path(page.path)[0], page) for page in pages
        ]

    def find(self, method: str, path: str) -> tuple[ConsolePage, Mapping[str, str]]:
        """The page, and the parts of the path that it names. Raises `Problem`: 404, or 405."""
        found = [(page, match.groupdict()) for pattern, page in self._patterns if (match := pattern.match(path))]
        if not found:
            raise not_found("The console has no such page.")
        for page, parts in found:
            if page.method == method:
                return page, parts
        allowed = sorted({page.method for page, _ in found})
        raise Problem(405, "invalid_request", "This page is not asked so.", headers={"allow": ", ".join(allowed)})


@dataclass(frozen=True, slots=True)
class ListWindow:
    """The part of a list that is shown. One more row is requested, to see whether there is a next page."""

    limit: int
    offset: int

    @property
    def asked(self) -> dict[str, int]:
        """The query that fetches it."""
        return {"limit": self.limit + 1, "offset": self.offset}

    def shown(self, rows: Sequence[Any]) -> dict[str, Any]:
        """Return the template's values: the `rows`, and the offsets of the pages before and after, if there are any."""
        has_more = len(rows) > self.limit
        return {
            "rows": list(rows[: self.limit]),
            "window": self,
            "earlier": max(self.offset - self.limit, 0) if self.offset else None,
            "later": self.offset + self.limit if has_more else None,
        }

    def cut(self, rows: Sequence[Any]) -> dict[str, Any]:
        """The same of a list that is there as a whole."""
        return self.shown(rows[self.offset : self.offset + self.limit + 1]) | {"count": len(rows)}


def window_of(query: FormFields) -> ListWindow:
    """Parse the URL's query; invalid numbers are ignored."""
    limit = query.number("limit", PER_PAGE, least=_SIZES[0], most=_SIZES[1])
    return ListWindow(limit, query.number("offset", 0, most=_FARTHEST))


def json_object(text: str) -> dict[str, Any]:
    """Read a call's arguments that were typed as JSON. Raises `Problem`."""
    try:
        value = loads_strict(text.encode("utf-8", "replace"))
    except ValueError as exc:
        raise invalid_request(f"The arguments are {exc}.") from None
    if not isinstance(value, dict):
        raise invalid_request("The arguments must be a JSON object.")
    return value
