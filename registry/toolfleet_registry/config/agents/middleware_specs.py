"""Describes the middleware that an agent's profile may name: what each is told, and the bounds of that."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from toolfleet_registry.config.agents.tool_selectors import Selectors
from toolfleet_registry.config.setting_values import Seconds
from toolfleet_registry.contracts import CostClass, ErrorCode
from toolfleet_registry.contracts.message import DEFERS_BUILD
from toolfleet_registry.contracts.terms import LONGEST_PAUSE_SECONDS, MOST_CALLS, MOST_RETRIES, ExitBehavior, Pause
from toolfleet_registry.contracts.tool_definition import Approvers

LONGEST_APPROVAL_SECONDS = 30 * 86_400
"""For so long a call may wait for people."""

EVERY_TOOL: Selectors = ("*",)

_PATH = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$"

PersonalKind = Literal["email", "phone", "credit_card", "iban", "ip", "mac_address", "url"]
"""A kind of personal data that is known by name."""

Strategy = Literal["redact", "mask", "hash", "block"]
"""What becomes of it: a label in its place, some of its characters, the same text for the same value, or a refusal."""

Place = Literal["arguments", "result", "progress", "error"]
"""Where it is looked for."""


class MiddlewareBase(BaseModel):
    """The fields that every entry may have."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, defer_build=DEFERS_BUILD)

    tools: Selectors = EVERY_TOOL
    """Which of the agent's tools it is for."""


class ToolRetrySpec(MiddlewareBase):
    """How often a call is tried again, and after which pauses; within what its effect allows and its deadline."""

    name: Literal["tool_retry"]
    """Which one it is."""
    max_retries: int = Field(default=1, ge=0, le=MOST_RETRIES)
    """Attempts after the first. More than one only where a repeat does no harm: `read`, `idempotent`, or nothing has happened."""
    backoff_factor: float = Field(default=2.0, ge=1, le=10, allow_inf_nan=False)
    """What each pause is longer than the one before."""
    initial_delay_seconds: Pause = 0.1
    """The first pause. A module's `Retry-After` counts more."""
    max_delay_seconds: Pause = LONGEST_PAUSE_SECONDS
    """The longest pause."""
    jitter: bool = True
    """Whether up to as much again is added to a pause, by chance: calls that failed together are not repeated together."""
    undeclared: bool = False
    """Whether tools that declare no effect are tried again, up to `max_retries` times, when they have answered that they failed. They may have
    done the thing, and then do it again. Without it they are tried once."""
    retry_on: frozenset[ErrorCode] | None = None
    """Only after failures with one of these codes; `None`: after all that may be repeated."""


class ToolCallLimitSpec(MiddlewareBase):
    """How many calls a run and a thread may make of the selected tools, all together."""

    name: Literal["tool_call_limit"]
    """Which one it is."""
    run_limit: int | None = Field(default=None, ge=0, le=MOST_CALLS)
    """Calls of one run, which is one turn of an agent: as long as it names the same `run_id`."""
    thread_limit: int | None = Field(default=None, ge=0, le=MOST_CALLS)
    """Calls of one thread, which is one conversation: as long as it names the same `conversation_id`."""
    exit_behavior: ExitBehavior = "continue"
    """What the refusal tells the model to do."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.run_limit is None and self.thread_limit is None:
            raise ValueError("tool_call_limit needs a run_limit, a thread_limit or both")
        return self


class LimitsSpec(MiddlewareBase):
    """Limits of each selected tool, beside the tool's own; the stricter one holds."""

    name: Literal["limits"]
    """Which one it is."""
    daily_limit: Annotated[int, Field(gt=0, le=MOST_CALLS)] | None = None
    """Calls a UTC day."""
    cooldown_seconds: Seconds | None = None
    """Seconds between two calls."""
    cost: CostClass | None = None
    """The class whose budget they use (`cost_budgets`), if the tool's own is cheaper."""


