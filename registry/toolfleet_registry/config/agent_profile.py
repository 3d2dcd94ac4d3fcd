"""Describes an agent's profile: which tools it may use, at most with which permission, and what stands around its calls.

`git.status` is a tool, `git.*` all of a module, `tag:reading` each that has this tag; `!` before any of them takes out what it
selects. A tool is selected if one selects it and none takes it out; with nothing but such that take out, all others are.
"""

import hashlib
import json
import re
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, field_validator, model_validator
from pydantic_settings import BaseSettings

from toolfleet_registry.config.setting_values import MappedModels, Names
from toolfleet_registry.contracts import ErrorCode, Level, ToolDefinition
from toolfleet_registry.contracts.calls import LONGEST_PAUSE_SECONDS, MOST_RETRIES, Pause
from toolfleet_registry.contracts.limits import MOST_CALLS, ExitBehavior, ProfileLimits
from toolfleet_registry.contracts.message import DEFERS_BUILD
from toolfleet_registry.contracts.names import ToolName, is_module_name
from toolfleet_registry.contracts.tool_definition import Approvers
from toolfleet_registry.errors import InvalidToolName

MOST_SELECTORS = 500
"""In one list."""

_TAG, _NOT = "tag:", "!"
_FORM = r"!?(tag:[^\s,!][^\s,]{0,127}|[A-Za-z0-9_.*?-]{1,256})"

LONGEST_APPROVAL_SECONDS = 30 * 86_400
"""For so long a call may wait for people."""

_PATH = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$"

PersonalKind = Literal["email", "phone", "credit_card", "iban", "ip", "mac_address", "url"]
"""A kind of personal data that is known by name."""

Strategy = Literal["redact", "mask", "hash", "block"]
"""What replaces it: a label, some of its characters, the same text for the same value, or a refusal."""

Place = Literal["arguments", "result", "progress", "error"]
"""Where it is looked for."""

AGENT_NAME = r"[A-Za-z_][A-Za-z0-9_-]{0,63}"
"""What a profile can be named."""

MOST_PROFILES = 1_000
"""Of one fleet: every process has all of them in memory."""

_MOST_MIDDLEWARE = 50


def _checked(selector: str) -> str:
    if not re.fullmatch(_FORM, selector):
        raise ValueError(
            f"{selector[:80]!r} selects no tools: write a name (git.status), a pattern (git.*) or tag:NAME, each perhaps after '!'"
        )
    return selector


Selector = Annotated[str, AfterValidator(_checked), Field(json_schema_extra={"pattern": f"^{_FORM}$"})]
"""One of them."""

Selectors = Annotated[tuple[Selector, ...], Field(max_length=MOST_SELECTORS)]
"""A list of them, in no order."""


def never_selects(selector: str) -> str | None:
    """Return why a selector can never select a tool, or `None` if it can."""
    name = selector.removeprefix(_NOT)
    if name.startswith(_TAG) or not {"*", "?"}.isdisjoint(name):
        return None
    try:
        ToolName.parse(name)
    except InvalidToolName:
        return f"{selector!r} can select no tool: a tool's name is MODULE.TOOL, as in git.status"
    return None


def selects(selectors: Sequence[str], names: Collection[str], tags: Collection[str]) -> bool:
    """Return whether these select the tool, by any of its names; an empty list selects none."""
    is_selected = bool(selectors) and all(selector.startswith(_NOT) for selector in selectors)
    for selector in selectors:
        if selector.startswith(_NOT):
            if _matches(selector[1:], names, tags):
                return False
        elif not is_selected:
            is_selected = _matches(selector, names, tags)
    return is_selected


def _matches(selector: str, names: Collection[str], tags: Collection[str]) -> bool:
    if selector.startswith(_TAG):
        return selector.removeprefix(_TAG) in tags
    return any(fnmatchcase(name, selector) for name in names)


EVERY_TOOL: Selectors = ("*",)


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
    """The factor by which each pause is longer than the one before."""
    initial_delay_seconds: Pause = 0.1
    """The first pause. A module's `Retry-After` counts more."""
    max_delay_seconds: Pause = LONGEST_PAUSE_SECONDS
    """The longest pause."""
    jitter: bool = True
    """Whether up to as much again is added to a pause at random, so that calls that failed together are not repeated together."""
    undeclared: bool = False
    """Whether tools that declare no effect are tried again, up to `max_retries` times, when they have answered that they failed. They may have
    done the thing, and then do it again. Without it they are tried once."""
    retry_on: frozenset[ErrorCode] | None = None
    """The error codes after which a call is tried again; without it, after all failures that may be repeated."""


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


class LimitsSpec(ProfileLimits, MiddlewareBase):
    """Limits of each selected tool, in addition to the tool's own; the stricter one holds."""


class GateSpec(MiddlewareBase):
    """Calls for which the agent's own gate is asked, in addition to those of tools that require it themselves."""

    name: Literal["gate"]
    """Which one it is."""
    fails: Literal["closed", "open"] = "closed"
    """What happens to a call whose gate fails, is late, or is missing."""


