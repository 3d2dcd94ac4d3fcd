"""Describes what a client says of a job, and what it is answered."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from toolfleet_gateway.auth.identity import AgentNames, UserName
from toolfleet_registry.contracts import Conversation, ToolCall
from toolfleet_registry.contracts.jobs import Completion, HookSpec, Job, Poll, Schedule, WakeupRequest, WorkflowId


class JobCall(BaseModel):
    """A call that a job makes."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    tool_name: str = Field(max_length=256)
    """`module.method`."""
    arguments: dict[str, Any] = {}
    """By names of the tool's arguments."""
    tool_version: str | None = None
    """The version of the tool that is meant, letter for letter."""

    def call(self) -> ToolCall:
        """As the fleet takes it."""
        return ToolCall(tool_name=self.tool_name, arguments=self.arguments, tool_version=self.tool_version)


class JobRequest(BaseModel):
    """A job as its client wants it: `start` is done at once or at its schedule, then `poll` or `hook` until it is over; else it is a reminder."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    start: JobCall | None = None
    """Its first call."""
    poll: Poll | None = None
    """The call that finds out whether the work is over."""
    schedule: Schedule | None = None
    """When it begins, and whether it does so again."""
    on_complete: list[WakeupRequest | JobCall] = Field(default=["resume_conversation"], max_length=10)
    """What happens at its end."""
    conversation: Conversation = Conversation()
    """The conversation that its end wakes."""
    deadline_seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """All of it ends by then."""
    name: str = Field(default="", max_length=200)
    """What its client calls it."""
    message: str | None = Field(default=None, max_length=10_000)
    """What the agent is told at its end."""
    on_failure_message: str | None = Field(default=None, max_length=10_000)
    """The same if it did not complete."""
    hook: HookSpec | None = None
    """In the place of `poll`: the work is over when `POST /hooks/{job_id}` says so, signed with one of its secrets."""
    workflow_id: WorkflowId | None = None
    """The group of jobs that are cancelled when one of them fails."""
    user_id: UserName | None = None
    """In whose name, for keys that act for others."""
    agent: AgentNames | None = None
    """The agent whose profile takes from what the key may do; a key of an agent takes no other one."""

    def ends(self) -> list[Completion]:
        """What happens at its end, as the fleet takes it."""
        return [one.call() if isinstance(one, JobCall) else one for one in self.on_complete]


class JobList(BaseModel):
    """Jobs of one user."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    jobs: list[Job]
    """The newest first."""
    count: int
    """How many these are."""


class CancelledJobs(BaseModel):
    """What came of cancelling jobs."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    cancelled: int
    """How many were ended by it."""


class OfUserQuery(BaseModel):
    """Whose jobs are meant."""

    model_config = ConfigDict(extra="forbid")

    user_id: UserName | None = Field(None, description="Whose, for keys that act for others.")


class JobQuery(OfUserQuery):
    """Which jobs are listed."""

    ended: bool = Field(True, description="Whether those that are over are listed, too.")
    workflow_id: str | None = Field(None, max_length=200, description="Only those of this workflow.")
    limit: int = Field(100, ge=1, le=1_000, description="How many at most.")
