"""Defines the messages of a call, from the agent's request to its result, and the terms under which it travels.

A reader without support for files, such as an older agent or a model that takes text only, learns from the label what
there is and how large it is.

What modules send is read leniently (they are deployed at other times than we are): see `ModuleReply` and
`ToolDefinition`. Times are seconds since the epoch, durations are in the unit that their name ends in.

Code that decides something about a call calls `note("gate", "allowed")` in the call's own task, for the audit line of
the call. Without a collector, a note is dropped.
"""

import operator
from base64 import b64decode, b64encode
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, Self, TypeAlias, get_args

from pydantic import Field, PrivateAttr, field_validator
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import from_json

from toolfleet_registry.contracts.call_context import Conversation, LogLevel, ToolContext
from toolfleet_registry.contracts.inputs import CallInputs
from toolfleet_registry.contracts.limits import Terms
from toolfleet_registry.contracts.message import Message, Since
from toolfleet_registry.contracts.tool_definition import (
    Effect,
    ToolDefinition,
    ToolLoadError,
    ToolSource,
)

MOST_RETRIES = 10
"""Further attempts of one call: who needs more has a module that is away."""

LONGEST_PAUSE_SECONDS = 30.0
"""Before one of them: as long as a module's `Retry-After` is honoured."""

Pause = Annotated[float, Field(ge=0, le=LONGEST_PAUSE_SECONDS, allow_inf_nan=False)]

FileKind = Literal["image", "audio", "file"]
"""The way in which a model takes a file: it sees it, hears it, or reads it."""

MOST_FILES = 100
"""Files of one result: no provider takes more images in a request."""

Level = Literal["guest", "user", "admin", "owner"]

_LEVELS = frozenset(get_args(Level))
"""The level of a caller's permission, the lowest first: each includes those before it."""

EffectState = Literal["none", "done", "unknown"]
"""Whether the call's effect has happened: certainly not, certainly, or unknown."""

ErrorCode = Literal[
    "invalid_tool_name",
    "unknown_module",
    "unknown_tool",
    "version_mismatch",
    "invalid_arguments",
    "permission_denied",
    "rate_limited",
    "blocked_by_gate",
    "approval_required",
    "approval_denied",
    "busy",
    "module_unreachable",
    "module_error",
    "invalid_response",
    "result_too_large",
    "result_dropped",
    "timed_out",
    "expired",
    "cancelled",
    "outcome_unknown",
    "conflict",
    "fleet_unavailable",
    "internal",
]
"""Why a call failed: a closed set, so that an agent can branch on it."""

_COLLECTIONS = (list, set, frozenset, tuple)

NEVER_PROBED = "no manifest yet"
"""The error of a module that has not been read yet."""

Point = Literal["published", "limits", "gate", "approval", "agent", "permission", "personal_data", "result_check"]
"""A point at which a call can be stopped: its agent, the limits, the agent's gate, a person, the agent's profile, its worker, personal data, and the look at
its result."""

Decisions: TypeAlias = dict[str, str]
"""Point -> a word or two of ours (`allowed`, `denied`, `failed_open`), and never anything from a call's arguments."""

CONVERSATION: Final = "conversation_id"
"""Under this name a call's conversation travels among its decisions, which each version reads; its audit line has it as a field."""

USER: Final = "user_id"
"""Under this name the user travels likewise, as audit and logs may show them, where the call itself names them otherwise."""

_LONGEST_ID = 256  # characters

_collected: ContextVar[Decisions | None] = ContextVar("toolfleet_decisions", default=None)


class ApprovalRule(Message):
    """One rule that asks for an approval; if several do, each has to be satisfied. `digest`: of what it was made from.

    Callers with `permission`, or a higher one, may approve, and so may these `users`, and the holders of these `keys`
    (ids of API keys). `quorum`: the number of approvals needed. `expires_seconds`: after which the call is denied.
    `self_approval`: the caller may be one of the approvers.
    """

    digest: str
    permission: Literal["guest", "user", "admin", "owner"] | None = None
    users: frozenset[str] = frozenset()
    keys: frozenset[str] = frozenset()
    quorum: Annotated[int, Field(ge=1)] = 1
    expires_seconds: Annotated[float, Field(gt=0)] = 3600.0
    self_approval: bool = False


