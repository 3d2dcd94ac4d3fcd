"""`toolfleet wakes`: news of jobs' ends that wait to be accepted, and those that nobody accepted."""

import asyncio
import dataclasses
import json
from typing import TYPE_CHECKING, Annotated

import typer

from toolfleet_cli.console.output import add_row, age, fail, note, progress, say, say_json, show_table, table
from toolfleet_cli.processes.completion import complete_wakes
from toolfleet_registry.errors import NotReplayable
from toolfleet_registry.time import fleet_clock

if TYPE_CHECKING:
    from toolfleet_tasks.dead_letters.kept_wakes import KeptWake

app = typer.Typer(
    help="News of jobs' ends that wait to be accepted, or that nobody accepted: look at them, send them anew, drop them.",
    no_args_is_help=True,
)

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
WakeId = Annotated[
    str,
    typer.Argument(
        metavar="WAKE_ID", help="As `toolfleet wakes list` or `dead` shows it.", autocompletion=complete_wakes
    ),
]
Limit = Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="Show at most so many.")]
Offset = Annotated[int, typer.Option(metavar="N", min=0, help="Leave out the first so many.")]

_ONE_LINE = 200  # characters of an error in the list; `show` has the whole


@app.command("list")
def list_(*, limit: Limit = 50, offset: Offset = 0, as_json: JsonOption = False) -> None:
    """List the news that wait to be accepted, those that are tried next first."""
    wakes = asyncio.run(_look(limit, offset, dead=False))
    _show_all(wakes, "No news wait.", as_json=as_json, more_at=offset + limit if len(wakes) == limit else None)


@app.command()
def dead(*, limit: Limit = 50, offset: Offset = 0, as_json: JsonOption = False) -> None:
    """List the news that nobody accepted, the latest first."""
    wakes = asyncio.run(_look(limit, offset, dead=True))
    _show_all(
        wakes, "There are no dead news.", as_json=as_json, more_at=offset + limit if len(wakes) == limit else None
    )


@app.command()
def show(wake_id: WakeId, *, as_json: JsonOption = False) -> None:
    """Show one: what is told to whom, how often that was tried, and what went wrong."""
    wake = asyncio.run(_show(wake_id))
    if wake is None:
        fail(_none(wake_id), code=1)
    if as_json:
        say_json(dataclasses.asdict(wake))
        return
    say(f"{wake.wake_id}\n")
    facts = {
        "kind": wake.kind,
        "tries": str(wake.tries),
        "since": _ago(wake.first_at),
        "next try in": "" if wake.due_at is None else _until(wake.due_at),
        "given up": "" if wake.died_at is None else _ago(wake.died_at),
        "error": wake.error,
    }
    for name, value in facts.items():
        if value:
            say(f"{name}: {_one_line(value)}")
    body = "unreadable" if wake.body is None else json.dumps(wake.body, indent=2, ensure_ascii=False)
    say(f"\nBody: {body}")


@app.command()
def replay(
    wake_ids: Annotated[list[str] | None, typer.Argument(metavar="WAKE_ID", autocompletion=complete_wakes)] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Replay the 1,000 latest dead ones.")] = False,
) -> None:
    """Have dead news tried anew, under the same ids, and waiting ones now. Exit code 1 if one of them is not there; the others are tried all the same."""
    if bool(wake_ids) == everything:
        raise typer.BadParameter("name the news to replay, or say --all.")
    count, problems = asyncio.run(_replay(wake_ids or []))
    _tell("Due again", count, problems)


@app.command()
def drop(
    wake_ids: Annotated[list[str] | None, typer.Argument(metavar="WAKE_ID", autocompletion=complete_wakes)] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Drop all dead news.")] = False,
) -> None:
    """Forget dead news. Exit code 1 if one of them is not there; the others are dropped all the same."""
    if bool(wake_ids) == everything:
        raise typer.BadParameter("name the news to drop, or say --all.")
    wanted = list(dict.fromkeys(wake_ids or []))
    dropped = asyncio.run(_drop(wanted))
    if isinstance(dropped, int):
        note(f"Dropped: {dropped}.")
        return
    _tell("Dropped", len(dropped), [_none(wake_id) for wake_id in wanted if wake_id not in dropped])


async def _look(limit: int, offset: int, *, dead: bool) -> "list[KeptWake]":
    from toolfleet import ToolFleet  # noqa: PLC0415 - takes a second to load, which `--help` should not

    async with progress("Asking Redis"), ToolFleet() as fleet:
        return await (fleet.wakeups.dead(limit, offset) if dead else fleet.wakeups.waiting(limit, offset))


async def _show(wake_id: str) -> "KeptWake | None":
    from toolfleet import ToolFleet  # noqa: PLC0415 - as above

    async with progress("Asking Redis"), ToolFleet() as fleet:
        return await fleet.wakeups.show(wake_id)


async def _replay(wake_ids: list[str]) -> tuple[int, list[str]]:
    """How many are tried anew, and what is the matter with the others."""
    from toolfleet import ToolFleet  # noqa: PLC0415 - as above

    problems = list[str]()
    async with progress("Asking Redis"), ToolFleet() as fleet:
        wanted = list(dict.fromkeys(wake_ids)) or [wake.wake_id for wake in await fleet.wakeups.dead(1000)]
        for wake_id in wanted:
            try:
                problems += [] if await fleet.wakeups.replay(wake_id) else [_none(wake_id)]
            except NotReplayable as exc:
                problems.append(str(exc))
    return len(wanted) - len(problems), problems


async def _drop(wake_ids: list[str]) -> int | tuple[str, ...]:
    """The ids of those that were dropped; without ids all are, and counted."""
    from toolfleet import ToolFleet  # noqa: PLC0415 - as above

    async with progress("Asking Redis"), ToolFleet() as fleet:
        return await (fleet.wakeups.drop(*wake_ids) if wake_ids else fleet.wakeups.drop_all())


def _show_all(wakes: "list[KeptWake]", none: str, *, as_json: bool, more_at: int | None) -> None:
    if as_json:
        say_json([dataclasses.asdict(wake) for wake in wakes])
        return
    if not wakes:
        note(none)
        return
    shown = table("WAKE", "KIND", "CONVERSATION", "AGE", "TRIES", "NEXT", "ERROR")
    for wake in wakes:
        conversation = wake.told("conversation_id") or "-"
        tries, due = str(wake.tries), "-" if wake.due_at is None else _until(wake.due_at)
        error = _one_line(wake.error)
        add_row(shown, wake.wake_id, wake.kind, conversation, _ago(wake.first_at), tries, due, error)
    show_table(shown)
    if more_at is not None:
        note(f"There may be more: --offset {more_at} shows them.")


def _tell(done: str, count: int, problems: list[str]) -> None:
    if count or not problems:
        note(f"{done}: {count}.")
    for problem in problems:
        note(problem, style="red")
    raise typer.Exit(1 if problems else 0)


def _none(wake_id: str) -> str:
    return f"There are no news {wake_id!r}: `toolfleet wakes list` and `dead` show those that there are."


def _ago(at: float) -> str:
    return age(max(0.0, fleet_clock.now() - at))


def _until(at: float) -> str:
    return age(max(0.0, at - fleet_clock.now()))


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _ONE_LINE else f"{line[:_ONE_LINE]}…"
