"""Prints a call's result, and chooses the exit code."""

import json
from typing import NoReturn

import typer

from toolfleet_cli.console.output import err, note, say, say_json
from toolfleet_registry.contracts import Audit, ToolResult


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
