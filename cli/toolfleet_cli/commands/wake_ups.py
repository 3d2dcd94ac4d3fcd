"""Lists, shows, replays and drops wake-ups that were never accepted: `toolfleet wake-ups`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from toolfleet_cli.commands.completion import complete_wakes
from toolfleet_cli.console import (
    ago,
    change_each,
    end_change,
    indented,
    note,
    one_line,
    say,
    say_facts,
    say_json,
    show_list,
    until,
)
from toolfleet_cli.remote import Gateway, JsonOption, LimitOption, OffsetOption, ask, over_fleet
from toolfleet_cli.resources import wakeups
from toolfleet_registry.errors import NoSuchEntry, OperationRefused

if TYPE_CHECKING:
    from toolfleet_tasks.dead_letters.kept_wakes import KeptWake

app = typer.Typer(no_args_is_help=True)

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


@app.command("list")
@over_fleet
def list_(
    *,
    kind: KindOption = None,
    about: AboutOption = "",
    error: ErrorOption = "",
    min_age: AgeOption = 0,
    limit: LimitOption = 50,
    offset: OffsetOption = 0,
    gateway: Gateway | None = None,
    as_json: JsonOption = False,
) -> None:
    """List those that wait to be accepted, those that are tried next first."""
    chosen = _chosen(kind, about, error, min_age)
    if offset and chosen:
        raise typer.BadParameter("--offset goes with none of --kind, --about, --error and --min-age.")
    wakes = ask(wakeups.list_wakeups, gateway, query={**chosen, "limit": limit, "offset": offset}).wakeups
    following = "--limit" if chosen else f"--offset {offset + limit}"
    more = f"There may be more: {following} shows them." if len(wakes) == limit else ""
    show_list(
        wakes,
        "WAKE,KIND,CONVERSATION,AGE,TRIES,NEXT,ERROR",
        lambda one: (
            one.wake_id,
            one.kind,
            one.text_field("conversation_id") or "-",
            ago(one.first_at),
            one.tries,
            None if one.due_at is None else until(one.due_at),
            one_line(one.error),
        ),
        as_json=as_json,
        none="No wake-ups wait.",
        more=more,
    )


@app.command()
@over_fleet
def show(wake_id: WakeId, *, gateway: Gateway | None = None, as_json: JsonOption = False) -> None:
    """Show one: what is told to whom, how often that was tried, and what went wrong."""
    wake = _one(wake_id, gateway)
    if as_json:
        say_json(wake)
        return
    say(f"{wake.wake_id}\n")
    say_facts(
        {
            "kind": wake.kind,
            "tries": wake.tries,
            "since": ago(wake.first_at),
            "next try in": "" if wake.due_at is None else until(wake.due_at),
            "given up": "" if wake.died_at is None else ago(wake.died_at),
            "error": wake.error,
        }
    )
    say(f"\nBody: {'unreadable' if wake.body is None else indented(wake.body)}")


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

    def one(wake_id: str) -> bool:
        if _one(wake_id, gateway).died_at is not None:
            raise OperationRefused(f"{wake_id!r} is dead: `toolfleet dead-letters replay {wake_id}` has it sent again.")
        ask(wakeups.replay_wakeup, gateway, wake_id, by=by)
        return False

    def step(query: dict[str, Any]) -> "wakeups.HandledWakeups":
        return ask(wakeups.replay_wakeups, gateway, query=query, by=by)

    _change("Due now", wake_ids or [], one, step, _chosen(kind, about, error, min_age), everything=everything)


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

    They are not tried again. One that is tried just now may still be accepted: the command says so. A job keeps the outcome of
    its wake-ups: `toolfleet jobs show`.
    """

    def one(wake_id: str) -> bool:
        return ask(wakeups.drop_wakeup, gateway, wake_id, by=by).under_way

    def step(query: dict[str, Any]) -> "wakeups.HandledWakeups":
        return ask(wakeups.drop_wakeups, gateway, query=query, by=by)

    _change("Dropped", wake_ids or [], one, step, _chosen(kind, about, error, min_age), everything=everything)


def _change(
    done: str,
    wake_ids: list[str],
    one: Callable[[str], bool],
    step: Callable[[dict[str, Any]], "wakeups.HandledWakeups"],
    chosen: dict[str, Any],
    *,
    everything: bool,
) -> NoReturn:
    """Change the wake-ups of these ids one by one, or all of a filter step by step; print the result, and end the command.

    `one` returns whether the wake-up is being tried just now; `step` changes some wake-ups of the filter.
    """
    if bool(wake_ids) == everything or (chosen and not everything):
        raise typer.BadParameter("name WAKE_IDs, or say --all, with which --kind, --about, --error and --min-age go.")
    if not everything:
        change_each(wake_ids, one, done=done, absent=_none)
    count, under_way, problems, more = 0, 0, list[str](), True
    while more:
        handled = step(chosen)
        count, under_way = count + handled.done, under_way + handled.under_way
        problems += handled.problems
        if more := handled.next is not None:
            note(f"{done} so far: {count}.")  # an interrupted command has done what it printed last
            chosen["cursor"] = handled.next
    end_change(done, count, problems, under_way=under_way)


def _one(wake_id: str, gateway: Gateway | None) -> "KeptWake":

    try:
        return ask(wakeups.get_wakeup, gateway, wake_id).root
    except NoSuchEntry:
        raise NoSuchEntry(_none(wake_id)) from None


def _chosen(kind: str | None, about: str, error: str, min_age: int) -> dict[str, Any]:
    """Return the filter as a query; it is empty if all are meant."""
    said = {"kind": kind, "about": about, "error": error, "min_age_seconds": min_age}
    return {name: value for name, value in said.items() if value}


def _none(wake_id: str) -> str:
    return f"There is no wake-up {wake_id!r}: `toolfleet wake-ups list` and `toolfleet dead-letters list` show those that there are."
