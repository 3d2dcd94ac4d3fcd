"""Defines jobs, long work that is polled: the messages that cross a process, and what an agent says of one.

Times are seconds since the epoch, durations are in seconds.
"""

from base64 import b64encode
from datetime import datetime
from secrets import token_bytes
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from toolfleet_registry.contracts.call_context import Conversation
from toolfleet_registry.contracts.calls import Caller, ErrorCode, ToolCall, ToolResult
from toolfleet_registry.contracts.message import Message, Since
from toolfleet_registry.errors import FleetError

JobState = Literal["starting", "waiting", "polling", "completed", "failed", "timed_out", "cancelled"]
"""Where a job is: its first call is under way, it waits for its next poll, one is under way; or how it has ended."""

ENDED: frozenset[JobState] = frozenset({"completed", "failed", "timed_out", "cancelled"})

WakeupRequest = Literal["resume_conversation", "notify"]
"""What a job's end does to its conversation: wakes the agent in it, or has it only told."""

Completion = WakeupRequest | ToolCall
"""One thing that a job's end does; the call is made in the creator's name."""

WakeKind = Literal["continue", "notify"]
"""The purpose of the events at a job's end: see `WakeupRequest`."""

Condition = dict[str, Any] | str
"""What a poll's result must be: see `conditions`."""

PositiveSeconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]

WorkflowId = Annotated[str, Field(min_length=1, max_length=200)]
"""What a user's jobs have in common of which all are cancelled when one fails."""


class JobRefused(FleetError):
    """A job cannot be made as it is wished; `result` says why, in the words and with the code of a refused call."""

    def __init__(self, result: ToolResult) -> None:
        self.result = result
        super().__init__(result.error or "The job is refused.")


class Poll(Message):
    """The call that finds out whether the work is over."""

    tool_name: str
    """`module.method`."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """A value `{"$from": "<JMESPath>"}` anywhere in them is taken from the start call's result."""
    interval_seconds: PositiveSeconds = 30
    """From one poll to the next."""
    backoff: float = Field(default=1.0, ge=1, le=10)
    """Each wait is so many times the one before."""
    longest_interval_seconds: PositiveSeconds = 600
    """No wait is longer, whatever the backoff."""
    until: Condition | None = Field(default_factory=lambda: {"status": ["completed", "failed"]})
    """The job is over when a poll's result fulfils this; `None`: with the first poll that succeeds."""
    failed_when: Condition | None = Field(default_factory=lambda: {"status": ["failed", "error", "cancelled"]})
    """The job has failed if that result fulfils this as well."""
    max_seconds: PositiveSeconds = 86_400
    """After so long the job has timed out."""
    tool_version: Annotated[str | None, Since(2)] = None
    """As that of a `ToolCall`: a poll that meets another version ends the job as failed."""

    def call_with(self, arguments: dict[str, Any]) -> ToolCall:
        """Return the call of one poll.

        Args:
            arguments: The arguments, in place of the call's own.

        """
        return ToolCall(tool_name=self.tool_name, arguments=arguments, tool_version=self.tool_version)


class HookSpec(Message):
    """A request that ends a job in the place of polls; an outside system signs it as Standard Webhooks has it."""

    secrets: tuple[str, ...] = Field(min_length=1, max_length=5, repr=False)
    """Each `whsec_` and base64 of 24 to 64 bytes; several while one is changed. They are not shown again."""
    requires_job_id: Annotated[bool, Since(4)] = False
    """Whether a request's body must have the job's id as `job_id`. Only the body is signed: without it a request for one job
    ends each other one with the same secret, if it is sent to that one's URL."""

    @classmethod
    def new(cls) -> Self:
        """Return a hook with a secret of its own, 32 random bytes, whose requests must name their job."""
        return cls(secrets=(f"whsec_{b64encode(token_bytes(32)).decode()}",), requires_job_id=True)


class Schedule(Message):
    """When a job begins, and whether it does so again."""

    at: float | None = None
    """When it begins: seconds since the epoch, or a `datetime` that knows its zone."""
    cron: str | None = Field(default=None, max_length=200)
    """When it begins again and again: five fields."""
    timezone: str = "UTC"
    """The zone of `cron`, by its IANA name."""
    delay_seconds: Annotated[PositiveSeconds | None, Since(2)] = None
    """It begins so many seconds after it is made; instead of `at`."""
    max_runs: Annotated[Annotated[int, Field(ge=1)] | None, Since(2)] = None
    """After so many of `cron`'s rounds the job has completed."""

    @field_validator("at", mode="before")
    @classmethod
    def _take_a_datetime(cls, value: Any) -> Any:
        if isinstance(value, datetime):
            if value.tzinfo is None:
                raise ValueError("a datetime must know its time zone")
            return value.timestamp()
        return value

    @model_validator(mode="after")
    def _check_what_goes_together(self) -> Self:
        if self.delay_seconds is not None and (self.at is not None or self.cron is not None):
            raise ValueError("a schedule has one of `at`, `delay_seconds` and `cron`")
        if self.max_runs is not None and self.cron is None:
            raise ValueError("`max_runs` counts the rounds of `cron`, and there is none")
        return self

    def counted_from(self, moment: float) -> "Schedule":
        """Return the schedule with `at` in place of `delay_seconds`.

        Args:
            moment: When the delay begins, in seconds since the epoch.

        """
        return self if self.delay_seconds is None else Schedule(at=moment + self.delay_seconds)


