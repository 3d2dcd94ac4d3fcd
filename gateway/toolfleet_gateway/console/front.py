"""Answers every request below `/console`: signs people in, checks their rights, and writes the page, also for an error."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote

from redis.asyncio import Redis
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from toolfleet_gateway.auth.identity import AuthRefused, Identity
from toolfleet_gateway.auth.own_secrets import FleetCodec, NotSealedHere
from toolfleet_gateway.console.calls import call_pages
from toolfleet_gateway.console.letters import letter_pages
from toolfleet_gateway.console.overview import FleetReadings, overview_pages
from toolfleet_gateway.console.page import (
    ConsolePage,
    FormFields,
    GatewayRoutes,
    Outcome,
    PagePaths,
    PageTemplates,
    Shown,
    StaticFiles,
    Visit,
    fields_of,
    read_form,
)
from toolfleet_gateway.console.resources import resource_pages
from toolfleet_gateway.console.sessions import (
    SAID,
    THEME,
    ConsoleCookies,
    ConsoleSession,
    ConsoleSessions,
    CredentialTooLong,
)
from toolfleet_gateway.console.tools import KnownTools, module_pages, tool_pages
from toolfleet_gateway.http.entrance import Entrance, require_role
from toolfleet_gateway.http.problems import Problem, problem_of
from toolfleet_gateway.http.routes import AnyRoute, ClientGone
from toolfleet_gateway.http.streams import OpenStreams
from toolfleet_registry.access import Role
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.redis.keys import GatewayKeys
from toolfleet_registry.settings import Settings
from toolfleet_tasks.client.fleet import ToolFleet

_STATIC, _THEME = "/static/", "/theme"
_THEMES = frozenset({"auto", "light", "dark"})
_ENDED = 401

_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""No inline scripts, no inline styles, no other host."""

_HEADERS = {
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    # Without a referrer browsers would say `null` as the origin of a form.
    "referrer-policy": "same-origin",
}

_CONSOLE: Final = "/console"
"""The console's path, below the gateway's own."""

CONSOLE_PATHS: Final = (_CONSOLE, _CONSOLE + "/{rest:path}")
"""The paths that the console answers."""


@dataclass(frozen=True, slots=True)
class _SigningIn:
    """The page at `/console/login`."""

    entrance: Entrance
    sessions: ConsoleSessions
    cookies: ConsoleCookies
    templates: PageTemplates

    async def answer(self, request: Request) -> Response:
        """Answer with the form; a valid key in it starts a session, others are refused there."""
        query = fields_of(request.scope["query_string"].decode("latin-1"))
        if request.method != "POST":
            said = "Your session has ended: its key is good no longer, or twelve hours are over."
            return self._form(request, query.get("next", "/"), said if "ended" in query else None)
        form = await read_form(request)
        going_to, credential = _own_path(form.get("next", "/")), form.get("credential", "").strip()
        if not credential.isascii() or not credential.isprintable() or not credential or " " in credential:
            return self._form(request, going_to, "Paste one API key or one token.", status=422)
        sent = [(b"authorization", f"Bearer {credential}".encode())]
        try:
            await self.entrance.admit({**request.scope, "headers": sent, "query_string": b""})
            sealed = await self.sessions.begin(credential)
        except (AuthRefused, CredentialTooLong) as exc:
            status = exc.status if isinstance(exc, AuthRefused) else 422
            return self._form(request, going_to, str(exc), status=status)
        answer = RedirectResponse(self.templates.path + going_to, 303)
        self.cookies.sign_in(request, answer, sealed)
        return answer

    def _form(self, request: Request, going_to: str, said: str | None, *, status: int = 200) -> Response:
        takes_tokens = self.entrance.authenticator.resource is not None
        values = {
            "title": "Sign in",
            "going_to": _own_path(going_to),
            "refusal": said,
            "takes_tokens": takes_tokens,
            "theme": theme if (theme := request.cookies.get(THEME)) in {"light", "dark"} else "auto",
        }
        return Response(self.templates.write("login", values), status, media_type="text/html")


def _own_path(text: str) -> str:
    """Return the text if it is a path below the console's, else `/`."""
    is_own = text.startswith("/") and text.isprintable() and "\\" not in text and "//" not in text
    return text if is_own and len(text) < 1_000 else "/"  # noqa: PLR2004 - characters of an address


