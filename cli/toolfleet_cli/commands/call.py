"""Runs a tool and prints its result: `toolfleet call`."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from toolfleet_cli.console.arguments import read_arguments
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
from toolfleet_cli.console.output import err, note, progress
from toolfleet_cli.console.result import show_result
from toolfleet_cli.processes.completion import complete_tools
from toolfleet_cli.remote import calls as remote_calls
from toolfleet_cli.remote.caller import refuse_caller_options
from toolfleet_cli.remote.fleet_options import over_fleet
from toolfleet_cli.remote.gateway import Gateway
from toolfleet_registry.contracts import Caller, Conversation, ToolCall, ToolResult
from toolfleet_registry.contracts.tool_definition import tool_named

if TYPE_CHECKING:
    from toolfleet import CallHandle, ToolFleet


TimeoutOption = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        min=0.001,
        max=1e8,
        help="Wait no longer, queue time included; by default twice the tool's limit and lease, some minutes.",
    ),
]


def register(app: typer.Typer) -> None:
    """Give the app the command."""
    app.command()(over_fleet(call))


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
    modules: ModulesOption = None,
    agent: AgentOption = None,
    timeout: TimeoutOption = None,
    tool_version: Annotated[
        str | None,
        typer.Option(metavar="VERSION", help="Run it only while the tool has this version, letter for letter."),
    ] = None,
    conversation_id: ConversationOption = None,
    run_id: RunOption = None,
    gateway: Gateway | None = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole ToolResult.")] = False,
) -> None:
    """Run a tool and print its result. Exit code 1 if the call did not succeed.

    One that people have to approve says so at once, with the id for `toolfleet approvals`, and waits for them in the fleet.
    """
    said, where = (arguments or [], whole), Conversation(conversation_id=conversation_id, run_id=run_id)
    if gateway is not None:
        refuse_caller_options(user, permission, modules)
        result = _remotely(gateway, tool, said, agent, where, timeout, version=tool_version)
        show_result(result, as_json=as_json)
    shows, caller = err.is_terminal and not as_json, caller_of(user, permission, modules, agent)
    result = asyncio.run(_run(tool, said, caller, where, timeout, version=tool_version, shows=shows))
    show_result(result, as_json=as_json)


def _remotely(  # noqa: PLR0913 - what may be said of a call
    gateway: Gateway,
    name: str,
    said: tuple[list[str], str | None],
    agent: str | None,
    where: Conversation,
    seconds: float | None,
    *,
    version: str | None,
) -> ToolResult:
    given = read_arguments(*said, remote_calls.offered(gateway, name))
    return remote_calls.called(gateway, name, given, where, seconds=seconds, version=version, agent=agent)


async def _run(  # noqa: PLR0913 - as above
    name: str,
    said: tuple[list[str], str | None],
    caller: Caller,
    where: Conversation,
    seconds: float | None,
    *,
    version: str | None,
    shows: bool,
) -> ToolResult:
    from toolfleet import ToolFleet

    async with ToolFleet() as fleet:
        tool = tool_named(name, await fleet.tools(caller))
        asked = ToolCall(tool_name=name, arguments=read_arguments(*said, tool), tool_version=version)
        return await result_of(fleet, asked, caller, seconds, shows=shows, where=where)


async def result_of(
    fleet: "ToolFleet",
    asked: ToolCall,
    caller: Caller,
    seconds: float | None,
    *,
    shows: bool,
    where: Conversation | None = None,
) -> ToolResult:
    """Return the call's result. Ctrl-C cancels the call, and the command says what has become of it."""
    from toolfleet_cli.console.progress_bar import progress_bar
    from toolfleet_tasks.messages import approval_results

    try:
        async with progress(f"{asked.tool_name} waits to be sent"):
            handle = await fleet.submit(asked, caller, conversation=where, timeout=seconds, waits_for_turn=True)
    except asyncio.CancelledError:
        note(
            f"The call of {asked.tool_name} was not under way yet. It is taken back, should it have been sent just now."
        )
        raise
    if handle.approval_expires_at is not None:  # for hours perhaps: it waits in the fleet, as one of `fleet.call` does
        return approval_results.approval_required(handle.tool_name, handle.id, expires_at=handle.approval_expires_at)
    try:
        async with progress_bar(handle) if shows else progress(f"{asked.tool_name} is running"):
            return await handle.result()
    except asyncio.CancelledError:  # Ctrl-C; a second one does not wait for this
        note(await _taken_back(handle))
        raise


async def _taken_back(handle: "CallHandle") -> str:
    """Take the call back. Returns what has become of it."""
    await handle.cancel()
    result = await handle.result()
    if result.success:
        return f"Call {handle.id} had just succeeded."
    if result.effect_state == "none":
        return f"Call {handle.id} is taken back: it was not executed."
    if result.error_code == "cancelled":
        return f"Call {handle.id} is taken back. It had begun: it may have been executed, or still run for a moment."
    return f"Call {handle.id} has ended: {result.error}"