class ApprovalTerms(Message):
    """The approval terms that travel with a call.

    `binding` is the digest of all that people see: another call needs another approval. `tool_digest`: of the tool's
    definition. `rules`: digests of the rules that ask for it. `expires_seconds`: the time to decide. `seconds`: the
    call's time from its approval on. `by_tool`: the tool itself asks for it, or settings do, which workers of earlier
    versions do not know. `asked`: for a call whose arguments were edited, the digest under which its idempotency key
    stands for it.
    """

    binding: str
    tool_digest: str
    rules: tuple[str, ...]
    expires_seconds: float = Field(gt=0)
    seconds: float = Field(gt=0)
    asked: str | None = None
    by_tool: Annotated[bool, Since(4)] = False


class ApprovedCall(Message):
    """The ledger's record of an approved call, sealed, for the worker that starts it."""

    call_id: str
    binding: str
    by: tuple[str, ...]
    at: float


class RetryTerms(Message):
    """The number of retries after the first attempt, as far as the call's effect and its deadline allow."""

    max_retries: int = Field(default=1, ge=0, le=MOST_RETRIES)
    """More than one only where a repeat does no harm."""
    backoff_factor: float = Field(default=2.0, ge=1, le=10, allow_inf_nan=False)
    """The factor by which each pause is longer than the one before."""
    initial_delay_seconds: Pause = 0.1
    """The first pause."""
    max_delay_seconds: Pause = LONGEST_PAUSE_SECONDS
    """The longest one."""
    jitter: bool = True
    """Whether up to as much again is added to a pause, by chance."""
    undeclared: Annotated[bool, Since(4)] = False
    """Whether a tool without an effect is tried again, up to `max_retries` times, when it has answered that it failed."""
    retry_on: Annotated[tuple[Annotated[str, Field(max_length=64)], ...], Field(max_length=64)] | None = None
    """Only after failures with one of these error codes, sorted; `None`: after all that may be repeated."""


class ResultFile(Message):
    """One file of a result."""

    kind: FileKind
    """Whether it is an image, a sound, or anything else."""
    media_type: str
    """The media type of its bytes, such as `image/png`."""
    data: str
    """Its bytes as base64."""
    name: str | None = None
    """Its name, if it has one."""

    @classmethod
    def of(cls, kind: FileKind, data: bytes, media_type: str, name: str | None) -> Self:
        """Encode a file.

        Args:
            kind: What a model does with it.
            data: The bytes.
            media_type: Such as `image/png`.
            name: The file's name, if it has one.

        """
        return cls(kind=kind, media_type=media_type, data=b64encode(data).decode(), name=name)

    @property
    def size(self) -> int:
        """The size in bytes."""
        return len(self.data) * 3 // 4 - self.data.count("=", -2)

    def read(self) -> bytes:
        """Decode its bytes."""
        return b64decode(self.data)

    def label(self, number: int) -> str:
        """Return the label that replaces the file in a text.

        Args:
            number: The file's number in its result.

        """
        named = f" {self.name!r}" if self.name else ""
        return f"{self.kind} {number}{named} ({self.media_type}, {self.size} bytes)"


class ResultArtifact(Message):
    """The handle of a large part of a result that is kept as an artifact."""

    id: str
    """The handle: the call's id, its attempt, and the part's number."""
    place: str
    """The place of the part in the result, as a JSON pointer; `/files/0` is the first file."""
    media_type: str
    """The media type of its bytes, such as `text/plain`."""
    size: int
    """How many bytes it has."""
    sha256: str
    """Their digest, in hexadecimal."""


