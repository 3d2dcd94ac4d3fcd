"""Sets and drops the console's cookies: never for scripts, never to other sites, and for its own path only."""

from starlette.requests import Request
from starlette.responses import Response

from toolfleet_gateway.console.sessions import COOKIE, LASTS_SECONDS
from toolfleet_registry.config.gateway_settings import GatewaySettings

SAID, THEME = f"{COOKIE}_said", f"{COOKIE}_theme"
"""What came of the last change, and whether pages are light or dark."""

_YEAR = 365 * 86_400
_SAID_SECONDS = 60


class ConsoleCookies:
    """The cookies of a console at `path`."""

    def __init__(self, settings: GatewaySettings, path: str) -> None:
        self._path = path
        self._is_known_https = (settings.gateway_resource or "").startswith("https://")

    def sign_in(self, request: Request, response: Response, sealed: str) -> None:
        """Have the browser send the session."""
        self._put(request, response, COOKIE, sealed, LASTS_SECONDS)

    def sign_out(self, request: Request, response: Response) -> None:
        """Have it forgotten."""
        self._put(request, response, COOKIE, "", 0)

    def say(self, request: Request, response: Response, sealed: str) -> None:
        """Have the next page say what came of a change; an empty text: nothing any more."""
        self._put(request, response, SAID, sealed, _SAID_SECONDS if sealed else 0)

    def choose_theme(self, request: Request, response: Response, theme: str) -> None:
        """Keep how pages are to look."""
        self._put(request, response, THEME, theme, _YEAR)

    def _put(self, request: Request, response: Response, name: str, value: str, seconds: int) -> None:
        response.set_cookie(
            name,
            value,
            max_age=seconds,
            path=self._path,
            secure=self._is_https(request),
            httponly=True,
            samesite="strict",
        )

    def _is_https(self, request: Request) -> bool:
        """Return whether the request came by https. A proxy's header is trusted: it can only make a cookie stricter."""
        forwarded = request.headers.get("x-forwarded-proto", "").partition(",")[0].strip().lower()
        return self._is_known_https or "https" in {request.url.scheme, forwarded}
