"""Describes a tool call of a framework: its key and user, the offer that it answers, its deferral, and its result as text."""

import hashlib
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Generic, Literal, TypeVar

from toolfleet_registry.contracts import Caller, Conversation, ResultFile, ToolCall, ToolDefinition, ToolResult
from toolfleet_registry.contracts.calls import Spoken
from toolfleet_registry.contracts.names import provider_name
from toolfleet_registry.formats import as_spoken, from_result
from toolfleet_registry.formats.dialects import near_names
from toolfleet_registry.formats.results import shown_files
from toolfleet_registry.policy.hints import hint_for
from toolfleet_tasks.client.listeners import OnProgress

C = TypeVar("C")

T = TypeVar("T")

_MOST_CALLERS = 64  # kinds of callers whose listings are kept

Kind = Literal["call", "job", "approval"]

CALL: Final = "toolfleet_call_id"
TOOL: Final = "toolfleet_tool"
RUN: Final = "toolfleet_run_id"
APPROVAL: Final = "toolfleet_approval"
_KIND: Final = "kind"
_KINDS: Final[Mapping[object, Kind]] = {"call": "call", "job": "job", "approval": "approval"}


@dataclass(frozen=True, slots=True)
class FrameworkCall:
    """One tool call as a framework has it: the tool, as its model was shown it, and the framework's own ids.

    `arguments` may be anything: they are judged here, once. `seconds`: by when the run wants an end, `None` for no wish.
    """

    tool: ToolDefinition
    name: str
    arguments: Any
    caller: Caller
    run_id: str | None
    call_id: str | None
    conversation: Conversation | None = None
    seconds: float | None = None
    on_progress: OnProgress | None = None

    @property
    def user_id(self) -> str | None:
        """The user of the call."""
        return self.caller.user_id

    @property
    def key(self) -> str | None:
        """The key by which the call is found again: see `call_key`."""
        return call_key(self.run_id, self.call_id, self.tool.name, self.arguments)

    def as_call(self) -> ToolCall:
        """The call with its key; its errors are in the names that the model was shown."""
        spoken = Spoken("mcp", self.name, self.tool)
        return ToolCall(tool_name=self.tool.name, arguments=self.arguments, idempotency_key=self.key, spoken=spoken)


def call_key(run_id: str | None, call_id: str | None, tool_name: str, arguments: Any) -> str | None:
    """Return the idempotency key of one tool call: 64 hex digits. `None` if the framework has given it no id.

    The ids alone are not enough: models repeat a call's id within one run, with other arguments. `run_id` separates
    runs whose model restarts its count; `None` if call ids are unique by themselves.
    """
    if not call_id:
        return None
    try:
        text = json.dumps([run_id, call_id, tool_name, arguments], sort_keys=True, separators=(",", ":"), default=str)
    except (RecursionError, TypeError, ValueError):  # arguments that no call can have, and that are refused
        text = json.dumps([run_id, call_id, tool_name])
    return hashlib.sha256(text.encode()).hexdigest()


def caller_of(caller: Caller | Callable[[C], Caller], context: C) -> Caller:
    """Return the run's caller: a fixed one, or the result of a function of the run's context."""
    return caller if isinstance(caller, Caller) else caller(context)


def conversation_of(
    conversation: Conversation | Callable[[C], Conversation | None] | None, context: C
) -> Conversation | None:
    """Return the conversation of the run's calls, likewise."""
    return conversation(context) if callable(conversation) else conversation


def in_run(conversation: Conversation | None, run_id: str | None) -> Conversation | None:
    """The same with the framework's own run, where it says none: what a profile's `run_limit` counts by."""
    if run_id is None or (conversation is not None and conversation.run_id is not None):
        return conversation
    return (conversation or Conversation()).model_copy(update={"run_id": run_id})


def no_such_tool(name: str, tools: Iterable[ToolDefinition]) -> ToolResult:
    """The end of a call of what its model was not offered: with up to three names that it may have meant."""
    refusal = ToolResult.refused(name.encode("utf-8", "replace").decode(), "unknown_tool", "There is no such tool.")
    return as_spoken(refusal, Spoken("mcp", name, None, near_names(name, tools, "mcp")))


