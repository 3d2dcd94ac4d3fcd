"""Describes a module's tools as its manifest has them: read leniently, for modules are deployed at other times than agents."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, Self, TypeVar, get_args

from pydantic import ConfigDict, Field, field_serializer, model_validator

from toolfleet_registry.contracts.message import ModuleMessage
from toolfleet_registry.contracts.names import name_fault

T = TypeVar("T")

Effect = Literal["read", "idempotent", "once"]
"""The effect of repeating a call: none, no further one, or the same effect again. Absent: not declared."""

CostClass = Literal["free", "cheap", "expensive"]
"""What a call costs, roughly: for budgets."""

InEffect = Literal["previous", "current", "none"]
"""Which version of the file serves calls now: one before, this one all the same, or none."""

_CAREFUL: tuple[Effect, ...] = ("read", "idempotent", "once")

_LEVELS = ("guest", "user", "admin", "owner")

BROKEN = "broken: "
"""Begins the `required_permission` of a tool that is closed because of its definition; the fault follows."""

_STEP = r'(?:[A-Za-z_][A-Za-z0-9_]*|"[^"\\]+")'
_PATH = rf"(?a){_STEP}(?:\.{_STEP})*"
_LONGEST_PATH = 256  # characters
# Words of a schema whose arguments may have other names than its `properties`.
_OPEN = ("$ref", "additionalProperties", "allOf", "anyOf", "oneOf", "patternProperties")

NO_TOOLS = "NoTools"
"""The `error_type` of a note: nothing is wrong with the file, and it has no tools."""

FindingKind = Literal["drifted", "withheld"]
"""What was found about a tool that is offered: other content under the same version, or a definition that no operator has approved."""

EventKind = Literal["registered", "changed", "enabled", "disabled", "removed", "rolled_back"] | FindingKind
"""What happened to a tool: it is new, it has another specification, an operator has put an earlier one in force, …"""

EVENT_KINDS: Final[tuple[str, ...]] = tuple(kind for part in get_args(EventKind) for kind in get_args(part))
"""All of them."""


class ToolParameter(ModuleMessage):
    """One argument of a tool, in the flat form."""

    name: str = Field(min_length=1)
    """What a call's arguments name it."""
    type: str = Field(min_length=1)
    """A JSON Schema type name; `any` takes every value."""
    description: str = ""
    """What a model is told of it."""
    required: bool = True
    """Whether a call must have it."""
    enum: list[Any] | None = None
    """The allowed values; `None`: any of the type."""
    sensitive: bool = False
    """Whether its value is kept nowhere after the call has ended."""


class ToolAnnotations(ModuleMessage):
    """A tool's hints about itself, as the Model Context Protocol has them; names and meaning are that protocol's."""

    readOnlyHint: bool | None = None  # noqa: N815 - the protocol's name
    """Whether a call changes nothing."""
    idempotentHint: bool | None = None  # noqa: N815 - as above
    """Whether a repeat changes nothing more."""
    destructiveHint: bool | None = None  # noqa: N815 - as above
    """Whether a call may destroy something."""
    openWorldHint: bool | None = None  # noqa: N815 - as above
    """Whether it deals with what lies outside of it, such as the web."""
    title: str | None = None
    """The name that is shown to people."""