class ArtifactArgument(Message):
    """An argument in whose place the worker puts an artifact, of this handle and digest."""

    name: str
    id: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Spoken:
    """The call as a model wrote it. All compare equal: calls that differ only in this are the same."""

    format: str = field(default="", compare=False)
    """The provider's format; empty: no model has asked for the call."""
    name: str = field(default="", compare=False)
    """The name under which the tool was offered; of a tool that was not, what the model said."""
    tool: ToolDefinition | None = field(default=None, compare=False)
    """The tool that was meant; `None` if it was not offered."""
    near: tuple[str, ...] = field(default=(), compare=False)
    """The offered names that are most like one that was not."""


UNSPOKEN = Spoken()
"""The value for a call that a program has made by itself."""


class ToolCall(Message):
    """One request to run a tool, as an agent or its model makes it.

    Takes any name and any arguments: `ToolFleet.call` judges them, so that a model's nonsense comes back as a
    `ToolResult` and not as an exception.
    """

    tool_name: str
    """`module.method`, or whatever a model has written."""
    arguments: Any = Field(default_factory=dict)
    """A JSON object, by names of the tool's arguments; defaults may be left out."""
    user_id: str | None = None
    """The user in whose name it is made, at most 256 characters; the caller's own `user_id` takes precedence."""
    idempotency_key: str | None = None
    """Names the intention: a second call of the same user with the same key brings the first one's result."""
    tool_version: Annotated[str | None, Since(2)] = None
    """The version of the tool that is meant, letter for letter, 1 to 256 characters: while another one is in effect the call is a `version_mismatch`. `None`: whichever there is."""
    takes_input: Annotated[bool, Since(2)] = False
    """Whether its caller answers what the tool's module asks meanwhile. Without that such a question ends the call."""
    log_level: Annotated[LogLevel | None, Since(2)] = None
    """Its caller wants the log messages of the tool that are so grave or graver; `None`: none."""
    spoken: SkipJsonSchema[Spoken] = Field(default=UNSPOKEN, exclude=True, repr=False)
    """How a model has named the tool, if `to_call` has read it: errors are in the names of its provider. Never sent."""


class Caller(Message):
    """The user who asks, and their rights."""

    user_id: str | None = None
    """The user's id, which modules are told, at most 256 characters; it wins over the call's own."""
    permission: Level = "guest"
    """The caller's level: tools that ask for a higher level are neither listed nor run. Any other word counts as `guest`."""
    allowed_modules: frozenset[str] | Literal["*"] | None = None
    """The modules that this caller reaches: their names, or `"*"` for all. `None`: all that the permission allows, and for a guest `default_guest_modules`."""
    agent: Annotated[str | None, Since(3)] = None
    """The agent that asks, whose profile takes from that: `production`, or `production/research` for one that asks for another. At most 256 characters."""

    @field_validator("permission", mode="before")
    @classmethod
    def _take_other_words_for_guest(cls, value: Any) -> Any:
        return "guest" if isinstance(value, str) and value not in _LEVELS else value

    @field_validator("allowed_modules", mode="before")
    @classmethod
    def _take_a_star_for_all(cls, value: Any) -> Any:
        return "*" if isinstance(value, _COLLECTIONS) and "*" in value else value


class Audit(Message):
    """The fleet's record of a call."""

    call_id: str
    """The call's id, also in logs, in the audit and as Celery's task id. Empty: the fleet has not seen such a call."""
    tool: str
    """The tool's name."""
    ts: float
    """When the call ended, in seconds since the epoch."""
    attempts: int = 0
    """How many attempts were started, at most two unless a profile allows more; 0: the call never reached its tool."""
    queued_ms: float | None = None
    """Milliseconds from its publishing to the last attempt's start; `None`: no worker had it."""
    duration_ms: float | None = None
    """Milliseconds of the last attempt."""
    worker: str | None = None
    """The worker that ran it last."""

    # Each result that is written is compared with its default: a tenth of the time of pydantic's own way.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Audit) and self.call_id == other.call_id and super().__eq__(other)

    def __hash__(self) -> int:
        return hash(self.call_id)


