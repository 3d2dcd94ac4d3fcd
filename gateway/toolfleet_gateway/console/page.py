"""Describes a page of the console: who may see it, its form and query, and how it asks the gateway's own routes; and writes it.

Jinja templates write the pages and escape all values. The console's own files are served from here, too.
"""

import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import parse_qsl, quote, urlencode

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup
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
from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.contracts.limits import LIMITS
from toolfleet_registry.policy.hints import TONES
from toolfleet_registry.policy.turns import words_of
from toolfleet_registry.system import fleet_clock
from toolfleet_registry.system.http_bodies import loads_strict
from toolfleet_tasks.approvals.views import readable

_LONGEST_TEXT: Final = 20_000
"""The most characters of a value that a page shows."""

_NONE: Final = "\N{EN DASH}"
"""Stands in place of a missing value."""

_MINUTE, _HOUR, _DAY = 60.0, 3_600.0, 86_400.0
_YEARS = 253_402_300_799.0  # what a `datetime` takes

_SHORT_LABELS = {"daily_limit": "A day", "cooldown_seconds": "Pause"}
_LIMIT_LABELS = {name: _SHORT_LABELS.get(name) or name.replace("_", " ").capitalize() for name in LIMITS}

_MEDIA = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_DIGITS = 12

_MOST_FIELDS = 500
_OWN_SITES = frozenset({"same-origin", "none"})

Json = Any
"""The answer of a route."""

Fields: TypeAlias = Mapping[str, Any]
_PARAMETER = re.compile(r"{(\w+)}")

Tone = Literal["good", "bad"]
"""Whether something has gone well."""

PER_PAGE: Final = 50
"""Rows of one page: few enough to be read, and to be written within milliseconds."""

_SIZES = (10, 200)
_FARTHEST = 1_000_000


_TEMPLATES: Final = Path(__file__).parent / "templates"


