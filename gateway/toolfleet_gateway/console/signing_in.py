"""Signs people in by an API key, or by a token where the gateway takes tokens."""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from toolfleet_gateway.auth.identity import AuthRefused
from toolfleet_gateway.console.cookies import THEME, ConsoleCookies
from toolfleet_gateway.console.form_body import fields_of, read_form
from toolfleet_gateway.console.rendering import PageTemplates
from toolfleet_gateway.console.sessions import ConsoleSessions, CredentialTooLong
from toolfleet_gateway.http.entrance import Entrance


@dataclass(frozen=True, slots=True)
class SigningIn:
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
        going_to, credential = own_path(form.get("next", "/")), form.get("credential", "").strip()
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
            "going_to": own_path(going_to),
            "refusal": said,
            "takes_tokens": takes_tokens,
            "theme": theme if (theme := request.cookies.get(THEME)) in {"light", "dark"} else "auto",
        }
        return Response(self.templates.write("login", values), status, media_type="text/html")


def own_path(text: str) -> str:
    """Return the text if it is a path below the console's, else `/`."""
    is_own = text.startswith("/") and text.isprintable() and "\\" not in text and "//" not in text
    return text if is_own and len(text) < 1_000 else "/"  # noqa: PLR2004 - characters of an address