class ToolResult(Message):
    """How a call ended. Exactly one comes back for every call: a success with `result`, or an `error`."""

    tool_name: str
    """The tool that was asked for."""
    success: bool
    """Whether the tool did what it was asked for."""
    result: Any = None
    """The tool's answer, as JSON; `None` if it failed. A file's label stands in its place."""
    error: str | None = None
    """The reason of a failure, in words for the model."""
    error_code: ErrorCode | None = None
    """The reason of a failure, for programs; `None` for a success."""
    retryable: bool = False
    """Whether a repeat cannot double an effect."""
    retry_after_seconds: float | None = None
    """When a repeat makes sense; `None`: nothing is known of that."""
    effect_state: EffectState = "unknown"
    """Whether the effect has happened: `none`, `done`, or `unknown` if that cannot be determined."""
    hint: str | None = None
    """A sentence that tells the model what it can do next; for a success, what it may need in addition to the result, such as a `Link` to the next page."""
    files: Annotated[tuple[ResultFile, ...], Since(2)] = ()
    """The images and other files of the result, in the order of their labels."""
    artifacts: Annotated[tuple[ResultArtifact, ...], Since(6), Field(exclude_if=operator.not_)] = ()
    """Its large parts that can be had by a handle as well. A model sees a preview in their place."""
    ends_run: Annotated[bool, Since(3)] = False
    """Whether the agent's run is to end with this refusal, as an error: by the `exit_behavior` of its profile's limit."""
    audit: Audit = Audit.model_construct(
        call_id="", tool="", ts=0.0
    )  # as its model says; validated it would be built by an import
    """The record of what the fleet saw of the call. Every result that the fleet hands out has it."""

    @classmethod
    def ok(cls, tool_name: str, result: Any, *, files: tuple[ResultFile, ...] = ()) -> Self:
        """Return the result of a call that worked.

        Args:
            tool_name: The tool's name.
            result: What the tool returned, as JSON values.
            files: Files of the result.

        """
        return cls(tool_name=tool_name, success=True, result=result, effect_state="done", files=files)

    @classmethod
    def refused(cls, tool_name: str, code: ErrorCode, error: str, *, hint: str | None = None) -> Self:
        """Return the result of a call that was not executed, and that would be refused again.

        Args:
            tool_name: The tool's name.
            code: The reason as an error code.
            error: The reason as a sentence for the model.
            hint: What the model can do next.

        """
        return cls(tool_name=tool_name, success=False, error=error, error_code=code, effect_state="none", hint=hint)

    @classmethod
    def failed(
        cls,
        tool_name: str,
        code: ErrorCode,
        error: str,
        *,
        effect_state: EffectState,
        retryable: bool = False,
        hint: str | None = None,
    ) -> Self:
        """Return the result of a call that was sent to its module and failed.

        Args:
            tool_name: The tool's name.
            code: The reason as an error code.
            error: The reason as a sentence for the model.
            effect_state: Whether the effect has happened.
            retryable: Whether a repeat can help and does no harm.
            hint: What the model can do next.

        """
        return cls(
            tool_name=tool_name,
            success=False,
            error=error,
            error_code=code,
            effect_state=effect_state,
            retryable=retryable,
            hint=hint,
        )


class Turn(Message):
    """The turn that a call waits for: it runs while fewer than `limit` calls of its line have theirs.

    `line` is `<module>:<digest>`; the digest stands for the value of the tool's `concurrency_key`.
    """

    line: Annotated[str, Field(min_length=1, max_length=512)]
    limit: Annotated[int, Field(ge=1)] = 1