class Approvers(ModuleMessage):
    """The people who may approve, each named by one of these fields. An unknown word closes the tool that uses it."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    permission: Literal["guest", "user", "admin", "owner"] | None = None
    """Users with this permission, or a higher one."""
    users: frozenset[str] = frozenset()
    """Users by their ids."""
    keys: frozenset[str] = frozenset()
    """API keys by their ids."""

    @field_serializer("users", "keys", when_used="json")
    def _in_order(self, names: frozenset[str]) -> list[str]:
        return sorted(names)  # so that a digest is the same in every process


Approval = bool | Approvers | tuple[Approvers, ...]
"""Whether people have to approve a call before it begins: `True` for admins, or who may; of several each has to be satisfied."""


def approvers_of(approval: Approval | None) -> tuple[Approvers, ...]:
    """Return the approvers, for each approval that is required; empty if none is."""
    if not approval:  # nearly every tool
        return ()
    if isinstance(approval, tuple):
        return approval
    return (approval if isinstance(approval, Approvers) else _ADMINS,)


def joined(one: Approval | None, other: Approval | None) -> tuple[Approvers, ...]:
    """Return what asks for the approvals of both."""
    return tuple(dict.fromkeys((*approvers_of(one), *approvers_of(other))))


class ToolDefinition(ModuleMessage):
    """A tool as its module describes it. `effect`, `idempotent` and `annotations` say what a repeat would do: see `specs.effect_of`."""

    name: str = Field(min_length=3, max_length=256)
    """`module.method`."""
    former_names: list[str] = Field(default=[], max_length=8)
    """Names of the tool that are not listed any more; calls, profiles, pins and settings may use them as its name."""
    description: str = ""
    """What a model is told of the tool."""
    title: str | None = None
    """The name that is shown to people; a model gets it if there is no description."""
    icons: list[dict[str, Any]] | None = None
    """Its icons, as the Model Context Protocol has them."""
    meta: dict[str, Any] | None = None
    """Its `_meta` for clients of the Model Context Protocol."""
    is_foreign: bool | None = None
    """Whether a server of that protocol describes it: clients are told of a repeat only what that server says."""
    parameters: list[ToolParameter] = Field(default=[])
    """The arguments in their flat form."""
    required_permission: str = "guest"
    """The lowest permission that can use it: guest, user, admin or owner. Any other value closes the tool."""
    input_schema: dict[str, Any] | None = None
    """The arguments as a JSON Schema 2020-12 object, in the place of `parameters`."""
    output_schema: dict[str, Any] | None = None
    """The JSON Schema that results are checked against; `None`: they are not checked."""
    version: str | None = None
    """Under one version the content stays as it was registered first."""
    tags: list[str] = Field(default=[])
    """Words by which the tool can be found, in addition to those of its texts."""
    effect: Effect | None = None
    """What repeating a call would do; `None`: the tool does not say."""
    idempotent: bool | None = None
    """Another way to say that a repeat does nothing more, or that it does."""
    annotations: ToolAnnotations | None = None
    """The Model Context Protocol's way to say it."""
    timeout_seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """A call's limit, in the place of the module's."""
    cost: str | None = None
    """`free`, `cheap` or `expensive`, for budgets."""
    cooldown_seconds: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """The pause between two calls of one user."""
    daily_limit: int | None = Field(default=None, ge=0)
    """How many calls one user has in a UTC day."""
    concurrency_key: str | None = None
    """The path of an argument, such as `repository` or `pull.number`: calls with the same value wait for their turn."""
    concurrency_limit: int = Field(default=1, ge=1)
    """How many of them run at once."""
    concurrency_per_user: bool = False
    """Whether only calls of one user wait for each other."""
    requires_gate: bool = False
    """Whether the agent's gate is asked before each call."""
    approval: Approval | None = None
    """Whether people have to approve each call before it begins: `true` for admins, or who may. No worker runs one that was not approved."""
    takes_context: bool = False
    """Whether it gets the agent's context in addition to its arguments, if its module can."""
    listed: bool = True
    """Whether callers are shown it; one who knows its name may call it all the same."""
    deprecated: bool = False
    """Whether models are told not to use it any more."""
    successor: str | None = None
    """The tool to use instead of a deprecated one."""
    code_digest: str | None = None
    """Names the code behind the tool, where its module says that: in a pinned module, other code waits for an approval. Workers say it of local tools, hosts of files."""

    @property
    def names(self) -> tuple[str, ...]:
        """The tool's name, then its former names."""
        return self.name, *self.former_names


def argument_path(text: str) -> tuple[str, ...] | None:
    """Return the names on the path to an argument, or `None` for any other text.

    A path is `repository`, `pull.number`, or with other signs in quotes `"repo-id".owner`: the fields of JMESPath, as in
    the conditions of jobs.
    """
    if len(text) > _LONGEST_PATH or not re.fullmatch(_PATH, text):
        return None
    return tuple(step.strip('"') for step in re.findall(_STEP, text))


