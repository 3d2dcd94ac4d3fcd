"""Serves the fleet to the MCP client that has started this program, over its standard streams: `toolfleet mcp`."""

import asyncio
from typing import Annotated

import typer

from toolfleet_cli.console.caller import Level, ModulesOption, PermissionOption, UserOption, caller_of
from toolfleet_cli.processes.extras import need
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.settings import PREFIX, load_settings
from toolfleet_registry.system.process import hide_process

ModuleOption = Annotated[
    str | None, typer.Option("--module", metavar="NAME", help="This module's tools only, by their bare names.")
]


def register(app: typer.Typer) -> None:
    """Give the app the command."""
    app.command()(mcp)


def mcp(
    *,
    module: ModuleOption = None,
    user: UserOption = None,
    permission: PermissionOption = Level.OWNER,
    modules: ModulesOption = None,
) -> None:
    """Serve the fleet's tools to an MCP client over standard input and output, until that ends. For a client's configuration."""
    need("mcp")
    settings = load_settings()
    if settings.hide_process:
        hide_process()
    if settings.redis_url is None:
        raise SettingsError(f"There is no Redis to work with: set {PREFIX}REDIS_URL, such as redis://127.0.0.1:6379/0.")
    from toolfleet_gateway.auth.identity import Identity
    from toolfleet_gateway.mcp.server import serve_stdio
    from toolfleet_gateway.mcp.view import McpView
    from toolfleet_gateway.tracing import gateway_tracing

    gateway_tracing(settings)  # first: what serves then is traced with it

    view = McpView(Identity(caller_of(user, permission, modules)), module)
    asyncio.run(serve_stdio(settings, view))
