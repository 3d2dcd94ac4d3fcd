"""`toolfleet tools`: which tools a caller may use, and what they take."""

import asyncio
import json
from typing import Annotated

import typer
from rich.table import Table

from toolfleet_registry.contracts import Caller, ToolDefinition
from toolfleet_registry.effects import effect_of
from toolfleet_workers.cli.caller import Level, ModulesOption, PermissionOption, UserOption, caller_of
from toolfleet_workers.cli.output import add_row, fail, note, progress, say, say_json, show_table, table

app = typer.Typer(help="The tools: which there are, and what they take.", no_args_is_help=True)

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list")
def list_(
    *,
    user: UserOption = None,
    permission: PermissionOption = Level.OWNER,
    modules: ModulesOption = "*",
    as_json: JsonOption = False,
) -> None:
    """List the tools that a caller may use."""
    tools = asyncio.run(_tools(caller_of(user, permission, modules)))
    if as_json:
        say_json([tool.model_dump(mode="json", exclude_none=True) for tool in tools])
        return
    if not tools:
        note("There are no tools for this caller; `toolfleet modules list` shows the modules.")
        return
    shown = table("TOOL", "PERMISSION", "EFFECT", "DESCRIPTION")
    for tool in tools:
        first_line = tool.description.partition("\n")[0]
        add_row(shown, tool.name, tool.required_permission, effect_of(tool) or "-", first_line)
    show_table(shown)


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="MODULE.TOOL")],
    *,
    user: UserOption = None,
    permission: PermissionOption = Level.OWNER,
    modules: ModulesOption = "*",
    as_json: JsonOption = False,
) -> None:
    """Show one tool: what it does and which arguments it takes."""
    tools = asyncio.run(_tools(caller_of(user, permission, modules)))
    tool = next((tool for tool in tools if tool.name == name), None)
    if tool is None:
        fail(f"Unknown tool: {name}. `toolfleet tools list` shows those that there are.", code=1)
    if as_json:
        say_json(tool.model_dump(mode="json", exclude_none=True))
    else:
        _print(tool)


async def _tools(caller: Caller) -> list[ToolDefinition]:
    from toolfleet import ToolFleet  # noqa: PLC0415 - takes a second to load, which `--help` should not

    async with progress("Asking the modules"), ToolFleet() as fleet:
        return await fleet.tools(caller)


def _print(tool: ToolDefinition) -> None:
    say(f"{tool.name}\n\n{tool.description}\n")
    facts = {
        "permission": tool.required_permission,
        "effect": effect_of(tool),
        "limit": tool.timeout_seconds and f"{tool.timeout_seconds:g} s",
        "version": tool.version,
        "cost": tool.cost,
        "tags": ", ".join(tool.tags),
        "deprecated": "yes" if tool.deprecated else None,
    }
    say("  ".join(f"{name}: {value}" for name, value in facts.items() if value))
    if tool.input_schema is not None:
        say(f"\nArguments (JSON Schema):\n{json.dumps(tool.input_schema, indent=2, ensure_ascii=False)}")
    elif tool.parameters:
        say("")
        show_table(_parameters(tool))


def _parameters(tool: ToolDefinition) -> Table:
    shown = table("ARGUMENT", "TYPE", "REQUIRED", "DESCRIPTION")
    for parameter in tool.parameters:
        choices = "" if parameter.enum is None else f" One of {json.dumps(parameter.enum, ensure_ascii=False)}."
        required = "yes" if parameter.required else "no"
        add_row(shown, parameter.name, parameter.type, required, f"{parameter.description}{choices}")
    return shown
