"""Reads what a run of Pydantic AI's asks for, and what people have decided about it; writes what it is shown."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic_ai import (
    BinaryContent,
    CustomEvent,
    ModelResponse,
    RunContext,
    ToolApproved,
    ToolCallPart,
    ToolDenied,
    ToolReturn,
)
from pydantic_core import from_json

from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.contracts.call_context import Progress
from toolfleet_registry.formats.calls import spoken_arguments
from toolfleet_registry.time import machine_clock
from toolfleet_tasks.adapters.decisions import Decision
from toolfleet_tasks.adapters.deferrals import APPROVAL, CALL
from toolfleet_tasks.adapters.result_text import shown_parts

_WAITS = "toolfleet_waits"  # it is undecided, or still runs: the resumed run only asks again


@dataclass(kw_only=True)
class ToolProgress(CustomEvent):
    """The progress of a call, in the run's stream of events."""

    fraction: float | None
    """How much of the work is done, from 0 to 1; `None` if nobody knows."""
    message: str
    """What is going on."""


def asked_by(ctx: RunContext[Any], name: str, arguments: Any) -> tuple[str | None, Any]:
    """Return the run whose model has asked for the call, and the model's arguments: a resumed run is another one, and people may edit the arguments."""
    for message in reversed(ctx.messages):
        for part in message.parts if isinstance(message, ModelResponse) else ():
            if isinstance(part, ToolCallPart) and (part.tool_call_id, part.tool_name) == (ctx.tool_call_id, name):
                asked = spoken_arguments(part.args) if ctx.tool_call_approved else arguments
                return message.run_id or ctx.run_id, asked
    return ctx.run_id, arguments


def decision_of(said: object, known: Mapping[str, Any], asked: Any) -> Decision | None:
    """Return the decision on a call, `known` being its metadata, and `asked` its arguments; `None` without one."""
    seen = known.get(APPROVAL, {}).get("digest")
    if isinstance(said, ToolDenied):
        return Decision(approves=False, reason=said.message, seen=seen)
    if not isinstance(said, ToolApproved) or known.get(_WAITS):
        return None
    before: Mapping[str, Any] = asked if isinstance(asked, dict) else {}
    edited = said.override_args if isinstance(said.override_args, dict) else before
    gone = sorted(before.keys() - edited.keys())
    fault = f"Nothing can be left out of the arguments: {', '.join(gone)}." if gone else None
    changed = {key: value for key, value in edited.items() if key not in before or before[key] != value}
    return Decision(approves=True, arguments=changed or None, seen=seen, fault=fault)


def asked_again(known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a call without an end, `known` being its present one: a run that continues with it defers it again."""
    return {**known, _WAITS: True}


def tool_return(result: ToolResult) -> ToolReturn[Any]:
    """Return a success in the framework's form for its model: files next to the text."""
    text, files = shown_parts(result)
    parts = [BinaryContent(file.read(), media_type=file.media_type) for file in files]
    value: Any = [text, *parts] if result.files else result.result
    return ToolReturn(value, metadata={CALL: result.audit.call_id, "attempts": result.audit.attempts})


async def emit_progress(ctx: RunContext[Any], progress: Progress) -> None:
    """Tell the run's stream of events how far a call is."""
    await ctx.emit(ToolProgress(fraction=progress.fraction, message=progress.message))


def seconds_left(deadline: datetime | None) -> float | None:
    """Return the seconds until a run's deadline; `None` without one."""
    if deadline is None:
        return None
    aware = deadline if deadline.tzinfo is not None else deadline.astimezone(UTC)
    return (aware - machine_clock.utc_now()).total_seconds()


class AnyArguments:
    """Accepts any arguments of a model: the fleet validates them, and says in one sentence what is wrong."""

    def validate_json(
        self,
        input: str | bytes | bytearray,  # noqa: A002 - the framework's word
        *,
        allow_partial: bool | Literal["off", "on", "trailing-strings"] = False,
        **_: Any,
    ) -> Any:
        """Parse the JSON; a text that is no JSON stays as it is."""
        if allow_partial not in {False, "off"}:
            return from_json(input, allow_partial="trailing-strings")
        return spoken_arguments(input if isinstance(input, str) else bytes(input).decode(errors="replace"))

    def validate_python(self, input: Any, **_: Any) -> Any:  # noqa: A002 - as above
        """The same."""
        return input
