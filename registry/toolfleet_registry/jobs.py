"""Jobs: long work that is polled, and what its end wakes. The messages that cross a process, and what an agent says of one.

Times are seconds since the epoch, durations are in seconds.
"""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from toolfleet_registry.contracts import Caller, Conversation, ErrorCode, Message, ToolCall, ToolResult
from toolfleet_registry.errors import FleetError

JobState = Literal["starting", "waiting", "polling", "completed", "failed", "timed_out", "cancelled"]
"""Where a job is: its first call is under way, it waits for its next poll, one is under way; or how it has ended."""

ENDED: frozenset[JobState] = frozenset({"completed", "failed", "timed_out", "cancelled"})

Wish = Literal["resume_conversation", "notify"]
"""What a job's end does to its conversation: wakes the agent in it, or has it only told."""

Completion = Wish | ToolCall
"""One thing that a job's end does; the call is made in the creator's name."""

WakeKind = Literal["continue", "notify"]
"""What news of a job's end are for: see `Wish`."""

Condition = dict[str, Any] | str
"""What a poll's result must be: see `conditions`."""

PositiveSeconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class JobRefused(FleetError):
    """A job cannot be made as it is wished; `result` says why, in the words and with the code of a refused call."""

    def __init__(self, result: ToolResult) -> None:
        self.result = result
        super().__init__(result.error or "The job is refused.")


class Poll(Message):
    """The call that finds out whether the work is over.

    A value `{"$from": "<JMESPath>"}` anywhere in `arguments` is taken from the start call's result. Polls are `interval_seconds`
    apart, each wait `backoff` times the one before, up to `longest_interval_seconds`. The job completes when a poll's result
    fulfils `until` (`None`: with the first that succeeds), or fails if it fulfils `failed_when` as well; after
    `max_seconds` it has timed out.
    """

    tool_name: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    interval_seconds: PositiveSeconds = 30
    backoff: float = Field(default=1.0, ge=1, le=10)
    longest_interval_seconds: PositiveSeconds = 600
    until: Condition | None = Field(default_factory=lambda: {"status": ["completed", "failed"]})
    failed_when: Condition | None = Field(default_factory=lambda: {"status": ["failed", "error", "cancelled"]})
    max_seconds: PositiveSeconds = 86_400


class Schedule(Message):
    """When a job begins, and whether it does so again: `at`, or by `cron` (five fields) in `timezone` (IANA name).

    `at` may be given as a `datetime` that knows its zone.
    """

    at: float | None = None
    cron: str | None = Field(default=None, max_length=200)
    timezone: str = "UTC"

    @field_validator("at", mode="before")
    @classmethod
    def _take_a_datetime(cls, value: Any) -> Any:
        if isinstance(value, datetime):
            if value.tzinfo is None:
                raise ValueError("a datetime must know its time zone")
            return value.timestamp()
        return value


class JobSpec(Message):
    """What a job is to do, as it was accepted: sealed where the fleet signs, and never changed.

    `start` is its first call, if it has one; then `poll`; without either it is a reminder. `on_complete` happens at its end,
    whatever that is; a `ToolCall` among it is made in the creator's name, and only if the job completed.
    `message` is what the agent is told; without one the fleet words it.

    The rest is found out when it is made, and holds as long as the job: `caller` is who its maker was then, whatever
    becomes of that user's rights; `gated` are digests of the calls that were put before the agent's gate (others of tools that
    require one are not made); `hides_results`: what its calls bring is kept nowhere, nor their modules' words; `secret_tools`
    are those of `on_complete` with sensitive arguments. `wish`, of a job that a key names, is a digest of what was asked for.
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
    on_complete: tuple[Wish | ToolCall, ...] = ("resume_conversation",)
    created_at: float
    deadline_at: float
    gated: tuple[str, ...] = ()
    hides_results: bool = False
    secret_tools: tuple[str, ...] = ()
    wish: str | None = None


class Job(Message):
    """A job as its creator sees it. `polls`: how many were made; `due_at`: when the next one is, of a job that waits.

    `result`, of a job that has ended, is that of the call that it ended by (the last poll, or the start): none if that failed,
    its time was over, its result is larger than 64 kB, or sensitive.
    """

    job_id: str
    state: JobState
    name: str = ""
    tool_name: str | None = None
    user_id: str | None = None
    conversation_id: str | None = None
    schedule: Schedule | None = None
    created_at: float
    deadline_at: float
    due_at: float | None = None
    ended_at: float | None = None
    polls: int = 0
    result: Any = None
    error: str | None = None
    error_code: ErrorCode | None = None


class WakeUp(Message):
    """What a conversation is told: the body of `POST {core_url}/continue` (or `/notify`), and of `fleet.completions`.

    `wake_id` is the same however often it is delivered; over HTTP it is also the `webhook-id`. `kind` is what its receiver is to
    do: `continue` the conversation, or only `notify` its user. `result` is the last poll's; a larger one than 64 kB is left
    out, `result_preview` is its beginning, and `is_truncated` says so. A sensitive one is left out, too, and the message says so.
    """

    type: Literal["job.completed", "job.failed", "job.timed_out"]
    kind: WakeKind = "continue"
    wake_id: str
    job_id: str
    timestamp: float
    conversation_id: str | None = None
    user_id: str | None = None
    platform: str | None = None
    platform_channel_id: str | None = None
    platform_thread_id: str | None = None
    message: str
    name: str = ""
    tool_name: str | None = None
    result: Any = None
    result_preview: str | None = None
    is_truncated: bool = False
    error: str | None = None
    error_code: ErrorCode | None = None
