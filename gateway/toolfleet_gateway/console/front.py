"""Answers every request below `/console`: authentication, rights, page; an error is a page, too."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from toolfleet_gateway.auth.fleet_codec import FleetCodec, NotSealedHere
from toolfleet_gateway.auth.identity import AuthRefused, Identity
from toolfleet_gateway.console.cookies import SAID, THEME, ConsoleCookies
from toolfleet_gateway.console.form_body import FormFields, fields_of, read_form
from toolfleet_gateway.console.gateway_routes import GatewayRoutes
from toolfleet_gateway.console.page import Outcome, Shown, Visit
from toolfleet_gateway.console.page_paths import PagePaths
from toolfleet_gateway.console.rendering import PageTemplates
from toolfleet_gateway.console.sessions import ConsoleSession, ConsoleSessions
from toolfleet_gateway.console.signing_in import SigningIn, own_path
from toolfleet_gateway.console.static_files import StaticFiles
from toolfleet_gateway.http.entrance import Entrance, require_role
from toolfleet_gateway.http.problems import Problem, problem_of
from toolfleet_gateway.http.routes import ClientGone
from toolfleet_registry.access.roles import Role
from toolfleet_registry.errors import FleetUnavailable

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


@dataclass(frozen=True, slots=True)
class ConsoleFront:
    """The console of a gateway, as an ASGI app."""

    paths: PagePaths
    routes: GatewayRoutes
    entrance: Entrance
    sessions: ConsoleSessions
    signing_in: SigningIn
    cookies: ConsoleCookies
    codec: FleetCodec
    templates: PageTemplates
    files: StaticFiles

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI."""
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
            raise Problem(403, "wrong_form", "This form is not one of your session: load its page anew.")
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
        answer = RedirectResponse(self.templates.path + own_path(form.get("back", "/")), 303)
        theme = form.get("theme", "")
        self.cookies.choose_theme(request, answer, theme if theme in _THEMES else "auto")
        return answer


@dataclass(frozen=True, slots=True)
class NavigationEntry:
    """A page that the navigation leads to."""

    path: str
    title: str
    role: Role = "viewer"


_ENTRIES: Final = (
    NavigationEntry("/", "Overview"),
    NavigationEntry("/calls", "Calls"),
    NavigationEntry("/approvals", "Approvals", "none"),
    NavigationEntry("/dead-letters", "Dead letters"),
    NavigationEntry("/modules", "Modules"),
    NavigationEntry("/tools", "Tools"),
    NavigationEntry("/jobs", "Jobs"),
    NavigationEntry("/wake-ups", "Wake-ups"),
    NavigationEntry("/queues", "Queues"),
    NavigationEntry("/limits", "Limits"),
    NavigationEntry("/agents", "Agents"),
    NavigationEntry("/errors", "Tool files"),
    NavigationEntry("/audit", "Audit"),
    NavigationEntry("/keys", "Keys", "admin"),
)


def _entries_for(who: Identity) -> list[NavigationEntry]:
    """Return the navigation entries of pages that the user may see."""
    return [entry for entry in _ENTRIES if who.has_role(entry.role)]


def _with_page_headers(response: Response) -> Response:
    """The same, with them."""
    response.headers.update(_HEADERS)
    return response
