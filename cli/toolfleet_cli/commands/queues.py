"""Lists queues, and pauses, drains and resumes them: `toolfleet queues`."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from toolfleet_cli.console.output import add_row, age, note, progress, say, say_json, show_table, table
from toolfleet_cli.processes.completion import complete_modules
from toolfleet_cli.remote.fleet_options import over_fleet
from toolfleet_cli.remote.gateway import Gateway, place
from toolfleet_registry.settings import load_settings
from toolfleet_registry.time import fleet_clock

if TYPE_CHECKING:
    from toolfleet_tasks.metrics.queue_overview import QueueOverview, QueueOverviews

app = typer.Typer(help="The queues: how each is, and pausing, draining and resuming them.", no_args_is_help=True)

NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="The module whose queue it is, or lane:fast or lane:slow for all of a lane.",
        autocompletion=complete_modules,
    ),
]
ReasonOption = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for the audit and for others.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_COLOURS = {"open": "", "paused": "red", "draining": "yellow", "drained": "yellow"}

_ALL = "/operations/queues"
_POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class DirectQueues:
    """Implements `RemoteQueues` directly; `by` is the author in the audit, `None` for this machine's user."""

    by: str | None = None

    def listed(self) -> "list[QueueOverview]":
        """All queues, by name."""
        return asyncio.run(_read())

    def changed(self, name: str, action: str, reason: str) -> bool:
        """Do it to a queue. Returns whether it was otherwise before."""
        return asyncio.run(_change(name, action, reason, self.by))

    def waited(self, name: str, seconds: float) -> "list[QueueOverview]":
        """The queues of this name when nothing waits or runs there any more, or after so long."""
        return asyncio.run(_wait(name, seconds))


async def _read() -> "list[QueueOverview]":
    from toolfleet_tasks.metrics.queue_overview import QueueOverviews

    async with progress("Asking Redis"), QueueOverviews.of(load_settings()) as overviews:
        return _with_error(overviews, await overviews.read())


def _with_error(overviews: "QueueOverviews", queues: "Sequence[QueueOverview]") -> "list[QueueOverview]":
    if overviews.broker_error is not None:
        note(overviews.broker_error, style="red")
    return [*queues]


async def _change(name: str, action: str, reason: str, by: str | None) -> bool:
    from toolfleet_tasks.operations.change_trail import Actor
    from toolfleet_tasks.operations.queue_changes import QueueChanges

    async with QueueChanges.of(load_settings(), by=Actor.at_command_line(by)) as changes:
        act = {"pause": changes.pause, "drain": changes.drain, "resume": changes.resume}[action]
        return (await act(name, reason)).is_new


async def _wait(name: str, seconds: float) -> "list[QueueOverview]":
    from toolfleet_tasks.metrics.queue_overview import QueueOverviews

    async with progress("Waiting for what is left"), QueueOverviews.of(load_settings()) as overviews:
        return _with_error(overviews, await overviews.wait_until_empty(name, seconds=seconds))


@dataclass(frozen=True, slots=True)
class RemoteQueues:
    """The queues, as a gateway has them. What it refuses ends the command."""

    gateway: Gateway

    def listed(self) -> "list[QueueOverview]":
        """All queues, by name."""
        return _overviews_in(self.gateway.get(_ALL))

    def changed(self, name: str, action: str, reason: str) -> bool:
        """Do it to a queue. Returns whether it was otherwise before."""
        body = {"action": action, "reason": reason}
        return bool(self.gateway.post(place("operations", "queues", name), body)["changed"])

    def waited(self, name: str, seconds: float) -> "list[QueueOverview]":
        """The queues of this name when surely nothing waits or runs there any more, or after so long."""
        from toolfleet_tasks.metrics.queue_overview import Emptiness

        until, emptiness = (
            time.monotonic() + seconds,
            Emptiness(sees_held=False),
        )  # a gateway does not say which broker it is
        while True:
            asked_at = time.monotonic()
            queues = _overviews_in(self.gateway.get(place("operations", "queues", name)))
            if emptiness.is_over(queues, asked_at, until=until):
                return queues
            time.sleep(_POLL_SECONDS if emptiness.seen else min(_POLL_SECONDS, max(until - time.monotonic(), 0)))