class PublishedCall(Message):
    """A call as it travels: judged, routed, and with everything that a worker needs to run it. Never changed on its way.

    `limit_seconds` bounds the module's request, `deadline_at` queue and run time. `lane`: where it counts for its caller's
    share. `sensitive` arguments (JSON pointers) are not kept, nor, if it `hides_results`, its module's words. `replay_of`: the
    dead letter that it repeats. `decisions`: its agent's, for the audit. `terms`: the limits it was let in under, if any.
    `job_id`: the job that it is a step of, and that is looked at once it has ended. `context`: what a tool that takes one is
    told by its agent. `newer_job`: it asks for a job with what the scheduler of earlier versions does not know. `tool_version`: it
    is run only while its tool has this version. `takes_input`: its module may ask; `inputs`: what it was answered last.
    `log_level`: which log messages its caller wants. `approval`: what people have to approve of it before it begins. `retry`: how
    often it is tried again, if its agent's profile says so. `run_id`, `thread_id`: where it counts, if its agent has a profile.
    `asked_by`: of a call that makes a job, as of that job; of one without a user that may leave artifacts, who asked for it.
    `turn`: what it waits for, if its tool has a `concurrency_key`. `artifacts`: the arguments that are artifacts.
    """

    call_id: str
    tool_name: str
    arguments: dict[str, Any]
    user_id: str | None
    caller: Caller
    effect: Effect | None
    limit_seconds: float = Field(gt=0)
    published_at: float
    deadline_at: float
    lane: Literal["fast", "slow"] = "fast"
    idempotency_key: str | None = None
    sensitive: tuple[str, ...] = ()
    replay_of: str | None = None
    decisions: dict[str, str] = Field(default_factory=dict)  # a `{}` here would be copied deeply for each call
    hides_results: bool = False
    terms: Terms | None = None
    job_id: str | None = None
    context: Annotated[ToolContext | None, Since(2)] = None
    newer_job: Annotated[bool, Since(2)] = False
    tool_version: Annotated[str | None, Since(2)] = None
    takes_input: Annotated[bool, Since(2)] = False
    inputs: Annotated[CallInputs | None, Since(2)] = None
    log_level: Annotated[LogLevel | None, Since(2)] = None
    approval: Annotated[ApprovalTerms | None, Since(3)] = None
    retry: Annotated[RetryTerms | None, Since(3)] = None
    run_id: Annotated[str | None, Since(3), Field(min_length=1, max_length=256)] = None
    thread_id: Annotated[str | None, Since(3), Field(min_length=1, max_length=256)] = None
    asked_by: Annotated[tuple[str, ...], Since(4)] = ()
    turn: Annotated[Turn | None, Since(6)] = None
    artifacts: Annotated[tuple[ArtifactArgument, ...], Since(6)] = ()


class SealedCall(PublishedCall):
    """A call whose arguments are still the JSON text that its agent has written and sealed.

    They are parsed when something looks at `arguments`. Until then a copy with other arguments is the only thing that
    can replace them, so `unparsed` is what the module is to get.
    """

    length: int
    """The characters of the text: as many as its bytes, for it is ASCII."""
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """The text's digest, in hexadecimal."""
    digest: Annotated[str, Field(pattern="^(sha256:[0-9a-f]{64})?$")] = ""
    """The digest of the arguments in the audit, if it is another one: a worker would have to parse them for it."""
    _text: str = PrivateAttr(default="")

    @classmethod
    def of(cls, head: Any, text: str) -> Self:
        """Return the call with the fields `head`, and with the arguments that its digest is of. Raises `ValidationError`."""
        call = cls.model_validate({**head, "arguments": {}})
        del call.__dict__["arguments"]
        object.__setattr__(call, "_text", text)
        return call

    @property
    def unparsed(self) -> str | None:
        """Return the arguments as they were sealed, unless something has looked at them, or has replaced them."""
        return None if "arguments" in self.__dict__ else self._text

    def __getattr__(self, name: str) -> Any:
        if name != "arguments":
            return super().__getattr__(name)  # type: ignore[misc] # pydantic hides it from type checkers
        found = self.__dict__["arguments"] = from_json(self._text, allow_inf_nan=False)
        return found

    def whole(self) -> PublishedCall:
        """Return the call with its arguments parsed, as others write it."""
        values = {name: getattr(self, name) for name in PublishedCall.model_fields}
        return PublishedCall.model_construct(**values)

    def model_dump(self, **options: Any) -> dict[str, Any]:
        """Dump the whole call."""
        return self.whole().model_dump(**options)

    def model_dump_json(self, **options: Any) -> str:
        """Dump the whole call."""
        return self.whole().model_dump_json(**options)


