"""Defines what clients send of calls, and what they get to know."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from toolfleet_gateway.auth.identity import AgentNames, UserName
from toolfleet_gateway.http.problems import ProblemBody
from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.contracts.call_context import LogLevel, Progress

MOST_IN_BATCH = 50
LONGEST_KEY = 256

Seconds = Annotated[float, Field(gt=0, le=86_400 * 365, allow_inf_nan=False)]
Name = Annotated[str, Field(max_length=256)]
# In the document only: what else a model has written is no tool's name, and is answered as that.
_TOOL_NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}\.[A-Za-z0-9_.-]{1,192}$"
_METHOD_NAME = r"^([A-Za-z0-9][A-Za-z0-9_-]{0,63}\.)?[A-Za-z0-9_-][A-Za-z0-9_-]{0,191}$"


class _Sent(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class CallBody(_Sent):
    """A call of a tool."""

    tool_name: str = Field(max_length=1024, json_schema_extra={"pattern": _TOOL_NAME})
    """`module.tool`, as `GET /tools` has it."""
    arguments: dict[str, Any] = Field(default={})
    """By the names of the tool's arguments."""
    timeout_seconds: Seconds | None = None
    """By when it is to end; by default the tool's own limit, and room for a second attempt."""
    conversation_id: Name | None = None
    """The conversation that it belongs to."""
    run_id: Name | None = None
    """The turn of the agent that it is part of: what a profile's `run_limit` counts by."""
    user_id: UserName | None = None
    """In whose name, for keys that may act for others."""
    agent: AgentNames | None = None
    """The agent whose profile takes from what the key may do; a key of an agent takes no other one."""
    tool_version: Name | None = None
    """The version of the tool that is meant; by default whichever there is."""
    log_level: LogLevel | None = None
    """Its events have the tool's log messages that are so grave or graver; by default none."""


class BatchedCall(CallBody):
    """A call among others."""

    tool_name: str = Field(max_length=1024)
    """`module.tool`; one that is none is this call's own problem, and none of the others'."""
    user_id: Name | None = None
    """In whose name, for keys that may act for others; again it is this call's own problem if it is none."""
    idempotency_key: str | None = Field(default=None, min_length=1, max_length=LONGEST_KEY)
    """As the header `Idempotency-Key` of a single call."""


class BatchBody(_Sent):
    """Calls that are to run side by side."""

    calls: Annotated[list[BatchedCall], Field(min_length=1, max_length=MOST_IN_BATCH)]
    """Each has an answer of its own."""


class ExecuteBody(_Sent):
    """A call of one module's tool."""

    tool_name: str = Field(max_length=1024, json_schema_extra={"pattern": _METHOD_NAME})
    """The tool's name, with or without the module before it."""
    arguments: dict[str, Any] = Field(default={})
    """By the names of the tool's arguments."""
    user_id: UserName | None = None
    """In whose name, for keys that may act for others."""
    agent: AgentNames | None = None
    """The agent whose profile takes from what the key may do; a key of an agent takes no other one."""


class CallState(BaseModel):
    """Where a call is."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    call_id: str
    """The call's id."""
    tool_name: str
    """Its tool."""
    state: Literal["queued", "running", "retrying", "input_required", "waiting_approval", "done", "unknown"]
    """`unknown`: Redis does not answer now."""
    progress: Progress | None = None
    """What it said last of how far it is."""
    result: ToolResult | None = None
    """How it ended, once it is `done`."""


class BatchedAnswer(BaseModel):
    """What became of one call of a batch: its `result`, its state, or the problem that kept it from its queue."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    status: int
    """The HTTP status that it would have had by itself."""
    result: ToolResult | None = None
    """How it ended, if it has."""
    call: CallState | None = None
    """Where it is, if it has not."""
    problem: ProblemBody | None = None
    """Why it is in no queue."""


class BatchAnswer(BaseModel):
    """The answers, in the order of the calls."""

    model_config = ConfigDict(frozen=True)

    calls: list[BatchedAnswer]
