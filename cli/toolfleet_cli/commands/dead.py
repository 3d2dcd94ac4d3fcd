"""`toolfleet dead`: calls whose end nobody can know, and what to do with them."""

import asyncio
import json
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolfleet_cli.console.arguments import read_arguments
from toolfleet_cli.console.output import add_row, age, fail, note, progress, say, say_json, show_table, table
from toolfleet_cli.console.result import show_result
from toolfleet_cli.processes.completion import complete_dead_letters
from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.contracts.dead_letters import DeadAttempt, DeadLetter
from toolfleet_registry.errors import NoSuchDeadLetter
from toolfleet_registry.time import fleet_clock

if TYPE_CHECKING:
    from toolfleet_tasks.dead_letters.call_letters import Kept

app = typer.Typer(help="Calls whose end nobody can know: look at them, run them anew, drop them.", no_args_is_help=True)

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
CallId = Annotated[
    str,
    typer.Argument(metavar="CALL_ID", help="As `toolfleet dead list` shows it.", autocompletion=complete_dead_letters),
]

_ONE_LINE = 200  # characters of a reason in the list; `show` has the whole


@app.command("list")
def list_(
    *,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="Show at most so many.")] = 50,
    offset: Annotated[int, typer.Option(metavar="N", min=0, help="Leave out the latest so many.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """List the dead letters, the latest first."""
    letters = asyncio.run(_list(limit, offset))
    if as_json:
        say_json([_as_json(letter) for letter in letters])
        return
    if not letters:
        note("There are no dead letters." if offset == 0 else "There are no more dead letters.")
        return
    shown = table("CALL", "TOOL", "USER", "DIED", "ATTEMPTS", "ERROR", "REASON")
    for letter in letters:
        add_row(shown, *_row(letter))
    show_table(shown)
    if len(letters) == limit:
        note(f"There may be more: --offset {offset + limit} shows those before.")


@app.command()
def show(call_id: CallId, *, as_json: JsonOption = False) -> None:
    """Show one dead letter: what was asked, by whom, and what is known of its end."""
    letter = asyncio.run(_show(call_id))
    if as_json:
        say_json(_as_json(letter))
    elif isinstance(letter, DeadLetter):
        _print(letter)
    else:
        say(f"{letter.call_id}\n\n{letter.reason}")


@app.command()
def replay(
    call_id: CallId,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME=TEXT", help="In place of the letter's argument; NAME:=JSON is JSON."),
    ] = None,
    *,
    whole: Annotated[
        str | None,
        typer.Option("--args", metavar="JSON", help="Such arguments as one JSON object; - reads it from stdin."),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0.001, max=1e8, help="Wait no longer, queue time included.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole ToolResult.")] = False,
) -> None:
    """Run the call of a dead letter once more, as a new call in the same name. First make sure that it may happen twice.

    Arguments that were not kept, such as sensitive ones, must be given. The letter is dropped when the call succeeds.
    Exit code 1 if it does not.
    """
    if whole == "-":  # what is sensitive should not be in a shell's history
        whole = sys.stdin.read()
    show_result(asyncio.run(_replay(call_id, arguments or [], whole, timeout)), as_json=as_json)


@app.command()
def drop(
    call_ids: Annotated[
        list[str] | None, typer.Argument(metavar="CALL_ID", autocompletion=complete_dead_letters)
    ] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Drop all dead letters.")] = False,
) -> None:
    """Forget dead letters. Exit code 1 if one of them is not there; the others are dropped all the same."""
    if bool(call_ids) == everything:
        raise typer.BadParameter("name the calls whose letters to drop, or say --all.")
    wanted = list(dict.fromkeys(call_ids or []))
    dropped = asyncio.run(_drop(wanted))
    if isinstance(dropped, int):
        note(f"Dropped: {dropped}.")
        return
    if len(wanted) > 1 or dropped:
        note(f"Dropped: {len(dropped)}.")
    for call_id in wanted:
        if call_id not in dropped:
            note(str(NoSuchDeadLetter(call_id)), style="red")
    raise typer.Exit(0 if len(dropped) == len(wanted) else 1)


async def _list(limit: int, offset: int) -> "list[Kept]":
    from toolfleet import ToolFleet  # noqa: PLC0415 - takes a second to load, which `--help` should not

    async with progress("Asking Redis"), ToolFleet() as fleet:
        return await fleet.dead_letters.list(limit, offset)


async def _show(call_id: str) -> "Kept":
    from toolfleet import ToolFleet  # noqa: PLC0415 - as above

    try:
        async with progress("Asking Redis"), ToolFleet() as fleet:
            return await fleet.dead_letters.show(call_id)
    except NoSuchDeadLetter as exc:
        fail(str(exc), code=1)


async def _replay(call_id: str, words: list[str], whole: str | None, seconds: float | None) -> ToolResult:
    from toolfleet import ToolFleet  # noqa: PLC0415 - as above

    try:
        async with ToolFleet() as fleet:
            letter = await fleet.dead_letters.show(call_id)
            tools = await fleet.tools(letter.caller) if isinstance(letter, DeadLetter) else []
            tool = next((tool for tool in tools if tool.name == getattr(letter, "tool_name", None)), None)
            arguments = read_arguments(words, whole, tool)
            if not isinstance(arguments, dict):
                raise typer.BadParameter("--args must be a JSON object.")
            async with progress(f"{call_id} is running once more"):
                return await fleet.dead_letters.replay(call_id, arguments=arguments, timeout=seconds)
    except NoSuchDeadLetter as exc:
        fail(str(exc), code=1)


async def _drop(call_ids: list[str]) -> int | tuple[str, ...]:
    """The ids of those that were dropped; without ids all are, and counted."""
    from toolfleet import ToolFleet  # noqa: PLC0415 - as above

    async with progress("Asking Redis"), ToolFleet() as fleet:
        return await (fleet.dead_letters.drop(*call_ids) if call_ids else fleet.dead_letters.drop_all())


def _as_json(letter: "Kept") -> dict[str, Any]:
    if isinstance(letter, DeadLetter):
        return letter.model_dump(mode="json")
    return {"call_id": letter.call_id, "unreadable": letter.reason}


def _row(letter: "Kept") -> tuple[str, ...]:
    if not isinstance(letter, DeadLetter):
        return (letter.call_id, "?", "", "", "", "unreadable", _one_line(letter.reason))
    user, attempts = letter.user_id or "-", str(len(letter.attempts))
    return (
        letter.call_id,
        letter.tool_name,
        user,
        _ago(letter.died_at),
        attempts,
        letter.error_code,
        _one_line(letter.reason),
    )


def _print(letter: DeadLetter) -> None:
    caller = letter.caller
    say(f"{letter.tool_name}\n\n{letter.error_code}: {letter.reason}\n")
    facts = {
        "call": letter.call_id,
        "user": letter.user_id,
        "permission": caller.permission,
        "effect": letter.effect or "not declared",
        "published": _moment(letter.published_at),
        "died": f"{_moment(letter.died_at)}, {_ago(letter.died_at)} ago",
        "idempotency key": letter.idempotency_key,
        "replay of": letter.replay_of,
    }
    for name, value in facts.items():
        if value:
            say(f"{name}: {_one_line(value)}")
    for attempt in letter.attempts:
        say(f"attempt {attempt.attempt}: {attempt.outcome}{_took(attempt)}")
    lost = "; [redacted] and [not kept] must be given for a replay" if letter.is_redacted else ""
    say(f"\nArguments{lost}:\n{json.dumps(letter.arguments, indent=2, ensure_ascii=False)}")
    if letter.context is not None:
        told = letter.context.model_dump(mode="json", exclude_defaults=True)
        say(f"\nContext:\n{json.dumps(told, indent=2, ensure_ascii=False)}")


def _took(attempt: DeadAttempt) -> str:
    return "" if attempt.ms is None else f" after {attempt.ms:.0f} ms"


def _ago(at: float) -> str:
    return age(max(0.0, fleet_clock.now() - at))


def _moment(at: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    except (ValueError, OverflowError, OSError):  # no time that a calendar has
        return f"{at:g}"


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _ONE_LINE else f"{line[:_ONE_LINE]}…"
