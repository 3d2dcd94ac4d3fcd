"""Serves MCP servers, each by a process of its own, which is restarted when it ends, and has people log in at them."""

import asyncio
import logging
import os
import re
import secrets
import socket
import subprocess
import sys
import time
import webbrowser
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import uvicorn
from mcp.shared.auth import AuthorizationCodeResult
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from toolfleet_cli.console import say
from toolfleet_cli.hosting.host_server import serve_host
from toolfleet_cli.hosting.hosts import toml_folder
from toolfleet_cli.hosting.mcp import mcp_host, oauth_of
from toolfleet_cli.hosting.mcp_file import servers_in, spec_of
from toolfleet_cli.local.supervisor import StopRequested, stop_signals
from toolfleet_modules.hosts.child_process import Backoff, spawn, stop
from toolfleet_modules.hosts.mcp.http_transport import HttpServer, http_transport
from toolfleet_modules.hosts.mcp.mcp_session import McpSession, ServerAway
from toolfleet_modules.hosts.mcp.oauth_flow import AuthorizationAway, AuthorizationRefused, OAuthOptions
from toolfleet_modules.hosts.mcp.oauth_tokens import Authorizer
from toolfleet_modules.hosts.mcp.oauth_tokens import log_in as log_in_person
from toolfleet_modules.hosts.mcp.tool_list import listed_tools
from toolfleet_registry.config.host_settings import McpSpec
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.settings import Settings, load_settings

_POLL_SECONDS = 0.1
_PATIENCE_SECONDS = 15.0  # for a host to end its server
_BACK_OFF_SECONDS = (0.5, 30.0)  # before a host is restarted: at first, and at most
_LASTING_SECONDS = 60.0

Say = Callable[[str], None]

SECONDS = 300.0
"""The seconds that a person has to log in."""

HOST = "127.0.0.1"
PATH = "/callback"

_CLOSE_SECONDS = 5
_CODE = re.compile(r"[a-z_]{1,40}")
_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")


@dataclass(frozen=True, slots=True)
class McpCommand:
    """The parsed words of `toolfleet host mcp`; `facts` are additional fields of the server's spec."""

    name: str | None
    command: Sequence[str]
    url: str | None
    config: Path | None
    env: Sequence[str]
    headers: Sequence[str]
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])


def serve_mcp(asked: McpCommand, address: str, port: int, *, announces: bool, announce_url: str | None) -> int:
    """Serve it, or all of its file, in the foreground. Returns the exit code. Raises `SettingsError`."""
    if asked.config is not None and asked.name is None:
        return _serve_whole_file(asked, asked.config, address, port, announces=announces)
    if asked.name is None:
        raise SettingsError("Name the module, or a file of servers with --config.")
    if asked.config is None:
        facts = {"command": asked.command, "url": asked.url, **asked.facts}
        spec, beside = spec_of(env=asked.env, headers=asked.headers, **facts), Path.cwd()
    else:
        spec, beside = _named_server(asked, asked.name, asked.config), asked.config.absolute().parent
    settings = load_settings()
    host = mcp_host(settings, spec, name=asked.name, beside=beside, config=asked.config)
    say(f"{host.name}: the tools of {spec.url or spec.command[0]}")
    return serve_host(
        host, address, port, announced_by=settings if announces else None, url=announce_url, metered_by=settings
    )


def log_in_mcp(asked: McpCommand) -> None:
    """Log a person in at the server of a file, or of `[hosts.NAME]`. Raises `SettingsError`."""
    if asked.name is None:
        raise SettingsError("Name the module whose server you log in at.")
    settings = load_settings()
    if asked.config is not None:
        spec = _named_server(asked, asked.name, asked.config)
        log_in(settings, spec, asked.name, say, beside=asked.config.absolute().parent)
        return
    if asked.command or asked.url or asked.env or asked.headers:
        raise SettingsError("With --login, toolfleet.toml or the file of --config says all about the server.")
    described = settings.hosts.get(asked.name)
    if not isinstance(described, McpSpec):
        raise SettingsError(f"There is no [hosts.{asked.name[:80]}] with a url: --login needs one, or --config.")
    log_in(settings, described, asked.name, say, beside=toml_folder(Path.cwd()))


