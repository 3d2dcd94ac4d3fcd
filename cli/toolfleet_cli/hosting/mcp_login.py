"""Asks a person to log in at an MCP server, and keeps the tokens for its hosts."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from toolfleet_cli.hosting.login_page import login_page
from toolfleet_cli.hosting.mcp import oauth_of
from toolfleet_modules.hosts.mcp.mcp_session import McpSession
from toolfleet_modules.hosts.mcp.oauth.authorizer import Authorizer
from toolfleet_modules.hosts.mcp.oauth.login import log_in as log_in_person
from toolfleet_modules.hosts.mcp.oauth.oauth_errors import AuthorizationAway, AuthorizationRefused
from toolfleet_modules.hosts.mcp.oauth.oauth_options import OAuthOptions
from toolfleet_modules.hosts.mcp.options import HttpServer
from toolfleet_modules.hosts.mcp.server_away import ServerAway
from toolfleet_modules.hosts.mcp.tool_list import listed_tools
from toolfleet_modules.hosts.mcp.transports.http_transport import http_transport
from toolfleet_registry.config.host_specs import McpSpec
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.settings import Settings

Say = Callable[[str], None]

SECONDS = 300.0
"""For a person to log in."""


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
    """How many tools the server has for who has logged in. Raises `AuthorizationAway`, `AuthorizationRefused` and `ServerAway`."""
    assert spec.oauth is not None  # noqa: S101 - there are options
    async with login_page(spec.oauth.redirect_port, seconds, say) as page:
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
    """Leave what the server tells: nobody is there for it."""
