"""`toolfleet call`: run a tool and print its result."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from toolfleet_registry.contracts import Caller, ToolCall, ToolResult
from toolfleet_workers.cli.arguments import read_arguments
from toolfleet_workers.cli.caller import Level, ModulesOption, PermissionOption, UserOption, caller_of
from toolfleet_workers.cli.completion import complete_tools
from toolfleet_workers.cli.output import err, progress
from toolfleet_workers.cli.result import show_result

if TYPE_CHECKING:
    from toolfleet import ToolFleet


def register(app: typer.Typer) -> None:
    """Give the app the command."""
    app.command()(call)


def call(  # noqa: PLR0913 - these are the command line's options
    tool: Annotated[
        str, typer.Argument(metavar="MODULE.TOOL", help="Such as research.search_docs.", autocompletion=complete_tools)
    ],
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
    shows = err.is_terminal and not as_json
    result = asyncio.run(_run(tool, arguments or [], whole, caller, timeout, shows=shows))
    show_result(result, as_json=as_json)


async def _run(
    name: str, words: list[str], whole: str | None, caller: Caller, seconds: float | None, *, shows: bool
) -> ToolResult:
    from toolfleet import ToolFleet  # noqa: PLC0415 - takes a second to load, which `--help` should not

    async with ToolFleet() as fleet:
        tool = next((tool for tool in await fleet.tools(caller) if tool.name == name), None)
        arguments = read_arguments(words, whole, tool)
        asked = ToolCall(tool_name=name, arguments=arguments)
        shown = await _shown(fleet, asked, caller, seconds) if shows else None
        if shown is not None:
            return shown
        async with progress(f"{name} is running"):
            return await fleet.call(asked, caller, timeout=seconds)


async def _shown(fleet: "ToolFleet", asked: ToolCall, caller: Caller, seconds: float | None) -> ToolResult | None:
    """The result of a call that was shown on its way; `None` if it has to wait for its turn, and was not begun."""
    from toolfleet_workers.cli.progress_bar import progress_bar  # noqa: PLC0415 - as above

    handle = await fleet.submit(asked, caller, timeout=seconds)
    try:
        async with progress_bar(handle):
            result = await handle.result()
    except asyncio.CancelledError:  # Ctrl-C
        await handle.cancel()
        raise
    is_put_off = result.error_code == "busy" and not result.audit.attempts
    return None if is_put_off else result
