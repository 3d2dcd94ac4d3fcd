"""Lists, shows, replays and drops wake-ups that were never accepted: `toolfleet wakes`."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Annotated, Literal, NoReturn

import typer

from toolfleet_cli.console.dead_letters import ago, one_line
from toolfleet_cli.console.output import add_row, age, fail, note, say, say_json, show_table, table
from toolfleet_cli.console.wake_choice import ChosenWakes, WakeAction, WakeStep
from toolfleet_cli.direct.wakes import RedisWakes
from toolfleet_cli.processes.completion import complete_wakes
from toolfleet_cli.remote.fleet_options import over_fleet
from toolfleet_cli.remote.gateway import Gateway
from toolfleet_cli.remote.wakes import GatewayWakes
from toolfleet_registry.time import fleet_clock

app = typer.Typer(
    help="Wake-ups of jobs and webhooks that wait to be accepted: look at them, have them sent now, drop them.",
    no_args_is_help=True,
)

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
WakeId = Annotated[
    str,
    typer.Argument(metavar="WAKE_ID", help="As `toolfleet wakes list` shows it.", autocompletion=complete_wakes),
]
WakeIds = Annotated[
    list[str] | None,
    typer.Argument(metavar="WAKE_ID", help="As `toolfleet wakes list` shows it.", autocompletion=complete_wakes),
]
KindOption = Annotated[
    Literal["continue", "notify", "call", "registry"] | None, typer.Option("--kind", help="Only those of this kind.")
]
AboutOption = Annotated[
    str, typer.Option("--about", metavar="TEXT", help="Only those with this in their id or subject.")
]
ErrorOption = Annotated[str, typer.Option("--error", metavar="TEXT", help="Only those with this in their last error.")]
AgeOption = Annotated[
    int, typer.Option("--min-age", metavar="SECONDS", min=0, max=10**9, help="Only those that have waited for so long.")
]
AllOption = Annotated[bool, typer.Option("--all", help="All that wait now, or those of them that the options choose.")]
Limit = Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="Show at most so many.")]
Offset = Annotated[int, typer.Option(metavar="N", min=0, help="Leave out the first so many.")]


@app.command("list")
@over_fleet
def list_(  # noqa: PLR0913 - each is an option
    *,
    kind: KindOption = None,
    about: AboutOption = "",
    error: ErrorOption = "",
    min_age: AgeOption = 0,
    limit: Limit = 50,
    offset: Offset = 0,
    gateway: Gateway | None = None,
    as_json: JsonOption = False,
) -> None:
    """List those that wait to be accepted, those that are tried next first."""
    chosen = ChosenWakes(kind, about, error, min_age)
    if offset and not chosen.is_all:
        raise typer.BadParameter("--offset goes with none of --kind, --about, --error and --min-age.")
    wakes = _wakes(gateway).listed(chosen, limit, offset)
    if as_json:
        say_json([dataclasses.asdict(wake) for wake in wakes])
        return
    if not wakes:
        note("No wake-ups wait.")
        return
    shown = table("WAKE", "KIND", "CONVERSATION", "AGE", "TRIES", "NEXT", "ERROR")
    for wake in wakes:
        conversation = wake.text_field("conversation_id") or "-"
        tries, due = str(wake.tries), "-" if wake.due_at is None else _until(wake.due_at)
        add_row(shown, wake.wake_id, wake.kind, conversation, ago(wake.first_at), tries, due, one_line(wake.error))
    show_table(shown)
    if len(wakes) == limit:
        more = f"--offset {offset + limit}" if chosen.is_all else "--limit"
        note(f"There may be more: {more} shows them.")


@app.command()
@over_fleet
def show(wake_id: WakeId, *, gateway: Gateway | None = None, as_json: JsonOption = False) -> None:
    """Show one: what is told to whom, how often that was tried, and what went wrong."""
    wake = _wakes(gateway).shown(wake_id)
    if wake is None:
        fail(_none(wake_id), code=1)
    if as_json:
        say_json(dataclasses.asdict(wake))
        return
    say(f"{wake.wake_id}\n")
    facts = {
        "kind": wake.kind,
        "tries": str(wake.tries),
        "since": ago(wake.first_at),
        "next try in": "" if wake.due_at is None else _until(wake.due_at),
        "given up": "" if wake.died_at is None else ago(wake.died_at),
        "error": wake.error,
    }
    for name, value in facts.items():
        if value:
            say(f"{name}: {one_line(value)}")
    body = "unreadable" if wake.body is None else json.dumps(wake.body, indent=2, ensure_ascii=False)
    say(f"\nBody: {body}")


@app.command()
@over_fleet
def replay(  # noqa: PLR0913 - each is an option
    wake_ids: WakeIds = None,
    *,
    everything: AllOption = False,
    kind: KindOption = None,
    about: AboutOption = "",
    error: ErrorOption = "",
    min_age: AgeOption = 0,
    gateway: Gateway | None = None,
    by: str | None = None,
) -> None:
    """Have some of them tried now, or all of a filter. Exit code 1 if one of them is not there; the others are tried all the same."""
    chosen = ChosenWakes(kind, about, error, min_age)
    _handle(_wakes(gateway, by), "replay", wake_ids or [], chosen, everything=everything)


@app.command()
@over_fleet
def drop(  # noqa: PLR0913 - as above
    wake_ids: WakeIds = None,
    *,
    everything: AllOption = False,
    kind: KindOption = None,
    about: AboutOption = "",
    error: ErrorOption = "",
    min_age: AgeOption = 0,
    gateway: Gateway | None = None,
    by: str | None = None,
) -> None:
    """Forget some that wait, or all of a filter. Exit code 1 if one of them is not there; the others are dropped all the same.

    Nobody tries them any more. One that is tried just now may still be accepted: the command says so. A job keeps what became of
    its wake-ups: `toolfleet jobs show`.
    """
    chosen = ChosenWakes(kind, about, error, min_age)
    _handle(_wakes(gateway, by), "drop", wake_ids or [], chosen, everything=everything)


def _handle(
    wakes: RedisWakes | GatewayWakes, action: WakeAction, wake_ids: list[str], chosen: ChosenWakes, *, everything: bool
) -> NoReturn:
    """Handle those of these ids, or all of a filter, say what came of it, and end the command."""
    if bool(wake_ids) == everything or not (everything or chosen.is_all):
        raise typer.BadParameter("name WAKE_IDs, or say --all, with which --kind, --about, --error and --min-age go.")
    ids = list(dict.fromkeys(wake_ids))
    handled = _handle_all(wakes, action, chosen) if everything else _EACH[action](wakes, ids)
    if everything or handled.done:
        note(f"{_DONE[action]}: {handled.done}.")
    if handled.under_way:
        note(f"Tried just now, so that they may still be accepted: {handled.under_way}.", style="yellow")
    for problem in handled.problems:
        note(problem, style="red")
    raise typer.Exit(1 if handled.problems else 0)


def _handle_all(wakes: RedisWakes | GatewayWakes, action: WakeAction, chosen: ChosenWakes) -> WakeStep:
    """Handle all, step by step, and print the progress of each: an interrupted command has done what it printed last."""
    so_far = wakes.handled(action, chosen, None)
    while so_far.next is not None:
        note(f"{_DONE[action]} so far: {so_far.done}.")
        so_far = so_far.joined(wakes.handled(action, chosen, so_far.next))
    return so_far


def _replay_each(wakes: RedisWakes | GatewayWakes, wake_ids: list[str]) -> WakeStep:
    problems = list[str]()
    for wake_id in wake_ids:
        wake = wakes.shown(wake_id)
        if wake is not None and wake.died_at is not None:
            problems.append(f"{wake_id!r} is dead: `toolfleet dead replay {wake_id}` has it sent again.")
        elif wake is None or not wakes.tried(wake_id):
            problems.append(_none(wake_id))
    return WakeStep(len(wake_ids) - len(problems), problems=problems)


def _drop_each(wakes: RedisWakes | GatewayWakes, wake_ids: list[str]) -> WakeStep:
    outcomes = {wake_id: wakes.dropped(wake_id) for wake_id in wake_ids}
    problems = [_none(wake_id) for wake_id, became in outcomes.items() if became is None]
    return WakeStep(len(wake_ids) - len(problems), sum(became is True for became in outcomes.values()), problems)


_DONE: Mapping[WakeAction, str] = {"replay": "Due now", "drop": "Dropped"}
_EACH: Mapping[WakeAction, Callable[[RedisWakes | GatewayWakes, list[str]], WakeStep]] = {
    "replay": _replay_each,
    "drop": _drop_each,
}


def _wakes(gateway: Gateway | None, by: str | None = None) -> RedisWakes | GatewayWakes:
    return RedisWakes(by) if gateway is None else GatewayWakes(gateway)


def _none(wake_id: str) -> str:
    return (
        f"There is no wake-up {wake_id!r}: `toolfleet wakes list` and `toolfleet dead list` show those that there are."
    )


def _until(at: float) -> str:
    return age(max(0.0, at - fleet_clock.now()))
