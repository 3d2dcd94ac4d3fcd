"""`toolfleet worker`, `beat` and `flower`: the processes of a fleet, each in this process, set up by the environment."""

import os
from enum import StrEnum
from typing import Annotated, NoReturn

import typer

from toolfleet_registry.errors import SettingsError
from toolfleet_registry.settings import PREFIX, Settings, load_settings
from toolfleet_workers.cli.extras import need

CheckOption = Annotated[
    bool, typer.Option("--check", help="Only say by the exit code, 0 or 1, whether one answers here.")
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


def worker(*, lane: LaneOption = None, concurrency: ConcurrencyOption = None, check: CheckOption = False) -> None:
    """Run calls, until SIGTERM: then finish those that run. Prints `toolfleet worker ready lane=…` when it is."""
    if not check:
        need("worker")
    settings = _settings(lane=lane, worker_concurrency=concurrency)
    if check:
        _check(settings.lane, settings)
    from toolfleet_workers.commands import worker_command  # noqa: PLC0415 - only this command needs it

    changed = {"LANE": settings.lane, "WORKER_CONCURRENCY": str(settings.worker_concurrency)}
    _become(worker_command(settings.lane), {f"{PREFIX}{name}": value for name, value in changed.items()})


def beat(*, check: CheckOption = False) -> None:
    """Send the fleet's own regular tasks: the look at every module. A fleet needs one."""
    settings = _settings()
    if check:
        _check("beat", settings)
    from toolfleet_workers.commands import beat_command  # noqa: PLC0415 - only this command needs it

    _become(beat_command())


def flower(
    *,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Listen on this port.")] = 5555,
    address: Annotated[
        str, typer.Option(help="Listen on this address; anybody who reaches it sees every call.")
    ] = "127.0.0.1",
) -> None:
    """Show calls, queues and workers in the browser. Takes Flower's own `FLOWER_…` variables as well."""
    need("flower")
    _settings()
    from toolfleet_workers.commands import flower_command  # noqa: PLC0415 - only this command needs it

    _become(flower_command(address, port))


def _settings(**overrides: object) -> Settings:
    """The settings, checked here: Celery would answer to wrong ones with a traceback."""
    settings = load_settings(**{name: value for name, value in overrides.items() if value is not None})
    if settings.redis_url is None:
        raise SettingsError(f"There is no Redis to work with: set {PREFIX}REDIS_URL, such as redis://127.0.0.1:6379/0.")
    if settings.signing_key is not None:
        from toolfleet_tasks.signing import Seal  # noqa: PLC0415 - `--help` needs nothing of the tasks

        Seal(settings.signing_key)  # here a missing library is one sentence
    return settings


def _check(role: str, settings: Settings) -> NoReturn:
    from toolfleet_workers.pings import answers  # noqa: PLC0415 - only this option needs it

    raise typer.Exit(0 if answers(role, settings) else 1)


def _become(command: list[str], env: dict[str, str] | None = None) -> NoReturn:
    """Replace this process, so that signals and the exit code are the command's own."""
    os.execve(command[0], command, {**os.environ, **(env or {})})  # noqa: S606 - no shell is the point