@dataclass(frozen=True, slots=True)
class ConsoleFront:
    """The console of a gateway, as an ASGI app."""

    paths: PagePaths
    routes: GatewayRoutes
    entrance: Entrance
    sessions: ConsoleSessions
    signing_in: _SigningIn
    cookies: ConsoleCookies
    codec: FleetCodec
    templates: PageTemplates
    files: StaticFiles

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Implement ASGI."""
        request = Request(scope, receive)
        below = str(request.scope["path"]).removeprefix(self.templates.path) or "/"
        try:
            answer = await self._answer(request, below)
        except ClientGone:
            return
        except Exception as exc:  # noqa: BLE001 - the console's edge, as `ProblemAnswers` is the gateway's: `problem_of` logs
            answer = self._problem_page(request, problem_of(exc))
        await _with_page_headers(answer)(scope, receive, send)

    async def _answer(self, request: Request, below: str) -> Response:
        if below.startswith(_STATIC):
            return self.files.answer(request, below.removeprefix(_STATIC))
        if request.method not in {"GET", "HEAD", "POST"}:
            raise Problem(405, "invalid_request", "Pages are read, and forms are sent.", headers={"allow": "GET, POST"})
        if below == "/login":
            return await self.signing_in.answer(request)
        session = await self.sessions.find(request.cookies)
        try:
            who = None if session is None else await self._admit(request, session)
        except AuthRefused as exc:
            if exc.status != _ENDED:
                raise
            who = None
        if session is None or who is None:
            return self._to_sign_in(request, below, is_ended=session is not None)
        return await self._page(request, below, session, who)

    async def _admit(self, request: Request, session: ConsoleSession) -> Identity:
        """Return the identity of the session's key, if it is still valid: as for each request of a REST client."""
        sent = [(b"authorization", f"Bearer {session.credential}".encode("ascii", "replace"))]
        who = await self.entrance.admit({**request.scope, "headers": sent, "query_string": b""})
        request.scope["toolfleet.who"] = who
        return who

    async def _page(self, request: Request, below: str, session: ConsoleSession, who: Identity) -> Response:
        visit = Visit(who, session, self.routes, request, {}, FormFields(), FormFields())
        try:
            form = FormFields()
            if request.method == "POST":
                form = await self._own_form(request, session)
                if below == "/logout":
                    return await self._signed_out(request, session)
                if below == _THEME:
                    return self._themed(request, form)
            page, parts = self.paths.find("POST" if request.method == "POST" else "GET", below)
            query = fields_of(request.scope["query_string"].decode("latin-1"))
            visit = replace(visit, path=parts, query=query, form=form)
            require_role(who, page.role)
            return await self._outcome(visit, await page.handle(visit))
        except (Problem, FleetUnavailable) as exc:
            return self._problem_page(request, problem_of(exc), visit)

    @staticmethod
    async def _own_form(request: Request, session: ConsoleSession) -> FormFields:
        form = await read_form(request)
        if not session.is_own(form.pop("csrf", "")):
            raise Problem(403, "wrong_form", "This form is not one of your session: load its page again.")
        return form

    async def _outcome(self, visit: Visit, outcome: Outcome) -> Response:
        if isinstance(outcome, Response):
            return outcome
        if isinstance(outcome, Shown):
            return await self._written(visit, outcome)
        answer = RedirectResponse(self.templates.path + outcome.path, 303)
        said = json.dumps([visit.session.csrf, outcome.tone, outcome.text[:1_000]]).encode()
        self.cookies.say(visit.request, answer, await self.codec.seal(said))
        return answer

    async def _written(self, visit: Visit, shown: Shown) -> Response:
        said = await self._said(visit)
        values = {**self._frame(visit.request, visit), **shown.values, "title": shown.title, "said": said}
        answer = Response(self.templates.write(shown.template, values), shown.status, media_type="text/html")
        if SAID in visit.request.cookies:
            self.cookies.say(visit.request, answer, "")
        return answer

    async def _said(self, visit: Visit) -> Sequence[str] | None:
        """Return the message of this session's last change: its tone and its text."""
        try:
            csrf, *said = json.loads(await self.codec.unseal(visit.request.cookies[SAID]))
        except (KeyError, NotSealedHere, ValueError):
            return None
        return said if csrf == visit.session.csrf else None

    def _frame(self, request: Request, visit: Visit | None) -> Mapping[str, Any]:
        below = str(request.scope["path"]).removeprefix(self.templates.path) or "/"
        theme = request.cookies.get(THEME, "auto")
        return {
            "visit": visit,
            "entries": [] if visit is None else _entries_for(visit.who),
            "below": below,
            "theme": theme if theme in _THEMES else "auto",
            "csrf": "" if visit is None else visit.session.csrf,
            "can": (lambda _: False) if visit is None else visit.who.has_role,
        }

    def _problem_page(self, request: Request, problem: Problem, visit: Visit | None = None) -> Response:
        request.scope["toolfleet.problem"] = problem.error_code
        values = {**self._frame(request, visit), "problem": problem.body(""), "title": "That did not work"}
        headers = {name: text for name, text in problem.headers.items() if name in {"allow", "retry-after"}}
        return Response(self.templates.write("problem", values), problem.status, headers, media_type="text/html")

    def _to_sign_in(self, request: Request, below: str, *, is_ended: bool) -> Response:
        reason = "&ended=1" if is_ended else ""
        address = f"{self.templates.path}/login?next={quote(below, safe='/')}{reason}"
        if request.headers.get("hx-request") or "text/event-stream" in request.headers.get("accept", ""):
            answer = Response(None, _ENDED, {"hx-redirect": address})
        else:
            answer = RedirectResponse(address, 303)
        if is_ended:
            self.cookies.sign_out(request, answer)
        return answer

    async def _signed_out(self, request: Request, session: ConsoleSession) -> Response:
        await self.sessions.end(session)
        answer = RedirectResponse(f"{self.templates.path}/login", 303)
        self.cookies.sign_out(request, answer)
        answer.headers["clear-site-data"] = '"cache"'
        return answer

    def _themed(self, request: Request, form: FormFields) -> Response:
        answer = RedirectResponse(self.templates.path + _own_path(form.get("back", "/")), 303)
        theme = form.get("theme", "")
        self.cookies.choose_theme(request, answer, theme if theme in _THEMES else "auto")
        return answer


