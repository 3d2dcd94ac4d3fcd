"""Runs as many workers of a lane on this machine as its calls need: `toolfleet autoscale`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from toolfleet_cli.console.output import say
from toolfleet_cli.processes.extras import need
from toolfleet_registry.config.run_file import FOLDER
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.settings import PREFIX, load_settings
from toolfleet_registry.system.private_process import hide_process

READY = "toolfleet autoscale ready"


class ScaledLane(StrEnum):
    """The lanes that can be scaled."""

    FAST = "fast"
    SLOW = "slow"


def register(app: typer.Typer) -> None:
    """Give the app the command."""
    app.command()(autoscale)


def autoscale(  # noqa: PLR0913 - each is an option
    lane: Annotated[ScaledLane, typer.Argument(help="Whose workers to start and end.")],
    *,
    least: Annotated[int, typer.Option("--min", min=0, metavar="N", help="Workers at least.")] = 1,
    most: Annotated[int, typer.Option("--max", min=1, metavar="N", help="Workers at most.")] = 4,
    calm: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="End a worker when fewer have been enough for so long.")
    ] = 60,
    fill: Annotated[
        float,
        typer.Option(
            min=0.1,
            max=1,
            metavar="PART",
            help="Of each worker's slots: start another one when more than these are in use.",
        ),
    ] = 1,
    concurrency: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Calls in flight at most, in each worker.")
    ] = None,
    logs: Annotated[Path, typer.Option(metavar="FOLDER", help="Where each worker has its log.")] = Path(FOLDER)
    / "logs",
) -> None:
    """Run as many workers of a lane as its running and waiting calls need, until SIGTERM: then they finish their calls.

    With --min 0 calls wait for the first worker. One command scales a lane: workers that others have started are not counted.
    """
    need("worker")
    if least > most:
        raise typer.BadParameter(f"it is more than --max {most}.", param_hint="--min")
    settings = load_settings(**({} if concurrency is None else {"worker_concurrency": concurrency}))
    if settings.hide_process:
        hide_process()
    if settings.redis_url is None:
        raise SettingsError(f"There is no Redis to work with: set {PREFIX}REDIS_URL, such as redis://127.0.0.1:6379/0.")
    from toolfleet_cli.scaling import ScaleBounds
    from toolfleet_cli.scaling import autoscale as scale
    from toolfleet_tasks.control.logs import configure_logs

    configure_logs(settings)
    say(f"{READY} lane={lane.value}")
    scale(lane.value, settings, ScaleBounds(least, most, calm, fill), logs.absolute(), announce=say)
