"""Runs one program of a fleet in this process, set up by the environment.

These are `toolfleet worker`, `beat`, `flower`, `gateway`, `mcp` and `redis-cli`.
"""

import asyncio
import os
import shutil
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn
from urllib.parse import unquote, urlsplit

import typer

from toolfleet_cli.check import is_well
from toolfleet_cli.console import need, note, say
from toolfleet_cli.remote import ModulesOption, PermissionOption, UserOption, caller_of
from toolfleet_registry.config.gateway_settings import DEFAULT_PORT
from toolfleet_registry.errors import NoRedis, SettingsError
from toolfleet_registry.redis.urls import fleet_url, is_sentinel_url
from toolfleet_registry.settings import PREFIX, Settings, load_settings
from toolfleet_registry.system.process import hide_process, listening_socket

CheckOption = Annotated[
    bool, typer.Option("--check", help="Only say by the exit code, 0 or 1, whether one here is ready: within 5 s.")
]
LiveOption = Annotated[bool, typer.Option("--live", help="With --check: whether one is alive. Asks no Redis.")]
ProbePortOption = Annotated[
    int | None,
    typer.Option(min=1, max=65535, help="Answer GET /livez and /readyz there; by default TOOLFLEET_PROBE_PORT."),
]
ProbeAddressOption = Annotated[
    str | None, typer.Option(help="Of that port; by default 127.0.0.1. Kubernetes needs 0.0.0.0.")
]


LaneOption = Annotated[
    Literal["fast", "slow", "all"] | None,
    typer.Option(help="Which modules to serve; by default TOOLFLEET_LANE, else all."),
]
ConcurrencyOption = Annotated[int | None, typer.Option(metavar="N", min=1, help="Calls in flight at most.")]


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

_TLS = {"ssl_ca_certs": "--cacert", "ssl_certfile": "--cert", "ssl_keyfile": "--key"}
"""The names of a URL's options at the command line of redis-cli."""


def register(app: typer.Typer) -> None:
    """Give the app the commands."""
    for command in (worker, beat, flower, gateway, mcp):
        app.command()(command)
    # What it does not know is redis-cli's: `toolfleet redis-cli --scan`.
    forwards = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command("redis-cli", context_settings=forwards, add_help_option=False)(redis_cli)


def worker(
    *,
    lane: LaneOption = None,
    concurrency: ConcurrencyOption = None,
    probe_port: ProbePortOption = None,
    probe_address: ProbeAddressOption = None,
    check: CheckOption = False,
    live: LiveOption = False,
) -> None:
    """Run calls, until SIGTERM: then finish those that run. Prints `toolfleet worker ready lane=…` when it is."""
    if not check:
        need("worker")
    given = {"lane": lane, "worker_concurrency": concurrency, "probe_port": probe_port, "probe_address": probe_address}
    settings = _celery_settings(**given)
    _check("worker", settings, check=check, live=live)
    from toolfleet_cli.local.environment import worker_command

    _become(worker_command(settings.lane), _changed(given))


def beat(
    *,
    probe_port: ProbePortOption = None,
    probe_address: ProbeAddressOption = None,
    check: CheckOption = False,
    live: LiveOption = False,
) -> None:
    """Send the fleet's own regular tasks, such as the probe of every module. A fleet needs one."""
    given = {"probe_port": probe_port, "probe_address": probe_address}
    _check("beat", _celery_settings(**given), check=check, live=live)
    from toolfleet_cli.local.environment import beat_command

    _become(beat_command(), _changed(given))


def flower(
    *,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Listen on this port.")] = 5555,
    address: Annotated[
        str, typer.Option(help="Listen on this address; all who reach it see every call.")
    ] = "127.0.0.1",
) -> None:
    """Show calls, queues and workers in the browser. Takes Flower's own `FLOWER_…` variables as well."""
    need("flower")
    from toolfleet_cli.local.environment import FLOWER_LOGIN, flower_command, flower_environment
    from toolfleet_gateway.auth.own_secrets import new_login

    settings, env = _celery_settings(), dict[str, str]()
    if os.environ.get(FLOWER_LOGIN, "-").strip() == "":  # Flower would take it for none, and show every call to all
        env[FLOWER_LOGIN] = new_login()
        note(f"{FLOWER_LOGIN} is empty: for this run the name and password of Flower are {env[FLOWER_LOGIN]}")
    _become(flower_command(address, port), {**flower_environment(settings), **env})


def _settings(**overrides: object) -> Settings:
    """Load the settings of a fleet that has a Redis."""
    settings = load_settings(**{name: value for name, value in overrides.items() if value is not None})
    if settings.redis_url is None:
        raise SettingsError(f"There is no Redis to work with: set {PREFIX}REDIS_URL, such as redis://127.0.0.1:6379/0.")
    return settings


