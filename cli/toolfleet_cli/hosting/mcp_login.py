"""Asks a person to log in at an MCP server, and keeps the tokens for its hosts."""

import asyncio
import logging
import os
import re
import secrets
import socket
import sys
import webbrowser
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import uvicorn
from mcp.shared.auth import AuthorizationCodeResult
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from toolfleet_cli.hosting.mcp import oauth_of
from toolfleet_modules.hosts.mcp.http_transport import HttpServer, http_transport
from toolfleet_modules.hosts.mcp.mcp_session import McpSession, ServerAway
from toolfleet_modules.hosts.mcp.oauth_flow import AuthorizationAway, AuthorizationRefused, OAuthOptions
from toolfleet_modules.hosts.mcp.oauth_tokens import Authorizer
from toolfleet_modules.hosts.mcp.oauth_tokens import log_in as log_in_person
from toolfleet_modules.hosts.mcp.tool_list import listed_tools
from toolfleet_registry.config.host_settings import McpSpec
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.settings import Settings

Say = Callable[[str], None]

SECONDS = 300.0
"""For a person to log in."""

HOST = "127.0.0.1"
PATH = "/callback"

_CLOSE_SECONDS = 5
_CODE = re.compile(r"[a-z_]{1,40}")
_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")


def log_in(settings: Settings, spec: McpSpec, name: str, say: Say, *, beside: Path, seconds: float = SECONDS) -> None:
    """Log a person in for this module, in the foreground; `say` prints where, and what came of it. Raises `SettingsError` for what cannot be."""
    options, headers = oauth_of(settings, spec, name, beside=beside)
    if not options.has_person or spec.oauth is None:
        raise SettingsError(f"Nobody logs in for {name!r}: with client_credentials its host asks by itself.")
    for logger in ("client", "mcp", "httpx2", "httpcore2"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    try:
        tools = asyncio.run(_logged_in(options, spec, headers, say, seconds))
    except (AuthorizationAway, AuthorizationRefused) as exc:
        raise SettingsError(f"{name} is not logged in: {exc}.") from None
    except ServerAway as exc:
        raise SettingsError(f"{name} is logged in, but its server cannot be used: {exc}.") from None
    say(f"{name} is logged in: it has {tools} tools. Its tokens are in {options.file}.")


async def _logged_in(options: OAuthOptions, spec: McpSpec, headers: Mapping[str, str], say: Say, seconds: float) -> int:
    """Return how many tools the server has for the logged-in user.

    Raises `AuthorizationAway`, `AuthorizationRefused` and `ServerAway`.
    """
    assert spec.oauth is not None  # noqa: S101 - there are options
    async with _login_page(spec.oauth.redirect_port, seconds, say) as page:
        await log_in_person(options, headers, page)
    transport = partial(http_transport, HttpServer(options.url, headers, Authorizer(options)))
    session = await McpSession.open(transport, _unheard, _unheard, seconds=spec.handshake_seconds)
    try:
        async with asyncio.timeout(spec.handshake_seconds):
            return len((await listed_tools(session)).tools)
    except TimeoutError:
        raise ServerAway(f"it did not list its tools within {spec.handshake_seconds:g} s") from None
    finally:
        await session.aclose()


def _unheard(*said: object) -> None:
    """Ignore the server's notifications."""


class LoginPage:
    """The person's way back, for as long as `seconds`. What comes with another state than that of the address shown is not heard."""

    def __init__(self, port: int, seconds: float, say: Callable[[str], None]) -> None:
        self._port, self._seconds, self._say = port, seconds, say
        self._state = ""
        self._answer: asyncio.Future[AuthorizationCodeResult] = asyncio.get_running_loop().create_future()

    @property
    def redirect_uri(self) -> str:
        """The URL to which the person returns."""
        return f"http://{HOST}:{self._port}{PATH}"

    @property
    def app(self) -> Starlette:
        """The app that is served there."""
        return Starlette(routes=[Route(PATH, self._come_back, methods=["GET"])])

    async def show(self, url: str) -> None:
        """Print the address, and open it where there is a terminal and a browser with a window."""
        if self._answer.done():
            self._answer = asyncio.get_running_loop().create_future()
        self._state = (parse_qs(urlsplit(url).query).get("state") or [""])[0]
        self._say(f"Log in at this address, within {self._seconds:g} s:\n\n{url}\n")
        if sys.stdout.isatty() and (sys.platform == "darwin" or any(os.environ.get(each) for each in _DISPLAYS)):
            with suppress(webbrowser.Error):
                await asyncio.to_thread(webbrowser.open, url)

    async def answer(self) -> AuthorizationCodeResult:
        """Return the result of the person's login.

        Raises `AuthorizationRefused` if the person did not come back, or the login was refused.
        """
        try:
            async with asyncio.timeout(self._seconds):
                return await self._answer
        except TimeoutError:
            raise AuthorizationRefused(f"nobody has logged in within {self._seconds:g} s") from None

    async def _come_back(self, request: Request) -> Response:
        given = request.query_params
        if not self._state or not secrets.compare_digest(given.get("state", "").encode(), self._state.encode()):
            return PlainTextResponse("This belongs to no login that is under way here.\n", 400)
        if self._answer.done():
            return PlainTextResponse("This login has been taken already.\n", 409)
        if (code := given.get("code")) is not None:
            self._answer.set_result(AuthorizationCodeResult(code=code, state=self._state, iss=given.get("iss")))
            return PlainTextResponse("Go back to the terminal: this window can be closed.\n")
        error = given.get("error", "")
        shown = error if _CODE.fullmatch(error) else "no code came"
        self._answer.set_exception(AuthorizationRefused(f"the login was refused ({shown})"))
        return PlainTextResponse("The login was refused: this window can be closed.\n")


@asynccontextmanager
async def _login_page(port: int, seconds: float, say: Callable[[str], None]) -> AsyncGenerator[LoginPage]:
    """Serve one at this port, or at one that is free; `say` prints the address. Raises `SettingsError` if the port is taken."""
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((HOST, port))
        except OSError as exc:
            raise SettingsError(f"The port {port} for the login cannot be had: {exc.strerror}.") from None
        page = LoginPage(listening.getsockname()[1], seconds, say)
        server = uvicorn.Server(
            uvicorn.Config(page.app, log_config=None, access_log=False, timeout_graceful_shutdown=_CLOSE_SECONDS)
        )
        serving = asyncio.ensure_future(server.serve(sockets=[listening]))
        try:
            yield page
        finally:
            server.should_exit = True
            await serving
