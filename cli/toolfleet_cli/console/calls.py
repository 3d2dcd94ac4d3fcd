"""Reads a call's arguments from words, shows its progress as a bar, prints its result, and chooses the exit code."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from toolfleet_cli.console.output import err, note, plain, say, say_json
from toolfleet_registry.contracts import Audit, ToolDefinition, ToolResult
from toolfleet_registry.schemas.definition import input_schema

if TYPE_CHECKING:
    from toolfleet import CallHandle

_WORD = re.compile(r"(?P<name>[^=:]+)(?P<sign>:?=)(?P<value>.*)", re.DOTALL)

_OTHER_TYPES = {"integer", "number", "boolean", "array", "object", "null"}

_PATIENCE_SECONDS = 1.0  # what is faster needs no sign of life
_LONGEST = 60  # characters of a message next to the bar


def read_arguments(words: Sequence[str], whole: str | None, tool: ToolDefinition | None) -> Any:
    """The arguments: those of `whole`, a JSON document, and over them those of the words.

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
    """The JSON types that a schema names, itself or as alternatives."""
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