def _celery_settings(**overrides: object) -> Settings:
    """Load and check the settings of a Celery process: Celery would answer wrong ones with a traceback."""
    settings = _settings(**overrides)
    if settings.signing_key is not None:
        from toolfleet_tasks.messages.signing import Seal

        Seal(settings.signing_key)  # here a missing library is one sentence
    return settings


def _check(role: str, settings: Settings, *, check: bool, live: bool) -> None:
    """Answer a check and end the process; return if no check is asked for."""
    if check:
        raise typer.Exit(0 if is_well(role, settings, live=live) else 1)
    if live:
        raise typer.BadParameter("it is a kind of --check.", param_hint="--live")


def _changed(given: dict[str, Any]) -> dict[str, str]:
    """Return the options that were given as variables."""
    return {f"{PREFIX}{name.upper()}": str(value) for name, value in given.items() if value is not None}


def _become(command: list[str], env: dict[str, str] | None = None) -> NoReturn:
    """Replace this process, so that signals and the exit code are the command's own."""
    os.execve(command[0], command, {**os.environ, **(env or {})})  # noqa: S606 - no shell is the point


def gateway(*, host: HostOption = "127.0.0.1", port: PortOption = None, root_path: RootPathOption = None) -> None:
    """Serve the fleet over HTTP, until SIGTERM: then what is under way ends. Prints its URL when it is ready.

    Where there are no API keys yet, it prints one that was made for this run; on any address but loopback it refuses all requests until
    `toolfleet keys create` has made one.
    """
    need("gateway")
    settings = _settings(gateway_root_path=root_path, gateway_port=port)
    if settings.hide_process:
        hide_process()
    port = DEFAULT_PORT if settings.gateway_port is None else settings.gateway_port
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
    permission: PermissionOption = "owner",
    modules: ModulesOption = None,
) -> None:
    """Serve the fleet's tools to an MCP client over standard input and output, until that ends. For a client's configuration."""
    need("mcp")
    settings = _settings()
    if settings.hide_process:
        hide_process()
    from toolfleet_gateway.auth.identity import Identity
    from toolfleet_gateway.mcp.server import serve_stdio
    from toolfleet_gateway.mcp.view import McpView
    from toolfleet_gateway.tracing import gateway_tracing

    gateway_tracing(settings)  # first: what serves then is traced with it

    view = McpView(Identity(caller_of(user, permission, modules)), module)
    asyncio.run(serve_stdio(settings, view))


def redis_cli(context: typer.Context) -> None:
    """Open redis-cli at the fleet's Redis, with what follows as its arguments."""
    settings = load_settings()
    url = fleet_url(settings.redis_url)
    if is_sentinel_url(url):
        raise SettingsError("redis-cli knows no sentinels: ask one for the master's address, and connect to that.")
    words, env = arguments(url)
    _become([str(_binary()), *words, *context.args], env)


def arguments(url: str) -> tuple[list[str], dict[str, str]]:
    """Return the words for redis-cli, and its environment with the password, as all users of the machine can see a command line."""
    parts = urlsplit(url)
    place = (
        ["-s", parts.path] if parts.scheme == "unix" else ["-h", parts.hostname or "", "-p", str(parts.port or 6379)]
    )
    options = {name: unquote(value) for name, _, value in (pair.partition("=") for pair in parts.query.split("&"))}
    database = options.get("db")
    if parts.scheme != "unix":
        database = parts.path.strip("/") or database
    user = ["--user", unquote(parts.username)] if parts.username else []
    tls = ["--tls"] if parts.scheme == "rediss" else []
    if tls:
        tls += [word for name, option in _TLS.items() if name in options for word in (option, options[name])]
        tls += ["--insecure"] if options.get("ssl_cert_reqs") == "none" else []
    env = {"REDISCLI_AUTH": unquote(parts.password)} if parts.password else {}
    return [*place, *(["-n", database] if database else []), *user, *tls], env


def _binary() -> Path:
    """Return redis-cli from PATH, else the one next to the server that `up` would start. Raises `SettingsError`."""
    from toolfleet_cli.local.redis_server import find_redis_server

    for name in ("redis-cli", "valkey-cli"):
        if found := shutil.which(name):
            return Path(found)
    try:
        beside = find_redis_server().with_name("redis-cli")
    except NoRedis:
        beside = Path()
    if not beside.is_file():
        raise SettingsError("There is no redis-cli: install redis-tools, or the 'toolfleet[worker]' extra.")
    return beside
