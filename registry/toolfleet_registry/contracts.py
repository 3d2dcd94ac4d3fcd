"""The messages that cross a process: frozen, and strict about fields of our own making.

What modules send is read leniently (they are deployed at other times than we are): see `ModuleReply` and
`ToolDefinition`. Times are seconds since the epoch, durations are in the unit that their name ends in.
"""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator

Effect = Literal["read", "idempotent", "once"]
"""What repeating a call would do: nothing, nothing more, or the thing once more. Absent: nobody said."""

CostClass = Literal["free", "cheap", "expensive"]
"""What a call costs, roughly: for budgets."""

EffectState = Literal["none", "done", "unknown"]
"""Whether the call's effect has happened: surely not, surely, or nobody can know."""

ErrorCode = Literal[
    "invalid_tool_name",
    "unknown_module",
    "unknown_tool",
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
    "timed_out",
    "expired",
    "cancelled",
    "outcome_unknown",
    "conflict",
    "internal",
]
"""Why a call failed: a closed set, so that an agent can branch on it."""


_COLLECTIONS = (list, set, frozenset, tuple)


class Message(BaseModel):
    """A message of our own: frozen, and an unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class ModuleMessage(BaseModel):
    """A message from a module: frozen; a field that we do not know is ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class ToolParameter(ModuleMessage):
    """One argument of a tool. `type` is a JSON Schema type name; `enum` lists the allowed values.

    A `sensitive` one is kept nowhere after its call has ended.
    """

    name: str = Field(min_length=1)
    type: str = Field(min_length=1)
    description: str = ""
    required: bool = True
    enum: list[Any] | None = None
    sensitive: bool = False


class ToolAnnotations(ModuleMessage):
    """What the Model Context Protocol lets a tool say about itself; names and meaning are that protocol's."""

    readOnlyHint: bool | None = None  # noqa: N815 - the protocol's name
    idempotentHint: bool | None = None  # noqa: N815 - as above
    destructiveHint: bool | None = None  # noqa: N815 - as above


class ToolDefinition(ModuleMessage):
    """A tool as its module describes it.

    `name` is `module.method`. `parameters` is the flat form of the arguments; `input_schema` (a JSON Schema
    2020-12 object) replaces it where a module needs more. `required_permission` is one of guest, user, admin,
    owner; any other value closes the tool. `timeout_seconds` overrides the module's limit for this tool. `effect`,
    `idempotent` and `annotations` say what a repeat would do: see `effects.effect_of`. `successor` is the tool to use
    instead of a deprecated one. `cooldown_seconds` and `daily_limit` (per UTC day) hold for each user; `cost` is free,
    cheap or expensive; `requires_gate` asks the agent's gate before each call.
    """

    name: str = Field(min_length=3, max_length=256)
    description: str = ""
    parameters: list[ToolParameter] = []
    required_permission: str = "guest"
    input_schema: dict[str, Any] | None = None
    output_schema: dict[str, Any] | None = None
    version: str | None = None
    tags: list[str] = []
    effect: Effect | None = None
    idempotent: bool | None = None
    annotations: ToolAnnotations | None = None
    timeout_seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    cost: str | None = None
    cooldown_seconds: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    daily_limit: int | None = Field(default=None, ge=0)
    requires_gate: bool = False
    deprecated: bool = False
    successor: str | None = None


class ModuleManifest(ModuleMessage):
    """What a module says it offers: the answer to `GET /manifest`."""

    module_name: str = Field(min_length=1)
    description: str = ""
    tools: list[ToolDefinition]


class ToolCall(Message):
    """One request to run a tool, as an agent or its model makes it.

    Takes any name and any arguments: `ToolFleet.call` judges them, so that a model's nonsense comes back as a
    `ToolResult` and not as an exception. `idempotency_key` names the intention: a second call of the same user with
    the same key brings the first one's result.
    """

    tool_name: str
    arguments: Any = Field(default_factory=dict)
    user_id: str | None = None
    idempotency_key: str | None = None


class Caller(Message):
    """Who asks. `allowed_modules`: a set of names, `"*"` for all, `None` for `default_guest_modules`."""

    user_id: str | None = None
    permission: str = "guest"
    allowed_modules: frozenset[str] | Literal["*"] | None = None

    @field_validator("allowed_modules", mode="before")
    @classmethod
    def _take_a_star_for_all(cls, value: Any) -> Any:
        return "*" if isinstance(value, _COLLECTIONS) and "*" in value else value


class Conversation(Message):
    """Where a call comes from; given to the modules that must find the way back, over what the model wrote."""

    conversation_id: str | None = None
    platform: str | None = None
    platform_channel_id: str | None = None
    platform_thread_id: str | None = None


class Audit(Message):
    """What the fleet saw of a call. `ts`: when it ended; `queued_ms`: from publishing to the last attempt's start."""

    call_id: str
    tool: str
    ts: float
    attempts: int = 0
    queued_ms: float | None = None
    duration_ms: float | None = None
    worker: str | None = None


class ToolResult(Message):
    """How a call ended. Exactly one comes back for every call, whatever happened.

    `success` with `result`, or not, with `error` (text for the model), `error_code`, and what may be done next:
    `retryable` says that a repeat cannot double an effect, `retry_after_seconds` when it makes sense,
    `effect_state` whether the effect has happened, `hint` what the model may do.
    """

    tool_name: str
    success: bool
    result: Any = None
    error: str | None = None
    error_code: ErrorCode | None = None
    retryable: bool = False
    retry_after_seconds: float | None = None
    effect_state: EffectState = "unknown"
    hint: str | None = None
    audit: Audit | None = None

    @classmethod
    def ok(cls, tool_name: str, result: Any) -> Self:
        """The call worked."""
        return cls(tool_name=tool_name, success=True, result=result, effect_state="done")

    @classmethod
    def refused(cls, tool_name: str, code: ErrorCode, error: str, *, hint: str | None = None) -> Self:
        """The call was not executed and would not be, however often it is repeated as it is."""
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
        """The call was on its way and did not come back well."""
        return cls(
            tool_name=tool_name,
            success=False,
            error=error,
            error_code=code,
            effect_state=effect_state,
            retryable=retryable,
            hint=hint,
        )


class Terms(Message):
    """What is asked of whoever calls a tool, as in its `ToolDefinition`; what is `None` is not limited."""

    cooldown_seconds: float | None = None
    daily_limit: int | None = None
    cost: str | None = None
    requires_gate: bool = False


class PublishedCall(Message):
    """A call as it travels: judged, routed, and with everything that a worker needs to run it. Never changed on its way.

    `limit_seconds` bounds the module's request, `deadline_at` queue and run time. `lane`: where it counts for its caller's
    share. `sensitive` arguments (JSON pointers) are not kept, nor, if it `hides_results`, its module's words. `replay_of`: the
    dead letter that it repeats. `decisions`: its agent's, for the audit. `terms`: the limits it was let in under, if any.
    `job_id`: the job that it is a step of, and that is looked at once it has ended.
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


class ModuleStatus(Message):
    """What the last look at a module found. `age_seconds`: of its last good manifest, `None` if it has none.

    `is_stale`: that one is older than `manifest_stale_seconds`. `disabled`, `withheld` and `drifted` count its tools that
    an operator has switched off, has not approved, and that have other content than registered under the same version.
    `closed_tools` are wrong in themselves.
    """

    module: str
    ok: bool
    tools: int = 0
    closed_tools: tuple[str, ...] = ()
    error: str | None = None
    age_seconds: float | None = None
    is_stale: bool = False
    disabled: int = 0
    withheld: int = 0
    drifted: int = 0