class ToolOffers(Generic[T]):
    """The tools of a fleet as `make` writes them, by the names under which providers take them.

    `list_tools` returns those that a caller may use, sorted by name. `where` says which of them are offered. Nothing is
    asked of Redis: a listing is compared with the one before, and while nothing has changed the answer is the same object.
    """

    def __init__(
        self,
        list_tools: Callable[[Caller], Awaitable[list[ToolDefinition]]],
        make: Callable[[ToolDefinition, str], T],
        where: Callable[[ToolDefinition], bool] | None = None,
    ) -> None:
        self._list_tools = list_tools
        self._make = make
        self._where = where
        self._kept: dict[tuple[object, object], tuple[list[ToolDefinition], Mapping[str, T]]] = {}

    async def of(self, caller: Caller) -> Mapping[str, T]:
        """Return this caller's present offers, sorted by name.

        Raises `FleetUnavailable` if nothing is known yet, and Redis is silent.
        """
        tools = await self._list_tools(caller)
        kind = caller.permission, caller.allowed_modules
        before, offers = self._kept.get(kind, ([], None))
        if offers is not None and tools == before:
            return offers
        known = {tool.name: tool for tool in before}
        made: dict[str, T] = {}
        for tool in tools if self._where is None else filter(self._where, tools):
            name = provider_name(tool.name)
            is_same = (seen := known.get(tool.name)) is tool or seen == tool
            made[name] = offers[name] if is_same and offers and name in offers else self._make(tool, name)
        while len(self._kept) >= _MOST_CALLERS:
            self._kept.pop(next(iter(self._kept)))
        listing: Mapping[str, T] = MappingProxyType(made)
        self._kept[kind] = tools, listing
        return listing


def result_text(result: ToolResult) -> str:
    """The whole result as text; of files it says that they cannot be shown.

    A failure says what went wrong, and then, a line each, what a model must know before it tries again: the error code,
    whether the effect has happened, whether a repeat is harmless, and what it may do next.
    """
    if result.success:
        return str(from_result(result, "openai_chat", None)["content"])
    facts = {
        "error_code": result.error_code or "internal",
        "effect_state": result.effect_state,
        "retryable": "true" if result.retryable else "false",
        "retry_after_seconds": result.retry_after_seconds,
        "hint": result.hint or hint_for(result),
    }
    said = [f"{name}: {value}" for name, value in facts.items() if value is not None]
    text = "\n".join([f"Error: {result.error or 'The call failed.'}", *said])
    return text.encode("utf-8", "replace").decode()  # half a character cannot be sent


def shown_parts(result: ToolResult) -> tuple[str, list[ResultFile]]:
    """Return the result as text, and the files to go with it: images and PDFs, which most providers take.

    The text names the others.
    """
    if not result.success or not result.files:
        return result_text(result), []
    _, unseen = shown_files(result.files, "openai_responses", is_on=True)
    files = [file for file in result.files if shown_files((file,), "openai_responses", is_on=True)[0]]
    return result_text(result.model_copy(update={"files": ()})) + unseen, files


@dataclass(frozen=True, slots=True)
class DeferredStep:
    """A step whose call continues as `call_id`, a job's id if it is a job.

    An `approval` is a call that waits for people.

    `run_id`: the run of its key, if the framework does not repeat it.
    """

    call_id: str
    tool_name: str
    kind: Kind = "call"
    run_id: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON that a framework stores, as metadata or as an interrupt's value."""
        known = {_KIND: self.kind, CALL: self.call_id, TOOL: self.tool_name}
        return known if self.run_id is None else {**known, RUN: self.run_id}

    @classmethod
    def of(cls, known: object) -> "DeferredStep | None":
        """Parse the output of `to_json`; `None` for anything else."""
        if not isinstance(known, Mapping):
            return None
        call_id, tool_name, run_id = known.get(CALL), known.get(TOOL), known.get(RUN)
        said = known.get(_KIND, "call")
        kind = _KINDS.get(said) if isinstance(said, str) else None
        if not (isinstance(call_id, str) and isinstance(tool_name, str)) or kind is None:
            return None
        return cls(call_id, tool_name, kind, run_id if isinstance(run_id, str) else None)


class StillRunning(Exception):
    """The call continues: any process can ask for its end by the `step`, and the same call made again joins it."""

    def __init__(self, step: DeferredStep) -> None:
        super().__init__(f"The {step.kind} {step.call_id!r} of {step.tool_name!r} goes on.")
        self.step = step