def _serve_whole_file(asked: McpCommand, config: Path, address: str, port: int, *, announces: bool) -> int:
    known = _servers_of(asked, config)
    options = ["--address", address]
    options += ["--per-caller"] if asked.facts.get("scope") == "caller" else []
    options += [f"--{fact}" for fact in ("trusted", "asks", "pin") if asked.facts.get(fact)]
    options += [] if announces else ["--no-announce"]
    say(f"{config}: {', '.join(known)}")
    return serve_file(config, list(known), options, port)


def _named_server(asked: McpCommand, name: str, config: Path) -> McpSpec:
    known = _servers_of(asked, config)
    if name not in known:
        raise SettingsError(f"{config} has no server that is named {name[:80]!r}; it has: {', '.join(known)}.")
    return known[name]


def _servers_of(asked: McpCommand, config: Path) -> dict[str, McpSpec]:
    if asked.command or asked.url or asked.env or asked.headers:
        raise SettingsError("With --config, the file says all about its servers: leave the others out.")
    return {each: spec.model_copy(update=dict(asked.facts)) for each, spec in servers_in(config).items()}


@dataclass(slots=True)
class _ServedServer:
    name: str
    command: Sequence[str]
    process: "subprocess.Popen[bytes] | None" = None
    begins_at: float = 0.0
    backoff: Backoff = field(default_factory=lambda: Backoff(*_BACK_OFF_SECONDS, lasting_seconds=_LASTING_SECONDS))

    def watch(self) -> None:
        """Start it if it does not run, and its pause is over."""
        now = time.monotonic()
        if self.process is not None and self.process.poll() is not None:
            say(f"{self.name}: its host has ended ({self.process.returncode}); another is started.")
            stop(self.process, patience_seconds=0)  # what it has left
            self.process, self.begins_at = None, now + self.backoff.pause(now - self.begins_at)
        if self.process is None and now >= self.begins_at:
            self.process, self.begins_at = spawn(self.command), now


def serve_file(file: Path, names: Sequence[str], options: Sequence[str], port: int) -> int:
    """Serve these servers of a file until a signal ends it; from `port` on, one port for each, if it is not 0. Returns the exit code."""
    program = [sys.executable, "-c", "from toolfleet_cli import main; main()", "host", "mcp"]
    served = [
        _ServedServer(name, [*program, name, "--config", str(file), "--port", str(port and port + number), *options])
        for number, name in enumerate(names)
    ]
    with stop_signals() as signals:
        try:
            while True:
                signals.check()
                for each in served:
                    each.watch()
                time.sleep(_POLL_SECONDS)
        except StopRequested:
            pass
        finally:
            running = [each.process for each in served if each.process is not None]
            for process in running:
                process.terminate()
            for process in running:
                stop(process, patience_seconds=_PATIENCE_SECONDS)
    return 0


def log_in(settings: Settings, spec: McpSpec, name: str, say: Say, *, beside: Path, seconds: float = SECONDS) -> None:
    """Log a person in for this module, in the foreground; `say` prints where, and what came of it. Raises `SettingsError` for what cannot be."""
    options, headers = oauth_of(settings, spec, name, beside=beside)
    if not options.has_person or spec.oauth is None:
        raise SettingsError(f"There is no login for {name!r}: with client_credentials its host asks by itself.")
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
    assert spec.oauth is not None
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
    """The page to which the person returns within `seconds`. Requests with another state than the shown address are ignored."""

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
            raise AuthorizationRefused(f"no login was completed within {self._seconds:g} s") from None

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