def concurrency_fault(tool: ToolDefinition) -> str | None:
    """Return what is wrong with the tool's `concurrency_key`, which closes the tool: its calls would not wait for each other."""
    key = tool.concurrency_key
    if key is None:
        is_said = tool.concurrency_limit != 1 or tool.concurrency_per_user
        return "its concurrency_limit and concurrency_per_user need a concurrency_key" if is_said else None
    if (path := argument_path(key)) is None:
        return f"its concurrency_key {key[:_LONGEST_PATH]!r} is no path of an argument, such as 'repository' or 'pull.number'"
    schema = tool.input_schema or {}
    named = schema.get("properties")
    names = {*(parameter.name for parameter in tool.parameters), *(named if isinstance(named, dict) else ())}
    if path[0] in names or any(schema.get(word) not in (None, False) for word in _OPEN):
        return None
    return f"its concurrency_key names {path[0]!r}, which is no argument of it"


def by_any_name(tools: Mapping[str, T], definition_of: Callable[[T], ToolDefinition]) -> Mapping[str, T]:
    """Return the tools by their former names, too. Each lookup of a name that a caller or an operator has written uses this.

    A name that a tool has now counts more than one that another tool had. Calls are published, counted and approved under the
    name of the definition that is found.
    """
    former = {name: tool for tool in tools.values() for name in definition_of(tool).former_names}
    return {**former, **tools} if former else tools


def tool_named(name: str, tools: Iterable[ToolDefinition]) -> ToolDefinition | None:
    """Return the tool that has this name, or else the one that had it."""
    return by_any_name({tool.name: tool for tool in tools}, lambda tool: tool).get(name)


def line_names(tool: ToolDefinition) -> frozenset[str]:
    """Return the names under which lines of settings may mean the tool: those that it has or had, with and without its module's."""
    return frozenset(name for each in tool.names for name in (each, each.partition(".")[2]))


class ConcurrencyLine(ModuleMessage):
    """The line of a setting that has calls of a tool wait for each other; a `ToolDefinition` has the same in its `concurrency_` fields."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    key: str
    """The path of an argument."""
    limit: int = Field(default=1, ge=1)
    """How many calls with the same value run at once."""
    per_user: bool = False
    """Whether only calls of one user wait for each other."""


class ToolLines(ModuleMessage):
    """The lines of a `[module.NAME]` or a `[hosts.NAME]` about its tools. They add to what the tools declare themselves."""

    effects: dict[str, Effect] = Field(default={})
    """Tool -> what repeating a call of it would do (`{count = "read"}`), for tools that do not say. Where a tool says it too, the careful word counts."""
    permission: Literal["guest", "user", "admin", "owner"] | None = None
    """Who may use its tools at least. A host's line says who may, also where a tool asks for more."""
    approval: bool | tuple[str, ...] = False
    """The tools whose calls people must approve, in addition to those that declare it themselves: these, or all of them (`true`)."""
    approvers: Approvers | None = None
    """Who may approve them, in the place of admins."""
    concurrency: dict[str, ConcurrencyLine] = Field(default={})
    """Tool -> which of its calls wait for each other (`{push = {key = "repository"}}`), for tools that do not say."""

    @model_validator(mode="after")
    def _check_lines(self) -> Self:
        if self.approvers is not None and not self.approval:
            raise ValueError("approvers are for tools that `approval` names")
        if wrong := [name for name in sorted(self._names) if name_fault(name) is not None]:
            raise ValueError(f"{wrong[0][:80]!a} names no tool: each is named whole, and `approval = true` means all")
        return self

    @property
    def _names(self) -> set[str]:
        return {*self.effects, *self.concurrency, *(self.approval if isinstance(self.approval, tuple) else ())}

    def unmet(self, tools: Iterable[ToolDefinition]) -> list[str]:
        """Return the names in these lines that mean none of the tools."""
        return sorted(self._names.difference(*map(line_names, tools)))

    def on(self, tool: ToolDefinition, declared: Effect | None, *, lowers: bool = False) -> ToolDefinition:
        """Return the tool with these settings applied; `declared` is the effect that the tool itself declares.

        Fails closed: of two effects the more careful one counts, and a tool that is closed stays closed. A permission
        is only raised, unless the lines are a host's own, which `lowers` says. An approval is only added. A wrong
        `concurrency` closes the tool.
        """
        changes, names = dict[str, object](), line_names(tool)
        said: list[Effect] = [effect for name, effect in self.effects.items() if name in names]
        if said:
            changes["effect"] = max(said if declared is None else (*said, declared), key=_CAREFUL.index)
        asked, least = tool.required_permission, self.permission
        if least is not None and asked in _LEVELS and (lowers or _LEVELS.index(least) > _LEVELS.index(asked)):
            changes["required_permission"] = least
        if self.approval is True or (self.approval and not names.isdisjoint(self.approval)):
            changes["approval"] = joined(tool.approval, self.approvers or True)
        line = next((line for name, line in self.concurrency.items() if name in names), None)
        if line is not None and tool.concurrency_key is None:
            changes |= {f"concurrency_{field}": value for field, value in line}
            if fault := concurrency_fault(tool.model_copy(update=changes)):
                changes["required_permission"] = BROKEN + fault
        return tool.model_copy(update=changes) if changes else tool