class ModuleStatus(Message):
    """The result of the last probe of a module."""

    module: str
    """The module's name."""
    ok: bool
    """Whether it answered with a good manifest."""
    tools: int = 0
    """How many tools it has."""
    closed_tools: tuple[str, ...] = ()
    """The tools that no caller can use, because of a fault in their definition."""
    error: str | None = None
    """Why the look failed."""
    age_seconds: float | None = None
    """The age of its last good manifest; `None` if it has none."""
    is_stale: bool = False
    """Whether that one is older than `manifest_stale_seconds`."""
    disabled: int = 0
    """Tools that an operator has switched off."""
    withheld: int = 0
    """Tools that no operator has approved, of a pinned module."""
    drifted: int = 0
    """Tools with other content than was registered under the same version."""
    load_errors: Annotated[tuple[ToolLoadError, ...], Since(2)] = ()
    """Files of a tool folder that are not served as they stand."""
    sources: Annotated[tuple[ToolSource, ...], Since(2)] = ()
    """The places of a tool folder's tools."""
    undeclared: Annotated[int, Since(4)] = 0
    """Tools that declare no effect: they are never repeated by the fleet itself once they may have been executed."""


def collecting(before: Decisions | None = None) -> Decisions:
    """Start collecting for one call, in its own task and its subtasks; `before` has the decisions made elsewhere."""
    decisions = dict(before) if before else {}
    _collected.set(decisions)
    return decisions


def facts_of(conversation: Conversation | None) -> Decisions:
    """Return the facts of a call before any decision: its conversation, if its agent names one."""
    if conversation is None or not conversation.conversation_id:
        return {}
    return {CONVERSATION: conversation.conversation_id[:_LONGEST_ID]}


def note_all(decided: Mapping[str, str]) -> None:
    """Note decisions about the running call, or how audit and logs name its user and its conversation."""
    if (decisions := _collected.get()) is not None:
        decisions.update(decided)


def shown_user(user_id: str | None) -> str | None:
    """Return the user of the running call as logs may show them."""
    return (_collected.get() or {}).get(USER, user_id)


def note(point: Point, decision: str) -> None:
    """Note what was decided at a point of the running call; a later word at the same point holds."""
    decisions = _collected.get()
    if decisions is not None:
        decisions[point] = decision


class DeadAttempt(Message):
    """One attempt of a call that died."""

    attempt: int
    """Its number, from 1."""
    outcome: str
    """How it ended, or `never closed`."""
    ms: float | None = None
    """How long it took, in milliseconds; `None`: that is not known."""


class DeadLetter(Message):
    """A call whose outcome is unknown, or that failed inside the fleet: kept for an operator."""

    call_id: str
    """The call's id, and the letter's."""
    tool_name: str
    """The tool that was asked for."""
    arguments: dict[str, Any]
    """The call's arguments, without the sensitive ones if `is_redacted`."""
    is_redacted: bool = False
    """Whether some arguments were not kept: a replay must be given them."""
    caller: Caller
    """The caller."""
    user_id: str | None = None
    """The user in whose name the call was made."""
    effect: Effect | None = None
    """The effect of a repeat, as the tool declared it then."""
    error_code: ErrorCode
    """The error."""
    reason: str
    """The reason, in words."""
    attempts: tuple[DeadAttempt, ...] = ()
    """The outcome of each attempt."""
    published_at: float
    """When the call was published, in seconds since the epoch."""
    died_at: float
    """When it became a letter, in seconds since the epoch."""
    idempotency_key: str | None = None
    """The key that it was made with."""
    replay_of: str | None = None
    """The letter that this call repeated."""
    context: Annotated[ToolContext | None, Since(2)] = None
    """The context that the agent passed to the tool in addition to the arguments."""
    tool_version: Annotated[str | None, Since(2)] = None
    """The version of the tool that it named; a replay names it as well."""
    asked_by: Annotated[tuple[str, ...], Since(4)] = ()
    """The API key or token that asked for it in the name of another user, and its own user: they do not approve a replay."""
