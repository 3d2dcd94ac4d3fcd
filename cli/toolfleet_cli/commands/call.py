"""Runs a tool and prints its result, or tells which rules let it be called: `toolfleet call` and `why`."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from toolfleet_cli.commands.completion import complete_keys, complete_tools
from toolfleet_cli.console import (
    add_row,
    err,
    fail,
    no_such_key,
    note,
    plain,
    progress,
    say,
    say_json,
    show_table,
    table,
)
from toolfleet_cli.remote import (
    AgentOption,
    ConversationOption,
    Gateway,
    ModulesOption,
    PermissionOption,
    RunOption,
    UserOption,
    ask,
    caller_at,
    caller_of,
    over_fleet,
    tool_of,
)
from toolfleet_cli.resources import tools
from toolfleet_registry.contracts import Audit, Caller, Conversation, ToolCall, ToolDefinition, ToolResult
from toolfleet_registry.contracts.tool_definition import tool_named
from toolfleet_registry.errors import NoSuchEntry
from toolfleet_registry.schemas.definition import input_schema
from toolfleet_registry.system import randomness

if TYPE_CHECKING:
    from toolfleet import CallHandle, ToolFleet
    from toolfleet_registry.agents.explanation import ToolExplanation

TimeoutOption = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        min=0.001,
        max=1e8,
        help="Wait no longer, queue time included; by default twice the tool's limit and lease, some minutes.",
    ),
]

_WORD = re.compile(r"(?P<name>[^=:]+)(?P<sign>:?=)(?P<value>.*)", re.DOTALL)

_OTHER_TYPES = {"integer", "number", "boolean", "array", "object", "null"}

_WAIT_SECONDS = 30  # that one question to a gateway is held open
_PATIENCE = _WAIT_SECONDS + 15.0  # for its answer to come
_PATIENCE_SECONDS = 1.0  # what is faster needs no sign of life
_LONGEST = 60  # characters of a message next to the bar


def register(app: typer.Typer) -> None:
    """Give the app the command."""
    app.command()(over_fleet(call))
    app.command()(over_fleet(why))


def call(
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
    permission: PermissionOption = "owner",
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
    said = arguments or [], whole
    if gateway is not None:
        caller_at(gateway, user, permission, modules)
        asked = {"tool_name": tool, "arguments": read_arguments(*said, tool_of(gateway, tool))}
        asked |= {"timeout_seconds": timeout, "tool_version": tool_version, "agent": agent}
        asked |= {"conversation_id": conversation_id, "run_id": run_id}
        show_result(_called_at(gateway, asked), as_json=as_json)
    where = Conversation(conversation_id=conversation_id, run_id=run_id)
    shows, caller = err.is_terminal and not as_json, caller_of(user, permission, modules, agent)
    result = asyncio.run(_run(tool, said, caller, where, timeout, version=tool_version, shows=shows))
    show_result(result, as_json=as_json)


def _called_at(gateway: Gateway, asked: dict[str, Any]) -> ToolResult:
    """Return the call's result; a refusal ends the command. Ctrl-C cancels the call."""
    body = {field: value for field, value in asked.items() if value is not None}
    headers = {"prefer": "respond-async", "idempotency-key": randomness.uuid4().hex}
    begun = gateway.ask("POST", "/calls", seconds=_PATIENCE, about=body["tool_name"], json=body, headers=headers)
    if "call_id" not in begun:  # it has ended already
        return ToolResult.model_validate(begun)
    if begun["state"] == "waiting_approval":
        from toolfleet_tasks.messages.fleet_results import approval_required

        return approval_required(begun["tool_name"], begun["call_id"], expires_at=None)
    path = f"/calls/{begun['call_id']}"
    try:
        wait = {"prefer": f"wait={_WAIT_SECONDS}"}
        while (state := gateway.ask("GET", path, seconds=_PATIENCE, headers=wait))["state"] != "done":
            pass
    except KeyboardInterrupt:
        _cancel_at(gateway, path)
    return ToolResult.model_validate(state["result"])


def _cancel_at(gateway: Gateway, path: str) -> NoReturn:
    state = gateway.ask("DELETE", path)
    result = state.get("result") or {}
    ended = result.get("error") or ("it had just succeeded" if result.get("success") else "it is being cancelled")
    note(f"Call {state['call_id']}: {ended}")
    raise KeyboardInterrupt


