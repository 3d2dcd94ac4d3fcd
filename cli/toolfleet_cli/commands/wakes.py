"""Lists, shows, replays and drops wake-ups that nobody has accepted: `toolfleet wakes`."""

import dataclasses
import json
from typing import Annotated

import typer

from toolfleet_cli.console.dead_letters import ago, one_line
from toolfleet_cli.console.output import add_row, age, fail, note, say, say_json, show_table, table
from toolfleet_cli.direct.wakes import RedisWakes
from toolfleet_cli.processes.completion import complete_wakes
from toolfleet_cli.remote.fleet_options import over_fleet
from toolfleet_cli.remote.gateway import Gateway
from toolfleet_cli.remote.wakes import GatewayWakes
from toolfleet_registry.time import fleet_clock

app = typer.Typer(
    help="Wake-ups of jobs and webhooks that wait to be accepted: look at them, and have them sent now.",
    no_args_is_help=True,
)

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
WakeId = Annotated[
    str,
    typer.Argument(metavar="WAKE_ID", help="As `toolfleet wakes list` shows it.", autocompletion=complete_wakes),
]
Limit = Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="Show at most so many.")]
Offset = Annotated[int, typer.Option(metavar="N", min=0, help="Leave out the first so many.")]


@app.command("list")
@over_fleet
def list_(
    *, limit: Limit = 50, offset: Offset = 0, gateway: Gateway | None = None, as_json: JsonOption = False
) -> None:
    """List those that wait to be accepted, those that are tried next first."""
    wakes = _wakes(gateway).listed(limit, offset)
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
        note(f"There may be more: --offset {offset + limit} shows them.")


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
def replay(
    wake_ids: Annotated[list[str], typer.Argument(metavar="WAKE_ID", autocompletion=complete_wakes)],
    *,
    gateway: Gateway | None = None,
    by: str | None = None,
) -> None:
    """Have some of them tried now. Exit code 1 if one of them is not there; the others are tried all the same."""
    wanted = list(dict.fromkeys(wake_ids))
    problems = _replay(_wakes(gateway, by), wanted)
    if len(problems) < len(wanted):
        note(f"Due now: {len(wanted) - len(problems)}.")
    for problem in problems:
        note(problem, style="red")
    raise typer.Exit(1 if problems else 0)


def _replay(wakes: RedisWakes | GatewayWakes, wake_ids: list[str]) -> list[str]:
    """What is the matter with those that are not tried now."""
    problems = list[str]()
    for wake_id in wake_ids:
        wake = wakes.shown(wake_id)
        if wake is not None and wake.died_at is not None:
            problems.append(f"{wake_id!r} is dead: `toolfleet dead replay {wake_id}` has it sent again.")
        elif wake is None or not wakes.tried(wake_id):
            problems.append(_none(wake_id))
    return problems


def _wakes(gateway: Gateway | None, by: str | None = None) -> RedisWakes | GatewayWakes:
    return RedisWakes(by) if gateway is None else GatewayWakes(gateway)


def _none(wake_id: str) -> str:
    return (
        f"There is no wake-up {wake_id!r}: `toolfleet wakes list` and `toolfleet dead list` show those that there are."
    )


def _until(at: float) -> str:
    return age(max(0.0, at - fleet_clock.now()))