def _overviews_in(found: Any) -> "list[QueueOverview]":
    from pydantic import TypeAdapter

    from toolfleet_tasks.metrics.queue_overview import QueueOverview

    if (away := found.get("broker_error")) is not None:
        note(away, style="red")
    missing = {"since": None, "oldest_seconds": None, "waiting": None}
    return TypeAdapter(list[QueueOverview]).validate_python([{**missing, **each} for each in found["queues"]])


@app.command("list")
@over_fleet
def list_(*, gateway: Gateway | None = None, as_json: JsonOption = False) -> None:
    """Show all queues: which are paused or drain, what waits in each, and what workers have of it."""
    queues = _queues(gateway).listed()
    if as_json:
        say_json([asdict(queue) for queue in queues])
        return
    if not queues:
        note("There are no queues, for there are no modules: `toolfleet modules add NAME URL` adds one.")
        return
    _show(queues)


@app.command()
@over_fleet
def pause(
    name: NameArgument, *, reason: ReasonOption = "", gateway: Gateway | None = None, by: str | None = None
) -> None:
    """Have workers begin nothing more of a queue, within a second. What runs goes on; calls wait within their deadlines."""
    is_new = _queues(gateway, by).changed(name, "pause", reason)
    say(f"{_subject(name)} paused{'' if is_new else ' already'}: `toolfleet queues resume {name}` ends it.")


@app.command()
@over_fleet
def drain(
    name: NameArgument,
    *,
    reason: ReasonOption = "",
    wait: Annotated[
        float | None,
        typer.Option(
            "--wait",
            metavar="SECONDS",
            min=0,
            help="Return when nothing waits or runs there; exit code 1 if that takes longer.",
        ),
    ] = None,
    gateway: Gateway | None = None,
    by: str | None = None,
) -> None:
    """Have a queue take no new calls: they are refused at once. What waits is run, and what runs goes on."""
    queues = _queues(gateway, by)
    is_new = queues.changed(name, "drain", reason)
    say(f"{_subject(name)} draining{'' if is_new else ' already'}: `toolfleet queues resume {name}` ends it.")
    if wait is None:
        return
    found = queues.waited(name, wait)
    left = [queue for queue in found if not queue.is_empty]
    for queue in left:
        waiting = "an unknown number of" if queue.waiting is None else queue.waiting
        note(f"In {queue.queue} {waiting} calls wait, and workers have {queue.held}.", style="red")
    if left:
        raise typer.Exit(1)
    say("Nothing waits or runs there.")


@app.command()
@over_fleet
def resume(
    name: NameArgument, *, reason: ReasonOption = "", gateway: Gateway | None = None, by: str | None = None
) -> None:
    """End a pause or a drain: calls are taken and run again, within a second."""
    is_new = _queues(gateway, by).changed(name, "resume", reason)
    say(f"{_subject(name)} open{'' if is_new else ' already'}.")


def _queues(gateway: Gateway | None, by: str | None = None) -> DirectQueues | RemoteQueues:
    return DirectQueues(by) if gateway is None else RemoteQueues(gateway)


def _subject(name: str) -> str:
    lane = name.removeprefix("lane:")
    return f"The queue of {name} is" if lane == name else f"The queues of the lane {lane} are"


def _show(queues: "Sequence[QueueOverview]") -> None:
    shown, now = table("QUEUE", "LANE", "STATE", "WAITING", "HELD", "OLDEST", "WORKERS", "WHY"), fleet_clock.now()
    for queue in queues:
        state = Text(queue.state, style=_COLOURS[queue.state])
        workers = Text(str(queue.workers), style="" if queue.workers else "red")
        waiting = "-" if queue.waiting is None else str(queue.waiting)
        counts = waiting, str(queue.held), age(queue.oldest_seconds if queue.waiting else None)
        add_row(shown, queue.queue, queue.lane, state, *counts, workers, _why(queue, now))
    show_table(shown)


def _why(queue: "QueueOverview", now: float) -> str:
    if queue.since is None:
        return ""
    words = f"{age(max(now - queue.since, 0.0))} ago by {queue.by}{', the whole lane' if queue.is_lanes else ''}"
    return f"{words}: {queue.reason}" if queue.reason else words
