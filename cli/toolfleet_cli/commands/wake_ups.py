"""Lists, shows, replays and drops wake-ups that were never accepted: `toolfleet wake-ups`."""

import dataclasses
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from toolfleet_cli.commands.completion import complete_wakes
from toolfleet_cli.console.output import add_row, age, note, say, say_json, show_table, table
from toolfleet_cli.console.values import ago, one_line
from toolfleet_cli.operations import ask
from toolfleet_cli.remote import Gateway, over_fleet
from toolfleet_registry.errors import NoSuchEntry, OperationRefused
from toolfleet_registry.system import fleet_clock

if TYPE_CHECKING:
    from toolfleet_tasks.dead_letters.kept_wakes import KeptWake
    from toolfleet_tasks.resources.wakeups import HandledWakeups

app = typer.Typer(
    help="Wake-ups of jobs and webhooks that wait to be accepted: look at them, have them sent now, drop them.",
    no_args_is_help=True,
)

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
WakeId = Annotated[
    str,
    typer.Argument(metavar="WAKE_ID", help="As `toolfleet wake-ups list` shows it.", autocompletion=complete_wakes),
]
WakeIds = Annotated[
    list[str] | None,
    typer.Argument(metavar="WAKE_ID", help="As `toolfleet wake-ups list` shows it.", autocompletion=complete_wakes),
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
def list_(
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
    from toolfleet_tasks.resources import wakeups

    chosen = _chosen(kind, about, error, min_age)
    if offset and chosen:
        raise typer.BadParameter("--offset goes with none of --kind, --about, --error and --min-age.")
    wakes = ask(wakeups.list_wakeups, gateway, query={**chosen, "limit": limit, "offset": offset}).wakeups
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
        more = "--limit" if chosen else f"--offset {offset + limit}"
        note(f"There may be more: {more} shows them.")


@app.command()
@over_fleet
def show(wake_id: WakeId, *, gateway: Gateway | None = None, as_json: JsonOption = False) -> None:
    """Show one: what is told to whom, how often that was tried, and what went wrong."""
    wake = _one(wake_id, gateway)
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
def replay(
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
    from toolfleet_tasks.resources import wakeups

    def one(wake_id: str) -> bool:
        if _one(wake_id, gateway).died_at is not None:
            raise OperationRefused(f"{wake_id!r} is dead: `toolfleet dead-letters replay {wake_id}` has it sent again.")
        ask(wakeups.replay_wakeup, gateway, path={"wake_id": wake_id}, by=by)
        return False

    _handle(
        "Due now",
        one,
        lambda query: ask(wakeups.replay_wakeups, gateway, query=query, by=by),
        wake_ids or [],
        _chosen(kind, about, error, min_age),
        everything=everything,
    )


@app.command()
@over_fleet
def drop(
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
    from toolfleet_tasks.resources import wakeups

    _handle(
        "Dropped",
        lambda wake_id: ask(wakeups.drop_wakeup, gateway, path={"wake_id": wake_id}, by=by).under_way,
        lambda query: ask(wakeups.drop_wakeups, gateway, query=query, by=by),
        wake_ids or [],
        _chosen(kind, about, error, min_age),
        everything=everything,
    )


def _handle(
    done: str,
    one: Callable[[str], bool],
    step: Callable[[dict[str, Any]], "HandledWakeups"],
    wake_ids: list[str],
    chosen: dict[str, Any],
    *,
    everything: bool,
) -> NoReturn:
    """Handle the wake-ups of these ids, or everything of a filter, print the result, and end the command.

    `one` returns whether the wake-up is being tried just now; `step` handles some of the filter.
    """
    if bool(wake_ids) == everything or (chosen and not everything):
        raise typer.BadParameter("name WAKE_IDs, or say --all, with which --kind, --about, --error and --min-age go.")
    count, under_way, problems = 0, 0, list[str]()
    for wake_id in dict.fromkeys(wake_ids):
        try:
            under_way += one(wake_id)
            count += 1
        except NoSuchEntry:
            problems.append(_none(wake_id))
        except OperationRefused as exc:
            problems.append(str(exc))
    more = everything
    while more:
        handled = step(chosen)
        count, under_way = count + handled.done, under_way + handled.under_way
        problems += handled.problems
        if more := handled.next is not None:
            note(f"{done} so far: {count}.")  # an interrupted command has done what it printed last
            chosen["cursor"] = handled.next
    if everything or count:
        note(f"{done}: {count}.")
    if under_way:
        note(f"Tried just now, so that they may still be accepted: {under_way}.", style="yellow")
    for problem in problems:
        note(problem, style="red")
    raise typer.Exit(1 if problems else 0)


def _one(wake_id: str, gateway: Gateway | None) -> "KeptWake":
    from toolfleet_tasks.resources import wakeups

    try:
        return ask(wakeups.get_wakeup, gateway, path={"wake_id": wake_id}).root
    except NoSuchEntry:
        raise NoSuchEntry(_none(wake_id)) from None


def _chosen(kind: str | None, about: str, error: str, min_age: int) -> dict[str, Any]:
    """Return the filter as a query; it is empty if all are meant."""
    said = {"kind": kind, "about": about, "error": error, "min_age_seconds": min_age}
    return {name: value for name, value in said.items() if value}


def _none(wake_id: str) -> str:
    return f"There is no wake-up {wake_id!r}: `toolfleet wake-ups list` and `toolfleet dead-letters list` show those that there are."


def _until(at: float) -> str:
    return age(max(0.0, at - fleet_clock.now()))