@dataclass(frozen=True, slots=True)
class _NavigationEntry:
    """A page that the navigation leads to."""

    path: str
    title: str
    role: Role = "viewer"


_ENTRIES: Final = (
    _NavigationEntry("/", "Overview"),
    _NavigationEntry("/calls", "Calls"),
    _NavigationEntry("/approvals", "Approvals", "none"),
    _NavigationEntry("/dead-letters", "Dead letters"),
    _NavigationEntry("/modules", "Modules"),
    _NavigationEntry("/tools", "Tools"),
    _NavigationEntry("/jobs", "Jobs"),
    _NavigationEntry("/programs", "Programs"),
    _NavigationEntry("/wake-ups", "Wake-ups"),
    _NavigationEntry("/queues", "Queues"),
    _NavigationEntry("/limits", "Limits"),
    _NavigationEntry("/agents", "Agents"),
    _NavigationEntry("/errors", "Tool files"),
    _NavigationEntry("/audit", "Audit"),
    _NavigationEntry("/keys", "Keys", "admin"),
)


def _entries_for(who: Identity) -> list[_NavigationEntry]:
    """Return the navigation entries of pages that the user may see."""
    return [entry for entry in _ENTRIES if who.has_role(entry.role)]


def _with_page_headers(response: Response) -> Response:
    """Return the response with the headers of every page."""
    response.headers.update(_HEADERS)
    return response


def console_of(
    fleet: ToolFleet,
    settings: Settings,
    redis: Redis,
    entrance: Entrance,
    streams: OpenStreams,
    routes: Sequence[AnyRoute],
) -> ConsoleFront:
    """Return the console of the gateway that has these routes."""
    path = settings.gateway_root_path + _CONSOLE
    files = StaticFiles()
    templates = PageTemplates(path, files.address)
    keys = GatewayKeys(settings.keys)
    codec = FleetCodec(redis, keys, settings.signing_keys, purpose="console session")
    sessions, cookies = ConsoleSessions(codec, redis, keys), ConsoleCookies(settings, path)
    return ConsoleFront(
        paths=PagePaths(_pages(fleet, settings, streams, sessions, templates)),
        routes=GatewayRoutes(routes),
        entrance=entrance,
        sessions=sessions,
        signing_in=_SigningIn(entrance, sessions, cookies, templates),
        cookies=cookies,
        codec=codec,
        templates=templates,
        files=files,
    )


def _pages(
    fleet: ToolFleet, settings: Settings, streams: OpenStreams, sessions: ConsoleSessions, templates: PageTemplates
) -> list[ConsolePage]:
    tools = KnownTools(fleet)
    return [
        *overview_pages(FleetReadings(fleet, settings), streams, sessions, templates),
        *call_pages(),
        *letter_pages(),
        *module_pages(tools),
        *tool_pages(tools, settings),
        *resource_pages(),
    ]
