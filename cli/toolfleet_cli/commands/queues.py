"""Lists queues, and pauses, drains and resumes them: `toolfleet queues`."""

import time
from typing import Annotated

import typer
from rich.text import Text

from toolfleet_cli.commands.completion import complete_modules
from toolfleet_cli.console import age, ago, note, say, show_list
from toolfleet_cli.remote import Gateway, JsonOption, ask, over_fleet
from toolfleet_cli.resources import queues
from toolfleet_registry.settings import load_settings

app = typer.Typer(no_args_is_help=True)

NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="The module whose queue it is, or lane:fast or lane:slow for all of a lane.",
        autocompletion=complete_modules,
    ),
]
ReasonOption = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for the audit and for others.")]

_COLOURS = {"open": "", "paused": "red", "draining": "yellow", "drained": "yellow"}

_POLL_SECONDS = 0.5


@app.command("list")
@over_fleet
def list_(*, gateway: Gateway | None = None, as_json: JsonOption = False) -> None:
    """Show all queues: which are paused or drain, what waits in each, and what workers have of it."""
    none = "There are no queues, for there are no modules: `toolfleet modules add NAME URL` adds one."
    show_list(
        _known(ask(queues.list_queues, gateway)),
        "QUEUE,LANE,STATE,WAITING,HELD,OLDEST,WORKERS,WHY",
        _row,
        as_json=as_json,
        none=none,
    )


def _row(one: "queues.ShownQueue") -> tuple[object, ...]:
    state = Text(one.state, style=_COLOURS[one.state])
    workers = Text(str(one.workers), style="" if one.workers else "red")
    oldest = age(one.oldest_seconds if one.waiting else None)
    why = "" if one.since is None else f"{ago(one.since)} ago by {one.by}{', the whole lane' if one.is_lanes else ''}"
    why = f"{why}: {one.reason}" if why and one.reason else why
    return one.queue, one.lane, state, one.waiting, one.held, oldest, workers, why


@app.command()
@over_fleet
def pause(
    name: NameArgument, *, reason: ReasonOption = "", gateway: Gateway | None = None, by: str | None = None
) -> None:
    """Have workers begin nothing more of a queue, within a second. What runs goes on; calls wait within their deadlines."""
    is_new = _change(name, "pause", reason, gateway, by)
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
    is_new = _change(name, "drain", reason, gateway, by)
    say(f"{_subject(name)} draining{'' if is_new else ' already'}: `toolfleet queues resume {name}` ends it.")
    if wait is None:
        return
    left = [queue for queue in _waited(name, wait, gateway) if not queue.is_empty]
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
    is_new = _change(name, "resume", reason, gateway, by)
    say(f"{_subject(name)} open{'' if is_new else ' already'}.")


def _change(name: str, action: str, reason: str, gateway: Gateway | None, by: str | None) -> bool:
    """Change a queue and return whether it was otherwise before."""
    body = {"action": action, "reason": reason}
    return ask(queues.change_queue, gateway, name, body=body, by=by).changed


def _waited(name: str, seconds: float, gateway: Gateway | None) -> "list[queues.ShownQueue]":
    """Return the queues of this name when surely nothing waits or runs there any more, or after so long."""
    from toolfleet_tasks.operations.queue_overview import Emptiness

    # A gateway does not say which broker it has.
    settings = load_settings() if gateway is None else None
    emptiness = Emptiness(sees_held=settings is not None and settings.has_redis_broker)
    until = time.monotonic() + seconds
    while True:
        asked_at = time.monotonic()
        found = ask(queues.get_queue, gateway, name, settings=settings)
        is_empty = all(queue.is_empty for queue in found.queues)
        if emptiness.is_over(asked_at, is_empty=is_empty, until=until, waits=seconds > 0):
            return _known(found)
        time.sleep(_POLL_SECONDS if emptiness.seen else min(_POLL_SECONDS, max(until - time.monotonic(), 0)))


def _known(found: "queues.ShownQueueList") -> "list[queues.ShownQueue]":
    """Return the queues; if the broker does not say what waits in them, print why."""
    if found.broker_error is not None:
        note(found.broker_error, style="red")
    return found.queues


def _subject(name: str) -> str:
    lane = name.removeprefix("lane:")
    return f"The queue of {name} is" if lane == name else f"The queues of the lane {lane} are"
