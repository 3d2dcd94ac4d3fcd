"""Serves the fleet in this process: over HTTP, or to the MCP client that has started it: `toolfleet gateway` and `mcp`."""

import asyncio
from typing import Annotated

import typer

from toolfleet_cli.console.caller import Level, ModulesOption, PermissionOption, UserOption, caller_of
from toolfleet_cli.console.output import need, say
from toolfleet_registry.config.gateway_settings import DEFAULT_PORT
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.settings import PREFIX, load_settings
from toolfleet_registry.system.process import hide_process, listening_socket

READY = "toolfleet gateway ready"

HostOption = Annotated[str, typer.Option("--host", help="Listen on this address.")]
PortOption = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65535,
        help=f"Listen on this port; 0: one that is free. By default TOOLFLEET_GATEWAY_PORT, else {DEFAULT_PORT}.",
    ),
]
RootPathOption = Annotated[
    str | None,
    typer.Option(
        metavar="PATH", help="The path below which a proxy serves it; by default TOOLFLEET_GATEWAY_ROOT_PATH."
    ),
]

ModuleOption = Annotated[
    str | None, typer.Option("--module", metavar="NAME", help="This module's tools only, by their bare names.")
]


def register(app: typer.Typer) -> None:
    """Give the app the commands."""
    app.command()(gateway)
    app.command()(mcp)


def gateway(*, host: HostOption = "127.0.0.1", port: PortOption = None, root_path: RootPathOption = None) -> None:
    """Serve the fleet over HTTP, until SIGTERM: then what is under way ends. Prints its URL when it is ready.

    Where there are no API keys yet, it prints one that was made for this run; on any address but loopback it lets nobody in until
    `toolfleet keys create` has made one.
    """
    need("gateway")
    given = {"gateway_root_path": root_path, "gateway_port": port}
    settings = load_settings(**{name: value for name, value in given.items() if value is not None})
    if settings.hide_process:
        hide_process()
    port = DEFAULT_PORT if settings.gateway_port is None else settings.gateway_port
    if settings.redis_url is None:
        raise SettingsError(f"There is no Redis to work with: set {PREFIX}REDIS_URL, such as redis://127.0.0.1:6379/0.")
    from toolfleet_gateway.auth.authenticator import key_to_generate
    from toolfleet_gateway.gateway import run_gateway
    from toolfleet_tasks.control.logs import configure_logs

    configure_logs(settings)
    generated = asyncio.run(key_to_generate(settings, host, settings.gateway_key))
    with listening_socket("127.0.0.1" if host == "localhost" else host, port) as listener:
        address = f"[{host}]" if ":" in host else host
        url = f"http://{address}:{listener.getsockname()[1]}"
        if generated is not None and settings.gateway_key is None:  # the user who has set it has it
            say(f"key: {generated.text}")
        run_gateway(settings, listener, generated=generated, ready=lambda: say(f"{READY} url={url}"))


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
