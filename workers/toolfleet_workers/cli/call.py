"""`toolfleet call`: run a tool and print its result."""

import asyncio
from typing import Annotated

import typer

from toolfleet_registry.contracts import Caller, ToolCall, ToolResult
from toolfleet_workers.cli.arguments import read_arguments
from toolfleet_workers.cli.caller import Level, ModulesOption, PermissionOption, UserOption, caller_of
from toolfleet_workers.cli.output import progress
from toolfleet_workers.cli.result import show_result


def register(app: typer.Typer) -> None:
    """Give the app the command."""
    app.command()(call)


def call(  # noqa: PLR0913 - these are the command line's options
    tool: Annotated[str, typer.Argument(metavar="MODULE.TOOL", help="Such as research.search_docs.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME=TEXT",
            help="An argument; text is read as the type that the tool asks for. NAME:=JSON is JSON.",
        ),
    ] = None,
    *,
    whole: Annotated[
        str | None, typer.Option("--args", metavar="JSON", help="All arguments as one JSON object.")
    ] = None,
    user: UserOption = None,
    permission: PermissionOption = Level.OWNER,
    modules: ModulesOption = "*",
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0.001,
            max=1e8,
            help="Wait no longer, queue time included; by default twice the tool's limit and lease, some minutes.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole ToolResult.")] = False,
) -> None:
    """Run a tool and print its result. Exit code 1 if the call did not succeed."""
    caller = caller_of(user, permission, modules)
    result = asyncio.run(_run(tool, arguments or [], whole, caller, timeout))
    show_result(result, as_json=as_json)


async def _run(name: str, words: list[str], whole: str | None, caller: Caller, seconds: float | None) -> ToolResult:
    from toolfleet import ToolFleet  # noqa: PLC0415 - takes a second to load, which `--help` should not

    async with ToolFleet() as fleet:
        tool = next((tool for tool in await fleet.tools(caller) if tool.name == name), None)
        arguments = read_arguments(words, whole, tool)
        async with progress(f"{name} is running"):
            return await fleet.call(ToolCall(tool_name=name, arguments=arguments), caller, timeout=seconds)
