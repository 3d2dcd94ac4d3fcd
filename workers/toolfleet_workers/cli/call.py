"""`toolfleet call`: run a tool and print its result."""

import asyncio
import json
from typing import Annotated

import typer

from toolfleet_registry.contracts import Audit, Caller, ToolCall, ToolResult
from toolfleet_workers.cli.arguments import read_arguments
from toolfleet_workers.cli.caller import Level, ModulesOption, PermissionOption, UserOption, caller_of
from toolfleet_workers.cli.output import err, note, progress, say, say_json


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
        float | None, typer.Option(metavar="SECONDS", min=0.001, max=1e8, help="Wait no longer, queue time included.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole ToolResult.")] = False,
) -> None:
    """Run a tool and print its result. Exit code 1 if the call did not succeed."""
    caller = caller_of(user, permission, modules)
    result = asyncio.run(_run(tool, arguments or [], whole, caller, timeout))
    if as_json:
        say_json(result.model_dump(mode="json"))
    elif result.success:
        say(
            result.result if isinstance(result.result, str) else json.dumps(result.result, indent=2, ensure_ascii=False)
        )
    else:
        _explain(result)
    if err.is_terminal and result.audit is not None and not as_json:
        note(_summary(result.audit), style="dim")
    raise typer.Exit(0 if result.success else 1)


async def _run(name: str, words: list[str], whole: str | None, caller: Caller, seconds: float | None) -> ToolResult:
    from toolfleet import ToolFleet  # noqa: PLC0415 - takes a second to load, which `--help` should not

    async with ToolFleet() as fleet:
        tool = next((tool for tool in await fleet.tools(caller) if tool.name == name), None)
        arguments = read_arguments(words, whole, tool)
        async with progress(f"{name} is running"):
            return await fleet.call(ToolCall(tool_name=name, arguments=arguments), caller, timeout=seconds)


def _explain(result: ToolResult) -> None:
    note(f"{result.error_code}: {result.error}", style="red")
    if result.hint:
        note(result.hint)
    if result.effect_state == "unknown":
        note("Nobody can know whether it has had its effect.")


def _summary(audit: Audit) -> str:
    parts = [f"call {audit.call_id}"]
    if audit.queued_ms is not None:
        parts.append(f"queued {audit.queued_ms:.0f} ms")
    if audit.duration_ms is not None:
        parts.append(f"ran {audit.duration_ms:.0f} ms")
    if audit.attempts > 1:
        parts.append(f"{audit.attempts} attempts")
    if audit.worker is not None:
        parts.append(audit.worker)
    return " · ".join(parts)
