"""Lists and shows calls that people have to approve, and approves or rejects them: `toolfleet approvals`."""

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolfleet_cli.commands.completion import complete_approvals
from toolfleet_cli.console import (
    ago,
    note,
    one_line,
    say,
    say_facts,
    say_json,
    show_list,
    until,
)
from toolfleet_cli.remote import Gateway, JsonOption, LimitOption, OffsetOption, ask, over_fleet
from toolfleet_cli.resources import approvals

if TYPE_CHECKING:
    from toolfleet_tasks.approvals.views import ShownApproval

app = typer.Typer(no_args_is_help=True)

_LEFT_OUT = "(left out: more than 16 KiB)"

ApprovalId = Annotated[
    str,
    typer.Argument(
        metavar="APPROVAL_ID", help="As `toolfleet approvals list` shows it.", autocompletion=complete_approvals
    ),
]
Settled = Annotated[bool, typer.Option("--settled", help="Show those that wait no more, the last first.")]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, in words that the agent is told.")]
Edit = Annotated[
    str | None,
    typer.Option("--edit", metavar="JSON", help="Approve it with these arguments in place of those of the same names."),
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
    limit: LimitOption = 50,
    offset: OffsetOption = 0,
    gateway: Gateway | None = None,
    as_json: JsonOption = False,
) -> None:
    """List calls that wait for people, those that expire next first."""
    query = {"settled": settled, "limit": limit, "offset": offset}
    found = ask(approvals.list_approvals, gateway, query=query).approvals
    none = "No approvals were settled." if settled else "No calls wait for approvals."
    more = f"There may be more: --offset {offset + limit} shows them." if len(found) == limit else ""
    show_list(
        found,
        "APPROVAL,TOOL,USER,AGENT,STATE,ASKED,EXPIRES,ARGUMENTS",
        _row,
        as_json=as_json,
        none=none,
        more=more,
    )


def _row(one: "ShownApproval") -> tuple[object, ...]:
    state = f"{one.state}, {one.missing} to go" if one.missing > 1 else one.state
    left = until(one.expires_at) if one.state == "waiting" else None
    who = one.user_id or "-", one.agent or "-"
    return one.id, one.tool, *who, state, ago(one.requested_at), left, one_line(_arguments(one))


@app.command()
@over_fleet
def show(approval_id: ApprovalId, *, gateway: Gateway | None = None, as_json: JsonOption = False) -> None:
    """Show one: which call, whose, and what was decided about it so far."""
    found = _shown(approval_id, gateway)
    if as_json:
        say_json(found)
        return
    _say(found)


def _say(found: "ShownApproval") -> None:
    say(f"{found.id}\n")
    say_facts(
        {
            "tool": found.tool,
            "effect": found.effect or "undeclared",
            "user": found.user_id,
            "agent": found.agent,
            "conversation": found.conversation_id,
            "state": found.state,
            "asked": ago(found.requested_at),
            "expires in": until(found.expires_at) if found.state == "waiting" else None,
            "approvals to go": found.missing or None,
            "binding": found.binding,
        }
    )
    from toolfleet_tasks.approvals.views import readable

    say(f"\nArguments: {_LEFT_OUT if found.arguments_left_out else readable(found.arguments)}")
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

    return ask(approvals.get_approval, gateway, approval_id)


def _decided(
    approval_id: str, body: dict[str, Any], seen: str | None, gateway: Gateway | None, by: str | None
) -> "ShownApproval":
    """Decide about a call. Without a binding that was `seen`, a person at a terminal is shown the call, and has to confirm it."""
    if not seen and sys.stdin.isatty():
        _say(found := _shown(approval_id, gateway))
        typer.confirm(f"{body['decision'].capitalize()} this call?", abort=True)
        seen = found.binding
    return ask(approvals.decide_approval, gateway, approval_id, body={**body, "seen": seen or None}, by=by)


def _arguments(found: "ShownApproval") -> str:
    return _LEFT_OUT if found.arguments_left_out else json.dumps(found.arguments, ensure_ascii=False)


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
