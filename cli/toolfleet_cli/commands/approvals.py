"""Lists and shows calls that people have to approve, and approves or rejects them: `toolfleet approvals`."""

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolfleet_cli.commands.completion import complete_approvals
from toolfleet_cli.console.output import add_row, age, note, say, say_json, show_table, table
from toolfleet_cli.console.values import ago, one_line
from toolfleet_cli.operations import ask
from toolfleet_cli.remote import Gateway, over_fleet
from toolfleet_registry.system import fleet_clock

if TYPE_CHECKING:
    from toolfleet_tasks.approvals.views import ShownApproval

app = typer.Typer(help="Calls that wait for people: look at them, approve or reject them.", no_args_is_help=True)

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ApprovalId = Annotated[
    str,
    typer.Argument(
        metavar="APPROVAL_ID", help="As `toolfleet approvals list` shows it.", autocompletion=complete_approvals
    ),
]
Limit = Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="Show at most so many.")]
Offset = Annotated[int, typer.Option(metavar="N", min=0, help="Leave out the first so many.")]
Settled = Annotated[bool, typer.Option("--settled", help="Show those that wait no more, the last first.")]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, in words that the agent is told.")]
Edit = Annotated[
    str | None,
    typer.Option(
        "--edit", metavar="JSON", help="Approve it with these arguments in the place of those of their names."
    ),
]
Seen = Annotated[
    str | None,
    typer.Option(
        "--seen",
        metavar="BINDING",
        help="As `toolfleet approvals show` prints it: nothing is decided if the call was edited since. Without it a terminal shows the call, and asks.",
    ),
]


@app.command("list")
@over_fleet
def list_(
    *,
    settled: Settled = False,
    limit: Limit = 50,
    offset: Offset = 0,
    gateway: Gateway | None = None,
    as_json: JsonOption = False,
) -> None:
    """List calls that wait for people, those that expire next first."""
    from toolfleet_tasks.resources import approvals

    query = {"settled": settled, "limit": limit, "offset": offset}
    found = ask(approvals.list_approvals, gateway, query=query).approvals
    if as_json:
        say_json([each.model_dump(mode="json") for each in found])
        return
    if not found:
        note("No approvals were settled." if settled else "No calls wait for approvals.")
        return
    shown = table("APPROVAL", "TOOL", "USER", "AGENT", "STATE", "ASKED", "EXPIRES", "ARGUMENTS")
    for each in found:
        state = f"{each.state}, {each.missing} to go" if each.missing > 1 else each.state
        cells = each.tool, each.user_id or "-", each.agent or "-", state, ago(each.requested_at), _until(each)
        add_row(shown, each.id, *cells, one_line(_arguments(each)))
    show_table(shown)
    if len(found) == limit:
        note(f"There may be more: --offset {offset + limit} shows them.")


@app.command()
@over_fleet
def show(approval_id: ApprovalId, *, gateway: Gateway | None = None, as_json: JsonOption = False) -> None:
    """Show one: which call, whose, and what was decided about it so far."""
    found = _shown(approval_id, gateway)
    if as_json:
        say_json(found.model_dump(mode="json"))
        return
    _say(found)


def _say(found: "ShownApproval") -> None:
    say(f"{found.id}\n")
    facts = {
        "tool": found.tool,
        "effect": found.effect or "undeclared",
        "user": found.user_id or "",
        "agent": found.agent or "",
        "conversation": found.conversation_id or "",
        "state": found.state,
        "asked": ago(found.requested_at),
        "expires in": _until(found) if found.state == "waiting" else "",
        "approvals to go": str(found.missing) if found.missing else "",
        "binding": found.binding,
    }
    for name, value in facts.items():
        if value:
            say(f"{name}: {one_line(value)}")
    say(f"\nArguments: {_arguments(found, indent=2)}")
    for step in found.journal:
        why = f": {step.reason}" if step.reason else ""
        say(one_line(f"{step.what} by {step.by}, {ago(step.at)}{why}"))


@app.command()
@over_fleet
def approve(
    approval_id: ApprovalId,
    *,
    edit: Edit = None,
    reason: Reason = "",
    seen: Seen = None,
    gateway: Gateway | None = None,
    by: str | None = None,
) -> None:
    """Approve a call. With the last approval that it needs it is on its way."""
    body = {"decision": "approve", "reason": reason, "arguments": _edited(edit)}
    found = _decided(approval_id, body, seen, gateway, by)
    if found.state == "waiting":
        note(f"Approved; {found.missing} more have to.")
    else:
        note("Approved: the call is on its way.")


@app.command()
@over_fleet
def reject(
    approval_id: ApprovalId,
    *,
    reason: Reason = "",
    seen: Seen = None,
    gateway: Gateway | None = None,
    by: str | None = None,
) -> None:
    """Reject a call. Its agent is told, with the reason."""
    _decided(approval_id, {"decision": "reject", "reason": reason}, seen, gateway, by)
    note("Rejected.")


def _shown(approval_id: str, gateway: Gateway | None) -> "ShownApproval":
    from toolfleet_tasks.resources import approvals

    return ask(approvals.get_approval, gateway, path={"approval_id": approval_id})


def _decided(
    approval_id: str, body: dict[str, Any], seen: str | None, gateway: Gateway | None, by: str | None
) -> "ShownApproval":
    """Decide about a call. Without a binding that was `seen`, a person at a terminal is shown the call, and has to confirm it."""
    from toolfleet_tasks.resources import approvals

    if not seen and sys.stdin.isatty():
        _say(found := _shown(approval_id, gateway))
        typer.confirm(f"{body['decision'].capitalize()} this call?", abort=True)
        seen = found.binding
    path, body = {"approval_id": approval_id}, {**body, "seen": seen or None}
    return ask(approvals.decide_approval, gateway, path=path, body=body, by=by)


def _arguments(found: "ShownApproval", indent: int | None = None) -> str:
    if found.arguments_left_out:
        return "(left out: more than 16 KiB)"
    return json.dumps(found.arguments, indent=indent, ensure_ascii=False)


def _edited(text: str | None) -> dict[str, Any] | None:
    """Parse edited arguments. Raises `BadParameter`."""
    if text is None:
        return None
    try:
        read = json.loads(text)
    except ValueError as exc:
        raise typer.BadParameter(f"this is no JSON: {exc}.", param_hint="--edit") from exc
    if not isinstance(read, dict) or not read:
        raise typer.BadParameter('this is no JSON object of arguments, such as {"n": 2}.', param_hint="--edit")
    return read


def _until(found: "ShownApproval") -> str:
    return age(max(0.0, found.expires_at - fleet_clock.now())) if found.state == "waiting" else "-"