class ToolSource(ModuleMessage):
    """The place of a folder's tool."""

    tool_name: str = Field(min_length=1, max_length=256)
    """`module.method`."""
    file: str
    """The file's path on its host's machine."""
    python_module: str
    """What the file is imported as there."""
    digest: str
    """The SHA-256 of the file's content, in hex."""


class ToolLoadError(ModuleMessage):
    """Why a file of a tool folder, or an operation of an OpenAPI document, is not served as it stands."""

    file: str = Field(min_length=1, max_length=1024)
    """The file's path on its host's machine; of an operation, the document and `GET /owls`."""
    error_type: str = Field(min_length=1, max_length=100)
    """`SyntaxError`, `ImportError`, `SecurityError`, `DuplicateTool`, `InvalidTool`, `LoadTimeout`, `ProcessEnded`, `FileRefused`, `NoTools` (a note), or the class that was raised; of a document, `DocumentWrong`, `CredentialMissing`, `InvalidSchema` and the like."""
    message: str = Field(default="", max_length=1000)
    """What is wrong, in one sentence."""
    timestamp: float = Field(default=0, ge=0, allow_inf_nan=False)
    """When it was found: seconds since the epoch, by the host's clock."""
    line: int | None = None
    """The line that it is about, if it is about one."""
    in_effect: InEffect = "none"
    """Which version of the file serves calls now."""

    @property
    def is_note(self) -> bool:
        """Return whether nothing has to be corrected: it has no tools, or a scan that only warns has found something."""
        return self.error_type == NO_TOOLS or (self.error_type == "SecurityError" and self.in_effect == "current")


class ModuleManifest(ModuleMessage):
    """A module's description of its tools: the answer to `GET /manifest`."""

    module_name: str = Field(min_length=1)
    """The module's name, with which the name of each of its tools begins."""
    description: str = ""
    """What the module is for."""
    tools: list[ToolDefinition]
    """What it offers."""
    retries_undeclared: bool | None = None
    """Whether its tools without an effect are tried once more when they answer that they failed."""
    on_change: Literal["shown", "withheld"] | None = None
    """The rule for a tool whose definition changes: it is served, and shown as changed until an operator accepts it; or it is
    withheld, as in a module that an operator has pinned. `None`: it takes effect as its version says."""
    load_errors: list[ToolLoadError] | None = None
    """Which files of a tool folder, or operations of a document, are not served as they stand; `None` where there are none."""
    lines: ToolLines | None = None
    """What the fleet's settings say of its tools; workers write it where they keep the manifest. What a module says here counts for nothing."""
    sources: list[ToolSource] | None = None
    """Where the tools of a folder stand; `None` for other modules."""

    @property
    def listed_count(self) -> int:
        """Return the number of tools that lists show: stand-ins for another tool, or for a method of a protocol, are not listed."""
        return sum(tool.listed for tool in self.tools)


_ADMINS = Approvers.model_construct(permission="admin")