async def _run(
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
    """Return the call's result. Ctrl-C cancels the call, and the command says how it ended."""
    from toolfleet_tasks.messages import fleet_results

    try:
        async with progress(f"{asked.tool_name} waits to be sent"):
            handle = await fleet.submit(asked, caller, conversation=where, timeout=seconds, waits_for_turn=True)
    except asyncio.CancelledError:
        note(f"The call of {asked.tool_name} is cancelled. If it was sent just before, it may have been executed.")
        raise
    if handle.approval_expires_at is not None:  # for hours perhaps: it waits in the fleet, as one of `fleet.call` does
        return fleet_results.approval_required(handle.tool_name, handle.id, expires_at=handle.approval_expires_at)
    try:
        async with progress_bar(handle) if shows else progress(f"{asked.tool_name} is running"):
            return await handle.result()
    except asyncio.CancelledError:  # Ctrl-C; a second one does not wait for this
        note(await _cancel(handle))
        raise


async def _cancel(handle: "CallHandle") -> str:
    """Cancel the call and return a sentence on how it ended."""
    await handle.cancel()
    result = await handle.result()
    if result.success:
        return f"Call {handle.id} had just succeeded."
    if result.effect_state == "none":
        return f"Call {handle.id} is cancelled: it was not executed."
    if result.error_code == "cancelled":
        return f"Call {handle.id} is cancelled. It had started: it may have been executed, or still run for a moment."
    return f"Call {handle.id} has ended: {result.error}"


def why(
    tool: Annotated[str, typer.Argument(metavar="MODULE.TOOL", autocompletion=complete_tools)],
    *,
    user: UserOption = None,
    permission: PermissionOption = "owner",
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
    if key is not None and (user is not None or permission != "owner" or modules is not None):
        raise typer.BadParameter("the key says that: leave --user, --permission and --modules out.", param_hint="--key")

    query = {"agent": agent, "conversation_id": conversation_id, "run_id": run_id}
    holder = {"user_id": user, "permission": permission, "modules": modules} if key is None else {"key": key}
    try:
        found = ask(tools.explain_tool, gateway, tool, query={**query, **holder})
    except NoSuchEntry:
        if gateway is not None or key is None:
            raise
        fail(no_such_key(key), code=1)
    if as_json:
        say_json(found)
    else:
        _show(found)
    raise typer.Exit(0 if found.is_allowed else 1)


def _show(found: "ToolExplanation") -> None:
    shown = table("", "ABOUT", "RULE", "WHERE")
    for rule in found.rules:
        add_row(shown, "passes" if rule.passes else "refuses", rule.about, rule.says, rule.place)
    show_table(shown)
    if found.is_allowed:
        note(f"{found.tool_name} may be called.", style="green")
    else:
        note(f"{found.tool_name} may not be called: {found.reason}", style="red")


def read_arguments(words: Sequence[str], whole: str | None, tool: ToolDefinition | None) -> Any:
    """Return the arguments: those of `whole`, a JSON document, overridden by those of the words.

    `name:=value` is JSON. `name=value` is text, unless the tool takes no text under this name: then it is JSON if it
    can be read as such, and what cannot be is left for the fleet to judge. Raises `typer.BadParameter`.
    """
    base = {} if whole is None else _json(whole, "--args")
    if not words:
        return base
    if not isinstance(base, dict):
        raise typer.BadParameter("--args must be a JSON object if there are name=value arguments as well.")
    return base | dict(_read(word, tool) for word in words)


def _read(word: str, tool: ToolDefinition | None) -> tuple[str, Any]:
    match = _WORD.fullmatch(word)
    if match is None:
        raise typer.BadParameter(f"{word!r} is neither name=text nor name:=JSON.")
    name, sign, value = match["name"], match["sign"], match["value"]
    if sign == ":=":
        return name, _json(value, name)
    if tool is None or _takes_text(tool, name):
        return name, value
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _json(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as exc:
        raise typer.BadParameter(f"the value of {name} is not JSON: {exc}.") from exc


def _takes_text(tool: ToolDefinition, name: str) -> bool:
    """Return whether text may be meant: also if the tool does not declare the type."""
    properties = input_schema(tool)["properties"]
    types = set(_types(properties.get(name))) if isinstance(properties, dict) else set[str]()
    return not types or not types <= _OTHER_TYPES


def _types(schema: Any) -> Iterable[str]:
    """Yield the JSON types that a schema names, itself or as alternatives."""
    if not isinstance(schema, dict):
        return
    named = schema.get("type", [])
    yield from [named] if isinstance(named, str) else named
    for alternative in [*schema.get("anyOf", []), *schema.get("oneOf", [])]:
        yield from _types(alternative)


@asynccontextmanager
async def progress_bar(handle: "CallHandle") -> AsyncGenerator[None]:
    """Show the call's progress meanwhile, once that takes longer than a second."""
    shown = asyncio.create_task(_show_bar(handle))
    try:
        yield
    finally:
        shown.cancel()
        await asyncio.gather(shown, return_exceptions=True)  # a fault of the bar's is none of the call's


async def _show_bar(handle: "CallHandle") -> None:
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    await asyncio.sleep(_PATIENCE_SECONDS)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task(f"{handle.tool_name} is running", total=None)
        async for step in handle.progress():
            total = None if step.fraction is None else 1.0
            words = _line(step.message) or f"{handle.tool_name} is running"
            bar.update(task, total=total, completed=step.fraction or 0.0, description=words)


def _line(text: str) -> str:
    line = " ".join(plain(text).split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"


def show_result(result: ToolResult, *, as_json: bool) -> NoReturn:
    """Print what came of a call, and end: with exit code 1 if it did not succeed."""
    if as_json:
        say_json(result.model_dump(mode="json"))
    elif result.success:
        say(
            result.result if isinstance(result.result, str) else json.dumps(result.result, indent=2, ensure_ascii=False)
        )
    else:
        _explain(result)
    if result.error_code == "approval_required" and (call_id := result.audit.call_id):
        note(f"It waits for a decision: toolfleet approvals show {call_id}, then approve or reject.")
    if err.is_terminal and not as_json:
        note(_summary(result.audit), style="dim")
    raise typer.Exit(0 if result.success else 1)


def _explain(result: ToolResult) -> None:
    note(f"{result.error_code}: {result.error}", style="red")
    if result.hint:
        note(result.hint)


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