class PiiSpec(MiddlewareBase):
    """Personal data that is hidden or refused: in arguments before they are published, and in results before they are stored."""

    name: Literal["pii"]
    """Which one it is."""
    pii_types: Annotated[tuple[PersonalKind, ...], Field(max_length=7)] = ("email", "phone", "credit_card", "iban")
    """The kinds that are looked for."""
    patterns: Annotated[dict[str, str], Field(max_length=50)] = {}
    """More kinds by name: regular expressions of RE2 without `*` and `+`."""
    strategy: Strategy = "redact"
    """What replaces a finding."""
    apply_to: frozenset[Place] = frozenset({"arguments", "result", "progress", "error"})
    """Where to look: `result` includes a tool's questions, `progress` its log messages."""
    regions: Annotated[tuple[str, ...], Field(max_length=20)] = ()
    """Countries, such as `DE`, whose phone numbers are found without a country code; without any, nine large countries."""

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
    """The tools whose calls need an approval: names, patterns and tags."""
    approvers: Approvers = Approvers.model_construct(permission="admin")
    """Who may approve: users with this `permission` or a higher one, these `users`, holders of these API `keys`."""
    quorum: Annotated[int, Field(ge=1, le=20)] = 1
    """How many of them have to approve."""
    expires_seconds: Annotated[float, Field(ge=1, le=LONGEST_APPROVAL_SECONDS, allow_inf_nan=False)] = 3600.0
    """Seconds after which the call is denied; 30 days at most."""
    self_approval: bool = False
    """Whether the caller may approve: the call's user, or the key that asks in that user's name."""


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


def check_agent_name(name: str) -> None:
    """Raise `ValueError` for what no profile can be named."""
    if not re.fullmatch(AGENT_NAME, name):
        raise ValueError(f"an agent cannot be named {name[:80]!r}: a letter, then letters, digits, '_' and '-'")


class AgentProfile(BaseModel):
    """One `[agents.NAME]`. It takes from what its caller may do, and adds nothing to that."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, defer_build=DEFERS_BUILD)

    description: Annotated[str, Field(max_length=2_000)] = ""
    """What the agent is for."""
    mode: Literal["primary", "subagent", "all"] = "primary"
    """Whether programs name it (`primary`), another agent does (`subagent`, as in `production/research`), or both (`all`)."""
    tools: Selectors | None = None
    """The tools that it may use: names, patterns and tags. Without it, all that its caller may use."""
    allowed_modules: frozenset[str] | Literal["*"] = "*"
    """The modules that it reaches, of those that its caller reaches."""
    permission_at_most: Level = "owner"
    """The highest permission that a caller has as this agent."""
    middleware: Annotated[tuple[MiddlewareSpec, ...], Field(max_length=_MOST_MIDDLEWARE)] = ()
    """What happens around its calls, the outermost first."""

    @field_validator("allowed_modules")
    @classmethod
    def _check_modules(cls, modules: frozenset[str] | Literal["*"]) -> frozenset[str] | Literal["*"]:
        if modules == "*" or "*" in modules:
            return "*"
        if wrong := sorted(name for name in modules if not is_module_name(name)):
            raise ValueError(f"{wrong[0][:80]!r} is no name of a module")
        return modules

    @property
    def selectors(self) -> dict[str, None]:
        """Return the selectors in it, each once: those of `tools` and of its middleware."""
        lists = [self.tools or (), *(spec.tools for spec in self.middleware)]
        lists += [spec.approve_tools for spec in self.middleware if isinstance(spec, HumanInTheLoopSpec)]
        return dict.fromkeys(selector for each in lists for selector in each)

    def check_selectors(self) -> None:
        """Raise `ValueError` if a selector can select no tool. Profiles that are stored are read as they are."""
        if (fault := next(filter(None, map(never_selects, self.selectors)), None)) is not None:
            raise ValueError(fault)

    @property
    def digest(self) -> str:
        """SHA-256 of what it says, the same for equal profiles in every process."""
        document = self.model_dump(exclude={"description"})
        text = json.dumps(document, sort_keys=True, separators=(",", ":"), default=sorted)
        return hashlib.sha256(text.encode()).hexdigest()

    def takes(self, tool: ToolDefinition) -> bool:
        """Return whether the profile's `tools` allow the tool."""
        return self.tools is None or selects(self.tools, tool.names, tool.tags)


class AgentSettings(BaseSettings, defer_build=True):
    """Settings of agents' profiles in this process; profiles in the registry apply as well."""

    agents: MappedModels[str, AgentProfile] = {}
    """Name of an agent -> its profile: `[agents.production]` with `tools`, `allowed_modules`, `permission_at_most`
    and `middleware`. Both agents and workers need the profiles: from the same file, or by `toolfleet agents put`."""
    default_agent: str | None = None
    """The profile of callers that name no agent, as older programs do. None: no profile applies to them."""

    trusted_middleware_namespaces: Names[str] = frozenset()
    """Packages from which profiles can name classes as middleware, such as `acme.middleware`: comma-separated or
    JSON. No other class is imported."""

    @field_validator("agents")
    @classmethod
    def _check_agents(cls, agents: dict[str, AgentProfile]) -> dict[str, AgentProfile]:
        for name, profile in agents.items():
            check_agent_name(name)
            try:
                profile.check_selectors()
            except ValueError as exc:
                raise ValueError(f"{name}: {exc}") from exc
        if len(agents) > MOST_PROFILES:
            raise ValueError(f"there can be at most {MOST_PROFILES} agents")
        return agents

    @field_validator("default_agent")
    @classmethod
    def _check_default(cls, name: str | None) -> str | None:
        if name is not None and not re.fullmatch(rf"{AGENT_NAME}(/{AGENT_NAME})*", name):
            raise ValueError("must be the name of an agent")
        return name