class JobSpec(Message):
    """The work of a job, as it was accepted: sealed if the fleet signs, and never changed.

    `start` is its first call, if it has one; then `poll`, or `hook`, which is waited for; without either it is a
    reminder. `on_complete` happens at its end, whatever that is; a `ToolCall` in it is made in the creator's name, and
    only if the job completed. `message` is what the agent is told, `on_failure_message` if it did not complete; without
    one the fleet words it. `fills`: values to fill in then for names in braces. If it fails or times out, the other
    jobs of its user's `workflow_id` are cancelled.

    The rest is determined when it is made, and stays for the life of the job: `caller` is its maker with the rights of
    that time, even if they change later; `gated` are digests of the calls that were put before the agent's gate (other
    calls of tools that require one are not made); `hides_results`: its calls' results are stored nowhere, nor their
    modules' messages; `secret_tools` are those of `on_complete` with sensitive arguments. `wish`, of a job that a key
    names, is a digest of what was asked for. `traceparent` and `tracestate`: its place in a trace, in the W3C format.
    `asked_by`: the key or token that has asked for it in the name of another user, and its own user: neither approves
    its steps.
    """

    job_id: str
    caller: Caller
    user_id: str | None = None
    conversation: Conversation = Conversation()
    name: str = Field(default="", max_length=200)
    message: str | None = Field(default=None, max_length=10_000)
    start: ToolCall | None = None
    poll: Poll | None = None
    schedule: Schedule | None = None
    on_complete: tuple[WakeupRequest | ToolCall, ...] = ("resume_conversation",)
    created_at: float
    deadline_at: float
    gated: tuple[str, ...] = ()
    hides_results: bool = False
    secret_tools: tuple[str, ...] = ()
    wish: str | None = None
    on_failure_message: Annotated[Annotated[str, Field(max_length=10_000)] | None, Since(2)] = None
    fills: Annotated[bool, Since(2)] = False
    workflow_id: Annotated[WorkflowId | None, Since(2)] = None
    hook: Annotated[HookSpec | None, Since(2)] = None
    traceparent: Annotated[str | None, Since(3)] = None
    tracestate: Annotated[str | None, Since(3)] = None
    asked_by: Annotated[tuple[str, ...], Since(4)] = ()


class Job(Message):
    """A job as its creator sees it."""

    job_id: str
    """The job's id."""
    state: JobState
    """Where it is, or how it has ended."""
    name: str = ""
    """What its creator calls it."""
    tool_name: str | None = None
    """The tool that it polls, or starts."""
    user_id: str | None = None
    """Whose it is."""
    conversation_id: str | None = None
    """Which conversation its end wakes."""
    schedule: Schedule | None = None
    """When it begins, if not at once."""
    workflow_id: Annotated[str | None, Since(2)] = None
    """The group of its user's jobs that it belongs to."""
    created_at: float
    """When it was made, in seconds since the epoch."""
    deadline_at: float
    """When it ends at the latest, in seconds since the epoch."""
    due_at: float | None = None
    """When its next poll is, in seconds since the epoch, if it waits."""
    ended_at: float | None = None
    """When it ended, in seconds since the epoch."""
    polls: int = 0
    """How many polls were made."""
    runs: Annotated[int | None, Since(2)] = None
    """How many rounds have ended, of a job with `max_runs`."""
    result: Any = None
    """Of a job that has ended, the result of its last poll or its start; `None` if that failed, is larger than 64 kB, or sensitive."""
    error: str | None = None
    """What went wrong, in words."""
    error_code: ErrorCode | None = None
    """What went wrong, for programs."""


class WakeUp(Message):
    """A message to a conversation: the body of `POST {core_url}/continue` (or `/notify`), and of `fleet.wakeups.completions`."""

    type: Literal["job.completed", "job.failed", "job.timed_out"]
    """How the job has ended."""
    kind: WakeKind = "continue"
    """What its receiver is to do: `continue` the conversation, or only `notify` its user."""
    wake_id: str
    """The same however often the event is delivered; over HTTP it is also the `webhook-id`."""
    job_id: str
    """The job that has ended."""
    timestamp: float
    """When it ended, in seconds since the epoch."""
    conversation_id: str | None = None
    """The conversation that it was made in."""
    user_id: str | None = None
    """Whose job it is."""
    platform: str | None = None
    """What the conversation runs on."""
    platform_channel_id: str | None = None
    """The channel there."""
    platform_thread_id: str | None = None
    """The thread in that channel."""
    message: str
    """What the agent is told, in words."""
    name: str = ""
    """What the job's creator calls it."""
    tool_name: str | None = None
    """The tool that it polled, or started."""
    result: Any = None
    """The last poll's result; `None` if it is larger than 64 kB, or sensitive, as the message says."""
    result_preview: str | None = None
    """The beginning of a result that is too large."""
    is_truncated: bool = False
    """Whether the result is too large, so that only its preview is here."""
    error: str | None = None
    """What went wrong, in words."""
    error_code: ErrorCode | None = None
    """What went wrong, for programs."""
