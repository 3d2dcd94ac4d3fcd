"""Tells why a caller may call a tool, or may not: `toolfleet why`."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from toolfleet_cli.console.caller import (
    AgentOption,
    ConversationOption,
    Level,
    ModulesOption,
    PermissionOption,
    RunOption,
    UserOption,
    caller_of,
)
from toolfleet_cli.console.output import add_row, fail, note, progress, say_json, show_table, table
from toolfleet_cli.operations import ask
from toolfleet_cli.processes.completion import complete_keys, complete_tools
from toolfleet_cli.remote.fleet_options import over_fleet
from toolfleet_cli.remote.gateway import Gateway, place
from toolfleet_registry.contracts import Caller, Conversation
from toolfleet_registry.settings import load_settings

if TYPE_CHECKING:
    from toolfleet_registry.agents.explanation import ToolExplanation


def register(app: typer.Typer) -> None:
    """Give the app the command."""
    app.command()(over_fleet(why))


def why(  # noqa: PLR0913 - these are the command line's options
    tool: Annotated[str, typer.Argument(metavar="MODULE.TOOL", autocompletion=complete_tools)],
    *,
    user: UserOption = None,
    permission: PermissionOption = Level.OWNER,
    modules: ModulesOption = None,
    agent: AgentOption = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="ID", help="For the holder of this API key.", autocompletion=complete_keys),
    ] = None,
    conversation_id: ConversationOption = None,
    run_id: RunOption = None,
    gateway: Gateway | None = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say which rules have a say in a call, whether each lets it pass, and where it stands. Calls nothing. Exit code 1 if it may not be made."""
    if key is not None and (user is not None or permission is not Level.OWNER or modules is not None):
        raise typer.BadParameter("the key says that: leave --user, --permission and --modules out.", param_hint="--key")
    where = Conversation(conversation_id=conversation_id, run_id=run_id)
    if gateway is not None:
        query = {"user_id": user, "permission": permission.value, "modules": modules, "agent": agent}
        query = {"key": key, "agent": agent} if key is not None else query
        found = _remotely(gateway, tool, {**query, "conversation_id": conversation_id, "run_id": run_id})
    else:
        caller = caller_of(user, permission, modules, agent) if key is None else _holder(key, agent)
        found = asyncio.run(_asked(tool, caller, where))
    if as_json:
        say_json(found.model_dump(mode="json"))
    else:
        _show(found)
    raise typer.Exit(0 if found.is_allowed else 1)


def _remotely(gateway: Gateway, tool: str, query: dict[str, str | None]) -> "ToolExplanation":
    from toolfleet_registry.agents.explanation import ToolExplanation

    return ToolExplanation.model_validate(gateway.get(place("tools", tool, "why"), query))


async def _asked(tool: str, caller: Caller, where: Conversation) -> "ToolExplanation":
    from toolfleet import ToolFleet

    async with progress("Asking the fleet"), ToolFleet(settings=load_settings()) as fleet:
        return await fleet.modules.explain(tool, caller, conversation=where)


def _holder(key_id: str, agent: str | None) -> Caller:
    from toolfleet_tasks.resources import keys

    found = next((each.key for each in ask(keys.list_keys, None).keys if each.key.id == key_id), None)
    if found is None:
        fail(f"There is no API key {key_id[:80]!r}: `toolfleet keys list` shows those that there are.", code=1)
    return found.caller if agent is None else found.caller.model_copy(update={"agent": agent})


def _show(found: "ToolExplanation") -> None:
    shown = table("", "ABOUT", "RULE", "WHERE")
    for rule in found.rules:
        add_row(shown, "passes" if rule.passes else "refuses", rule.about, rule.says, rule.place)
    show_table(shown)
    if found.is_allowed:
        note(f"{found.tool_name} may be called.", style="green")
    else:
        note(f"{found.tool_name} may not be called: {found.reason}", style="red")
