"""Runs one process of a fleet in this process, set up by the environment: `toolfleet worker`, `beat` and `flower`."""

import os
from enum import StrEnum
from typing import Annotated, Any, NoReturn

import typer

from toolfleet_cli.check import is_well
from toolfleet_cli.console.output import need, note
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.settings import PREFIX, Settings, load_settings

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


class LaneName(StrEnum):
    """The lanes that a worker can serve."""

    FAST = "fast"
    SLOW = "slow"
    ALL = "all"


LaneOption = Annotated[
    LaneName | None, typer.Option(help="Which modules to serve; by default TOOLFLEET_LANE, else all.")
]
ConcurrencyOption = Annotated[int | None, typer.Option(metavar="N", min=1, help="Calls in flight at most.")]


def register(app: typer.Typer) -> None:
    """Give the app the commands."""
    for command in (worker, beat, flower):
        app.command()(command)


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
    settings = _settings(**given)
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
    """Send the fleet's own regular tasks: the look at every module. A fleet needs one."""
    given = {"probe_port": probe_port, "probe_address": probe_address}
    _check("beat", _settings(**given), check=check, live=live)
    from toolfleet_cli.local.environment import beat_command

    _become(beat_command(), _changed(given))


def flower(
    *,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Listen on this port.")] = 5555,
    address: Annotated[
        str, typer.Option(help="Listen on this address; anybody who reaches it sees every call.")
    ] = "127.0.0.1",
) -> None:
    """Show calls, queues and workers in the browser. Takes Flower's own `FLOWER_…` variables as well."""
    need("flower")
    from toolfleet_cli.local.environment import FLOWER_LOGIN, flower_command, flower_environment
    from toolfleet_gateway.auth.own_secrets import new_login

    settings, env = _settings(), dict[str, str]()
    if os.environ.get(FLOWER_LOGIN, "-").strip() == "":  # Flower would take it for none, and show every call to all
        env[FLOWER_LOGIN] = new_login()
        note(f"{FLOWER_LOGIN} is empty: for this run the name and password of Flower are {env[FLOWER_LOGIN]}")
    _become(flower_command(address, port), {**flower_environment(settings), **env})


def _settings(**overrides: object) -> Settings:
    """The settings, checked here: Celery would answer to wrong ones with a traceback."""
    settings = load_settings(**{name: value for name, value in overrides.items() if value is not None})
    if settings.redis_url is None:
        raise SettingsError(f"There is no Redis to work with: set {PREFIX}REDIS_URL, such as redis://127.0.0.1:6379/0.")
    if settings.signing_key is not None:
        from toolfleet_tasks.messages.signing import Seal

        Seal(settings.signing_key)  # here a missing library is one sentence
    return settings


def _check(role: str, settings: Settings, *, check: bool, live: bool) -> None:
    """Answer a check, and end; return if none is asked for."""
    if check:
        raise typer.Exit(0 if is_well(role, settings, live=live) else 1)
    if live:
        raise typer.BadParameter("it is a kind of --check.", param_hint="--live")


def _changed(given: dict[str, Any]) -> dict[str, str]:
    """The options that were given, as variables."""
    return {f"{PREFIX}{name.upper()}": str(value) for name, value in given.items() if value is not None}


def _become(command: list[str], env: dict[str, str] | None = None) -> NoReturn:
    """Replace this process, so that signals and the exit code are the command's own."""
    os.execve(command[0], command, {**os.environ, **(env or {})})  # noqa: S606 - no shell is the point
