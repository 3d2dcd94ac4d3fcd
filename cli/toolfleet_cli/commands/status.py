"""Shows on one screen how the fleet is doing: `toolfleet status`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from toolfleet_cli.console import age, coloured, say, say_json, show_rows, shown_url
from toolfleet_cli.remote import Gateway, ask, over_fleet
from toolfleet_cli.resources import queues
from toolfleet_registry.config.run_file import ListedProcess, run_file_of
from toolfleet_registry.settings import Settings, load_settings

if TYPE_CHECKING:
    from toolfleet_tasks.operations.fleet_status import FleetStatus, LaneStatus, ModuleTrouble, QueueStatus

_ROWS = 15  # of queues, and of modules: one screen; --json has all


def register(app: typer.Typer) -> None:
    """Give the app the command."""
    app.command()(over_fleet(status))


def status(
    *,
    gateway: Gateway | None = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with everything.")] = False,
) -> None:
    """Show workers, lanes, queues, modules in trouble, dead letters, jobs and wake-ups. Asks Redis only, for 5 s at most."""
    found = ask(queues.get_fleet_status, gateway).root
    if gateway is None:
        settings = load_settings()
        _show(found, _processes(settings), f"Redis        {shown_url(str(settings.redis_url))}", as_json=as_json)
    else:
        _show(found, {}, f"Gateway      {shown_url(gateway.url)}", as_json=as_json)


def _processes(settings: Settings) -> Mapping[str, ListedProcess]:
    """Return the processes of the `up` that runs here, if it is this fleet's."""
    run_file = run_file_of(settings.redis_url)
    return {} if run_file is None else run_file.processes


def _show(found: "FleetStatus", processes: Mapping[str, ListedProcess], asked: str, *, as_json: bool) -> None:
    if as_json:
        say_json({**asdict(found), "processes": {name: one.model_dump() for name, one in processes.items()}})
        return
    say(asked)
    for lane in found.lanes:
        _say_workers(lane)
    _say_processes(processes)
    for sentence in found.not_applied:
        say(f"Not applied  {sentence}")
    _say_counts(found)
    if found.broker_error is None:
        _show_queues(found.queues)
    else:
        say(f"Queues       what waits is not known. {found.broker_error}")
    _show_troubles(found.troubles)


def _say_workers(lane: "LaneStatus") -> None:
    if not lane.workers and not lane.modules and lane.lane == "slow":
        return
    workers = f"{_count(len(lane.workers), 'worker')}, {lane.slots} slots" if lane.workers else "no worker"
    say(f"{f'Lane {lane.lane}':12} {workers}, {_count(len(lane.modules), 'module')}")


def _say_processes(processes: Mapping[str, ListedProcess]) -> None:
    unwell = [f"{name} {process.state}" for name, process in processes.items() if process.state != "ready"]
    if processes:
        say(
            f"Processes    {len(processes) - len(unwell)} of {len(processes)} ready"
            + "".join(f", {one}" for one in unwell)
        )


def _say_counts(found: "FleetStatus") -> None:
    overdue = f" ({found.overdue_jobs} overdue)" if found.overdue_jobs else ""
    counts = {
        "Calls": None if found.held is None else f"{found.held} with workers",
        "Dead letters": str(found.dead_letters),
        "Jobs": f"{found.jobs} not ended{overdue}",
        "Wake-ups": f"{found.wakes} waiting, {found.dead_wakes} dead",
        "Webhooks": f"{found.dead_webhooks} dead" if found.dead_webhooks else None,
        "Quarantine": str(found.quarantined) if found.quarantined else None,
    }
    for name, text in counts.items():
        if text is not None:
            say(f"{name:12} {text}")


def _show_queues(queues: "Sequence[QueueStatus]") -> None:
    if not queues:
        say("Queues       all are empty")
        return
    say("")
    show_rows(
        "QUEUE,LANE,STATE,WORKERS,WAITING,OLDEST",
        queues[:_ROWS],
        _queue_row,
    )
    _say_more(len(queues), "queues")


def _queue_row(one: "QueueStatus") -> tuple[object, ...]:
    workers = Text(str(one.workers), style="" if one.workers else "red")
    state = Text(one.state, style={"open": "", "draining": "yellow"}.get(one.state, "red"))
    return one.queue, one.lane, state, workers, str(one.waiting), age(one.oldest_seconds)


def _show_troubles(troubles: "Sequence[ModuleTrouble]") -> None:
    if not troubles:
        say("Modules      none is in trouble")
        return
    say("")
    show_rows("MODULE,STATE,WHY", troubles[:_ROWS], lambda one: (one.module, coloured(one.trouble), _why(one)))
    _say_more(len(troubles), "modules")


def _why(one: "ModuleTrouble") -> str:
    if one.trouble == "unknown":
        return "no manifest: no worker has looked at it yet"
    if one.trouble == "stale":
        return f"its last good manifest is {age(one.seconds)} old" + (f": {one.error}" if one.error else "")
    if one.error is not None:
        return one.error
    if one.trouble == "away":
        left_alone = f"left alone for {one.seconds:.1f} s" if one.seconds else "it is about to be looked at"
        return f"{one.reason}; {left_alone}"
    return one.reason


def _say_more(count: int, what: str) -> None:
    if count > _ROWS:
        say(f"{count - _ROWS} {what} more: --json has all.")


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