class PageTemplates:
    """The templates of a console at `path`. `asset` gives the address of a file below that."""

    def __init__(self, path: str, asset: Callable[[str], str]) -> None:
        self.path = path
        self._templates = Environment(
            loader=FileSystemLoader(_TEMPLATES),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._templates.filters |= {
            "when": when,
            "span": _span,
            "limits": _limits,
            "turns": words_of,
            "millis": _millis,
            "pretty": _pretty,
            "readable": readable,
            "brief": _brief,
            "part": lambda text: quote(str(text), safe=""),
        }
        own: dict[str, Callable[..., str]] = {"at": self.at, "asset": lambda name: path + asset(name)}
        own["tone"] = lambda state: TONES.get(state, "bad")
        self._templates.globals.update(own, limit_labels=list(_LIMIT_LABELS.values()))

    def write(self, name: str, values: Mapping[str, Any]) -> str:
        """Return the text of a page, or of a part of one."""
        return self._templates.get_template(f"{name}.html").render(values)

    def at(self, below: str, **query: Any) -> str:
        """Return the address of a page with the non-empty fields of a query."""
        said = {name: value for name, value in query.items() if value not in {None, ""}}
        return f"{self.path}{below}" + (f"?{urlencode(said)}" if said else "")


def when(at: float | None) -> Markup | str:
    """Return a moment (seconds since the epoch) in UTC, with how far it is from now; a dash if there is none."""
    if not isinstance(at, int | float) or not 0 <= at <= _YEARS:
        return _NONE
    moment = datetime.fromtimestamp(at, UTC)
    away = at - fleet_clock.now()
    is_near = moment.year == datetime.fromtimestamp(fleet_clock.now(), UTC).year
    said = f"in {_span(away)}" if away > 0 else f"{_span(-away)} ago"
    return Markup('<time datetime="{}" title="{} UTC">{} <span class="quiet">{}</span></time>').format(
        moment.isoformat(timespec="seconds"),
        moment.strftime("%Y-%m-%d %H:%M:%S"),
        moment.strftime("%m-%d %H:%M:%S" if is_near else "%Y-%m-%d %H:%M:%S"),
        said,
    )


def _limits(tool: ToolDefinition) -> list[tuple[str, object]]:
    """Return the limits that a tool declares, each with its label; a dash for one that it does not have."""
    values = ((label, name, getattr(tool, name) or None) for name, label in _LIMIT_LABELS.items())
    return [(label, _span(value) if name.endswith("_seconds") else value or _NONE) for label, name, value in values]


def _span(seconds: float | None) -> str:
    """Return a duration in one or two units."""
    if not isinstance(seconds, int | float):
        return _NONE
    if seconds < _MINUTE:
        return f"{seconds:.0f} s" if seconds >= 1 or seconds == 0 else f"{seconds * 1000:.0f} ms"
    if seconds < _HOUR:
        return f"{seconds // _MINUTE:.0f} min {seconds % _MINUTE:.0f} s"
    if seconds < _DAY:
        return f"{seconds // _HOUR:.0f} h {seconds % _HOUR // _MINUTE:.0f} min"
    return f"{seconds // _DAY:.0f} d {seconds % _DAY // _HOUR:.0f} h"


def _millis(value: float | None) -> str:
    """Return milliseconds as text, from a second on in seconds."""
    if not isinstance(value, int | float):
        return _NONE
    return f"{value / 1000:.2f} s" if value >= 1_000 else f"{value:.0f} ms"  # noqa: PLR2004 - a second


def _pretty(value: Any) -> str:
    """Return a value as JSON on several lines; only its beginning if it is long."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    return (
        text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}\n… {len(text) - _LONGEST_TEXT} characters more"
    )


def _brief(value: Any, most: int = 120) -> str:
    """Return a text on one line, shortened if it is long."""
    text = " ".join(str("" if value is None else value).split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


STATIC: Final = Path(__file__).parent / "static"


@dataclass(frozen=True, slots=True)
class _StaticFile:
    content: bytes
    media: str
    version: str


class StaticFiles:
    """The files that browsers can load. Other names are not looked up."""

    def __init__(self) -> None:
        self._files = {
            path.relative_to(STATIC).as_posix(): _read(path)
            for path in sorted(STATIC.rglob("*"))
            if path.suffix in _MEDIA
        }

    def address(self, name: str) -> str:
        """Return the path below the console's, with the digest of the file. Raises `KeyError`."""
        return f"/static/{name}?v={self._files[name].version}"

    def answer(self, request: Request, name: str) -> Response:
        """Return the file. Raises `Problem`, 404."""
        file = self._files.get(name)
        if file is None:
            raise not_found("There is no such file.")
        is_exact = request.query_params.get("v") == file.version
        kept = "public, max-age=31536000, immutable" if is_exact else "no-cache"
        return Response(file.content, headers={"cache-control": kept}, media_type=file.media)


def _read(path: Path) -> _StaticFile:
    content = path.read_bytes()
    return _StaticFile(content, _MEDIA[path.suffix], hashlib.sha256(content).hexdigest()[:_DIGITS])


class FormFields(dict[str, str]):
    """The fields of a form, or of a query, by name; of a repeated field the last."""

    def number(self, name: str, usual: int, *, least: int = 0, most: int) -> int:
        """Return the field as a whole number, or the usual number if it is invalid."""
        text = self.get(name, "")
        return min(max(int(text), least), most) if text.isascii() and text.isdigit() and len(text) < 10 else usual  # noqa: PLR2004 - digits

    def chosen(self, *names: str) -> dict[str, str]:
        """Return the non-empty ones of these fields."""
        return {name: value for name in names if (value := self.get(name, "").strip())}


async def read_form(request: Request) -> FormFields:
    """Return the form of a `POST`. Raises `Problem` and `ClientGone`."""
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


class GatewayRoutes:
    """The routes by their names. Each checks the rights of its caller itself."""

    def __init__(self, routes: Iterable[AnyRoute]) -> None:
        self._routes = {route.name: route for route in routes}
        self._readers = dict[type[Any], TypeAdapter[Any]]()

    async def ask(
        self,
        who: Identity,
        name: str,
        *path: str,
        query: Fields | None = None,
        body: Fields | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Json:
        """Return the route's answer to `who`, as JSON; `None` for an answer without a body.

        `path` has the values of the path's parameters, in their order. Raises the route's errors, such as `Problem`.
        """
        route = self._routes[name]
        parts = dict(zip(_PARAMETER.findall(route.path), path, strict=True))
        read_body = None if route.body is None else self._read(route.body, body or {})
        read_query = None if route.query is None else self._read(route.query, query or {}, strict=False)
        answer = await route.handle(RouteRequest(who, read_body, read_query, parts, _request(route, headers or {})))
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
    """Return a request that has the console's headers, and nothing that the browser sent."""
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

    async def ask(self, name: str, *path: str, **parts: Fields | None) -> Json:
        """Ask a route as this visitor. `parts` as of `GatewayRoutes.ask`."""
        return await self.routes.ask(self.who, name, *path, **parts)

    async def find(self, name: str, *path: str, absent: Collection[int] = (404,)) -> Json | None:
        """Ask a route as `ask` does; return `None` if there is nothing, or the user may not see it."""
        try:
            return await self.ask(name, *path)
        except Problem as exc:
            if exc.status not in absent:
                raise
            return None


@dataclass(frozen=True, slots=True)
class Shown:
    """A page to write: a `template` and its values."""

    template: str
    title: str
    values: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200


@dataclass(frozen=True, slots=True)
class Done:
    """A change that was made: a sentence about it, and the page (below the console's path) that shows the sentence."""

    text: str
    path: str
    tone: Tone = "good"


Outcome: TypeAlias = Shown | Done | Response


@dataclass(frozen=True, slots=True)
class ConsolePage:
    """One method of one path below `/console`. Users without the role get neither the page nor a link to it."""

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
        """Return the page, and the parts of the path that it names. Raises `Problem`: 404, or 405."""
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
        """Return the template's values for a whole list."""
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