class GateSpec(MiddlewareBase):
    """Calls for which the agent's own gate is asked, beside tools that require it themselves."""

    name: Literal["gate"]
    """Which one it is."""
    fails: Literal["closed", "open"] = "closed"
    """What becomes of a call whose gate fails, is late, or is not there."""


class PiiSpec(MiddlewareBase):
    """Personal data that does not pass: in arguments before they are published, in what tools answer before anybody stores it."""

    name: Literal["pii"]
    """Which one it is."""
    pii_types: Annotated[tuple[PersonalKind, ...], Field(max_length=7)] = ("email", "phone", "credit_card", "iban")
    """What is looked for."""
    patterns: Annotated[dict[str, str], Field(max_length=50)] = {}
    """Name -> a regular expression of RE2: what is looked for beside."""
    strategy: Strategy = "redact"
    """What becomes of it."""
    apply_to: frozenset[Place] = frozenset({"arguments", "result", "progress", "error"})
    """Where."""
    regions: Annotated[tuple[str, ...], Field(max_length=20)] = ()
    """Countries, as `DE`, whose phone numbers are known without the country's code."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not (self.pii_types or self.patterns):
            raise ValueError("pii needs pii_types, patterns or both")
        return self


class HumanInTheLoopSpec(MiddlewareBase):
    """Calls that a person has to approve before they begin."""

    name: Literal["human_in_the_loop"]
    """Which one it is."""
    approve_tools: Selectors
    """Which of the selected tools need it."""
    approvers: Approvers = Approvers.model_construct(permission="admin")
    """Who may approve."""
    quorum: Annotated[int, Field(ge=1, le=20)] = 1
    """How many of them have to."""
    expires_seconds: Annotated[float, Field(ge=1, le=LONGEST_APPROVAL_SECONDS, allow_inf_nan=False)] = 3600.0
    """After how long the call is denied if they have not."""
    self_approval: bool = False
    """Whether whoever asks may be one of them."""


class OwnMiddlewareSpec(MiddlewareBase):
    """A class of the fleet's operators, by its import path; all other parameters are for it."""

    model_config = ConfigDict(frozen=True, extra="allow", hide_input_in_errors=True, defer_build=DEFERS_BUILD)

    name: str = Field(pattern=_PATH)
    """`package.module:Class`."""
    runs_in: Literal["agent", "worker"] = "worker"
    """Where it stands: in the process that publishes the call, or around its attempt in the worker."""

    @property
    def parameters(self) -> dict[str, Any]:
        """The keyword arguments that the class is made with."""
        return dict(self.__pydantic_extra__ or {})


_KINDS: dict[str, type[MiddlewareBase]] = {
    "tool_retry": ToolRetrySpec,
    "tool_call_limit": ToolCallLimitSpec,
    "limits": LimitsSpec,
    "gate": GateSpec,
    "pii": PiiSpec,
    "human_in_the_loop": HumanInTheLoopSpec,
}
NAMES = tuple(_KINDS)
"""What the fleet has."""


def _kind_of(value: Any) -> str | None:
    name = value.get("name") if isinstance(value, dict) else getattr(value, "name", None)
    if not isinstance(name, str):
        return None
    return name if name in _KINDS else "own" if ":" in name else None


MiddlewareSpec = Annotated[
    Annotated[ToolRetrySpec, Tag("tool_retry")]
    | Annotated[ToolCallLimitSpec, Tag("tool_call_limit")]
    | Annotated[LimitsSpec, Tag("limits")]
    | Annotated[GateSpec, Tag("gate")]
    | Annotated[PiiSpec, Tag("pii")]
    | Annotated[HumanInTheLoopSpec, Tag("human_in_the_loop")]
    | Annotated[OwnMiddlewareSpec, Tag("own")],
    Discriminator(
        _kind_of,
        custom_error_type="middleware",
        custom_error_message=f"a middleware's name is one of {', '.join(NAMES)}, or package.module:Class",
    ),
]
"""One entry of a profile's `middleware`."""
