"""Lists the tools that a caller may use; shows which are in effect and what modules offer otherwise, and changes that."""

import base64
import binascii
import bisect
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema
from redis.exceptions import RedisError

from toolfleet_registry.access import AgentNames, UserName, has_role
from toolfleet_registry.agents.explanation import ToolExplanation
from toolfleet_registry.catalog.operator import Difference, operating
from toolfleet_registry.contracts import Caller, Conversation, Level, ModuleStatus, ToolDefinition, ToolResult
from toolfleet_registry.contracts.names import named_modules
from toolfleet_registry.contracts.tool_definition import ToolLoadError, ToolSource, tool_named
from toolfleet_registry.directory.requests import reload_tools as have_tools_reloaded
from toolfleet_registry.errors import InvalidQuestion, NoSuchEntry
from toolfleet_registry.settings import Settings
from toolfleet_registry.specs import ToolRegistration, ToolSpec, digest_of
from toolfleet_registry.system.offload import aside
from toolfleet_tasks.presence import KEEPS_ROLLBACKS, older_workers
from toolfleet_tasks.resources.keys import holder_of
from toolfleet_tasks.resources.operation import (
    AnswerModel,
    BodyModel,
    OperationRequest,
    QueryModel,
    no_cursor,
    operation,
)

_ALL, _TOOL, _MODULE = "/operations/tools", "/operations/tools/{name}", "/operations/modules/{module}"
_LISTED, _LISTED_ONE = "/tools", "/tools/{name}"

_PROGRAMMATIC = "programmatic"
"""The source of a tool that is in no file of a tool folder."""

MANY_TOOLS: Final = 50
"""To make an answer of more takes some ms, which other requests should not wait."""

_LONGEST = 512  # characters of a cursor: a tool's name has 256 at most
_DIGITS = 6

_RELOAD_SECONDS = 10.0

_MOST_FOUND = 1_000  # tools of a search, on all its pages
_Tag = Annotated[str, Field(max_length=256)]
# The listing's own names: FastAPI's habits are no reason to load the providers' packages.
OfferedFormat = Literal["openai_chat", "openai_responses", "anthropic", "gemini", "mcp"]


class ShownDifference(AnswerModel):
    """A tool that its module offers otherwise than it is in effect, or was accepted."""

    tool_name: str
    """The tool's name."""
    kind: str
    """`drifted`, `withheld` or `rolled_back`; `changed`: it is in effect, and no operator has accepted it."""
    digest: str
    """That of what is offered, which an approval may name."""
    registered_digest: str | None = None
    """That of what is registered, if it is."""
    is_new: bool
    """Whether none is registered that can be read."""
    version: str | None = None
    """The version that is offered."""
    registered_version: str | None = None
    """The version that is registered."""
    fields: dict[str, tuple[Any, Any]]
    """What differs: as registered, and as offered."""

    @classmethod
    def of(cls, one: Difference) -> "ShownDifference":
        """The difference, as it is sent."""
        return cls(
            tool_name=one.tool_name,
            kind=one.kind,
            digest=one.digest,
            registered_digest=one.registered_digest,
            is_new=one.registered is None,
            version=one.offered.version,
            registered_version=None if one.registered is None else one.registered.version,
            fields=one.fields(),
        )


class ToolState(AnswerModel):
    """The tools that are offered and not in effect, or that no caller may use."""

    pending: list[ShownDifference]
    """By tool."""
    closed: dict[str, str]
    """Tools that nobody may use now, and why."""
    pinned: list[str]
    """Modules of which only what was approved takes effect."""
    stale: dict[str, float]
    """Modules whose last good manifest is too old, and its age in seconds."""


class ShownToolEvent(AnswerModel):
    """One change of the registry."""

    id: str
    """Grows from event to event."""
    kind: str
    """What happened."""
    tool_name: str
    """To which tool."""
    version: str | None = None
    """The version after it, if there is one."""
    digest: str | None = None
    """That of the specification after it, if there is one."""
    at: datetime
    """When."""


class ToolEventList(AnswerModel):
    """Changes of the registry."""

    events: list[ShownToolEvent]
    """The latest last."""
    count: int
    """How many these are."""
    found: dict[str, int]
    """How many tools were ever found added, changed, removed and drifted."""


class ShownVersion(AnswerModel):
    """A specification of a tool that the registry keeps."""

    version: str | None = None
    """Its version."""
    digest: str
    """Its digest."""
    created_at: str | None = None
    """When it was registered, or put in force again: ISO 8601, UTC."""
    enabled: bool
    """Whether no operator has switched the tool off."""
    is_in_force: bool
    """Whether callers are listed this one."""
    rolled_back_from: str | None = None
    """The version that an operator has rolled back from."""
    spec: ToolSpec
    """The specification."""

    @classmethod
    def of(cls, one: ToolRegistration, version_in_force: str | None) -> "ShownVersion":
        """The registration, as it is sent."""
        return cls(
            version=one.spec.version,
            digest=digest_of(one.spec),
            created_at=one.created_at,
            enabled=one.enabled,
            is_in_force=one.spec.version == version_in_force,
            rolled_back_from=one.rolled_back_from,
            spec=one.spec,
        )


class ToolVersionList(AnswerModel):
    """The last specifications of a tool."""

    versions: list[ShownVersion]
    """The latest first; the registry keeps 20."""
    count: int
    """How many these are."""


class ApprovalRequest(BodyModel):
    """The definition to approve."""

    digest: str | None = Field(default=None, max_length=100)
    """Only if it is offered with this one."""


class ApprovedTool(AnswerModel):
    """A tool that takes effect as it is offered."""

    tool_name: str
    """The tool's name."""
    digest: str
    """What was approved."""


class RollbackRequest(BodyModel):
    """The version that a tool is to have again."""

    version: str = Field(max_length=256)
    """One of its versions."""


class RolledBackTool(AnswerModel):
    """A tool of which an earlier version is in force."""

    tool_name: str
    """The tool's name."""
    version: str
    """The version that is in force."""
    rolled_back_from: str | None = None
    """Until its module offers a later version than this one; `None`: it was in force already."""
    undone_by: list[str]
    """Workers of an earlier release, which undo it when they next ask the module."""


class PinnedModule(AnswerModel):
    """A module of which only what was approved takes effect."""

    module: str
    """Its name."""
    digests: dict[str, str]
    """What is approved, by tool."""


class ToolStateQuery(QueryModel):
    """A query for the state of tools."""

    module: str | None = Field(None, max_length=256, description="What is `pending` of this module only.")


class ToolEventQuery(QueryModel):
    """A query for changes of tools."""

    limit: int = Field(100, ge=1, le=10_000, description="The latest so many.")


@operation("GET", _ALL, role="viewer", answers="What there is.", problems=(409,))
async def get_tool_state(asked: OperationRequest[None, ToolStateQuery]) -> ToolState:
    """Show what modules offer that is not in effect, and which tools no caller may use."""
    async with operating(asked.settings) as operator:
        return ToolState(
            pending=[ShownDifference.of(one) for one in await operator.differences(asked.query.module)],
            closed=await operator.closed(),
            pinned=sorted(await operator.pins()),
            stale=await operator.stale(),
        )


@operation("GET", f"{_ALL}/events", role="viewer", answers="The latest last.")
async def list_tool_events(asked: OperationRequest[None, ToolEventQuery]) -> ToolEventList:
    """List the latest changes of the registry, by all operators and modules."""
    async with operating(asked.settings) as operator:
        events = [ShownToolEvent(**event.model_dump()) for event in await operator.events(asked.query.limit)]
        return ToolEventList(events=events, count=len(events), found=await operator.counted())


@operation("GET", f"{_TOOL}/versions", role="viewer", answers="The latest first.", problems=(409,))
async def list_tool_versions(asked: OperationRequest[None, None]) -> ToolVersionList:
    """List a tool's latest specifications."""
    name = asked.path["name"]
    async with operating(asked.settings) as operator:
        found, in_force = await operator.versions(name), await operator.version_in_force(name)
    versions = [ShownVersion.of(one, in_force) for one in reversed(found)]
    return ToolVersionList(versions=versions, count=len(versions))


@operation("POST", f"{_TOOL}/disable", role="operator", answers="It is done.", problems=(409,))
async def disable_tool(asked: OperationRequest[None, None]) -> None:
    """Disable a tool for all callers, until it is enabled."""
    name = asked.path["name"]
    async with operating(asked.settings) as operator, asked.change("tool_disabled", name):
        await operator.disable(name)


@operation("POST", f"{_TOOL}/enable", role="operator", answers="It is done.", problems=(409,))
async def enable_tool(asked: OperationRequest[None, None]) -> None:
    """Enable a disabled tool."""
    name = asked.path["name"]
    async with operating(asked.settings) as operator, asked.change("tool_enabled", name):
        await operator.enable(name)


@operation("POST", f"{_TOOL}/forget", role="operator", answers="It is done.", problems=(409,))
async def forget_tool(asked: OperationRequest[None, None]) -> None:
    """Remove a tool from the registry: if its module offers it again, it is new."""
    name = asked.path["name"]
    async with operating(asked.settings) as operator, asked.change("tool_forgotten", name):
        await operator.forget(name)


@operation("POST", f"{_TOOL}/approve", role="operator", answers="What was approved.", problems=(409,))
async def approve_tool(asked: OperationRequest[ApprovalRequest, None]) -> ApprovedTool:
    """Approve what a module offers of a tool, so that it takes effect."""
    name = asked.path["name"]
    async with operating(asked.settings) as operator, asked.change("tool_approved", name) as change:
        found = await operator.approve(name, digest=asked.body.digest)
        change.facts["digest"] = found.digest
    return ApprovedTool(tool_name=found.tool_name, digest=found.digest)


@operation("POST", f"{_TOOL}/rollback", role="operator", answers="What is in force.", problems=(409,))
async def roll_back_tool(asked: OperationRequest[RollbackRequest, None]) -> RolledBackTool:
    """Put an earlier version of a tool in force."""
    name, version = asked.path["name"], asked.body.version
    async with operating(asked.settings) as operator, asked.change("tool_rolled_back", name, version=version):
        since = (await operator.rollback(name, version)).rolled_back_from
    older = list[str]()
    with contextlib.suppress(RedisError, OSError):  # the rollback is done
        older += await older_workers(asked.settings, KEEPS_ROLLBACKS) if since else []
    return RolledBackTool(tool_name=name, version=version, rolled_back_from=since, undone_by=older)


@operation("POST", f"{_MODULE}/pin", role="operator", answers="What is approved.", problems=(409,))
async def pin_module(asked: OperationRequest[None, None]) -> PinnedModule:
    """Approve a module's tools as they are in effect, and no later change without an approval of its own."""
    module = asked.path["module"]
    async with operating(asked.settings) as operator, asked.change("module_pinned", module):
        return PinnedModule(module=module, digests=await operator.pin(module))


@operation("POST", f"{_MODULE}/unpin", role="operator", answers="It is not pinned any more.", problems=(409,))
async def unpin_module(asked: OperationRequest[None, None]) -> None:
    """Let what a module offers take effect without an approval."""
    module = asked.path["module"]
    async with operating(asked.settings) as operator, asked.change("module_unpinned", module):
        await operator.unpin(module)


class ShownTool(ToolDefinition):
    """A tool as its module describes it, and where it stands."""

    source: str
    """The file that it stands in, on its host's machine; `programmatic` for others."""
    module: str
    """What that file is imported as there; of others, the module that they belong to."""
    place: SkipJsonSchema[ToolSource | None] = Field(default=None, exclude=True, repr=False)
    """The same in the fleet's own form, for tools in files. Never sent."""

    @classmethod
    def of(cls, tool: ToolDefinition, places: Mapping[str, ToolSource]) -> "ShownTool":
        """Return the tool with its place, if it has one."""
        place = places.get(tool.name)
        where: dict[str, Any] = {
            "source": _PROGRAMMATIC if place is None else place.file,
            "module": tool.name.partition(".")[0] if place is None else place.python_module,
            "place": place,
        }
        # Judged already: to validate each again would be most of a listing's time.
        return cls.model_construct(tool.model_fields_set | where.keys(), **dict(tool), **where)

    @property
    def file(self) -> ToolSource | None:
        """The file that it stands in; without its digest as a gateway tells it."""
        if self.place is not None or self.source == _PROGRAMMATIC:
            return self.place
        return ToolSource(tool_name=self.name, file=self.source, python_module=self.module, digest="")


class FormatNote(AnswerModel):
    """A part of a tool that a model provider does not see as it is."""

    tool: str
    """The tool's name; empty: of all."""
    path: str
    """A JSON pointer into the arguments' schema, or `name`, `description`, `strict`, `tools`."""
    kind: str
    """What was done about it."""
    why: str
    """The reason, in words."""


class ToolPage(AnswerModel):
    """Some of the tools that a caller may use."""

    tools: list[Annotated[ShownTool | dict[str, Any], Field(union_mode="left_to_right")]]
    """By name; of a search, the best first. With a `format` what goes into the `tools` of a request to that provider, by name."""
    count: int
    """How many tools there are on all pages."""
    next: str | None = None
    """The `cursor` of the next page, if there is one."""
    notes: list[FormatNote] | None = None
    """What the provider does not see as it is, with a `format`."""


class ShownLoadError(ToolLoadError):
    """Why a file is not served as it stands, and of which module it is."""

    module: str
    """The module that serves the file's folder."""

    @classmethod
    def of(cls, status: ModuleStatus) -> "list[ShownLoadError]":
        """Return the errors of a module."""
        return [cls(**dict(error), module=status.module) for error in status.load_errors]


class LoadErrorList(AnswerModel):
    """The tool files that are not served in their present form."""

    errors: list[ShownLoadError]
    """By module, and as its host tells them."""
    count: int
    """How many there are."""


class ReloadReport(AnswerModel):
    """The outcome of a reload."""

    count: int
    """How many tools the hosts serve that are done."""
    errors: list[ShownLoadError]
    """What these do not serve as it stands."""
    hosts: int
    """How many hosts have answered."""
    pending: list[str]
    """The modules of hosts that are still at it."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """The start of a page: `after` the name of a listing's last tool, or at the `offset` of a search."""

    after: str = ""
    offset: int = 0

    def text(self) -> str:
        """Return the cursor as clients get it."""
        return base64.urlsafe_b64encode(f"{self.offset}:{self.after}".encode()).decode().rstrip("=")


def read_cursor(text: str | None) -> Cursor:
    """Parse a cursor. Raises `InvalidQuestion` for one that no gateway has made."""
    if text is None:
        return Cursor()
    cursor = _read(text) if len(text) <= _LONGEST else None
    if cursor is None or cursor.text() != text:
        raise no_cursor()
    return cursor


def _read(text: str) -> Cursor | None:
    try:
        offset, _, after = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode().partition(":")
    except (ValueError, binascii.Error):
        return None
    return Cursor(after, int(offset)) if offset.isascii() and offset.isdigit() and len(offset) <= _DIGITS else None


class ToolQuery(QueryModel):
    """A query for tools."""

    module: str | None = Field(None, max_length=256, description="Only those of this module.")
    tag: list[_Tag] = Field([], max_length=20, description="Only those with all of these tags.")
    q: str | None = Field(None, max_length=1_000, description="Only those with one of these words, the best first.")
    limit: int = Field(100, ge=1, le=1_000, description="How many a page has.")
    cursor: str | None = Field(None, pattern="^[A-Za-z0-9_-]{1,512}$", description="The `next` of the page before.")
    format: OfferedFormat | None = Field(None, description="Write them as this provider takes them.")


class WhyQuery(QueryModel):
    """A query for an explanation: by default for the caller itself."""

    agent: AgentNames | None = Field(None, description="As this agent, by its profile.")
    run_id: str | None = Field(None, max_length=256, description="In this run: how much it has used of its limits.")
    conversation_id: str | None = Field(None, max_length=256, description="In this conversation, likewise.")
    user_id: Annotated[UserName, Field(min_length=1)] | None = Field(
        None, description="Of this user; for operators, as all that follows."
    )
    permission: Level | None = Field(None, description="With this permission; else as a guest.")
    modules: str | None = Field(None, max_length=10_000, description="With these modules, comma-separated; `*` is all.")
    key: str | None = Field(None, max_length=256, description="Of the holder of the API key with this id.")


def _is_long(page: ToolPage) -> bool:
    return len(page.tools) > MANY_TOOLS


@operation("GET", _LISTED, role="none", answers="A page of them.", is_cached=True, is_long=_is_long)
async def list_tools(asked: OperationRequest[None, ToolQuery]) -> ToolPage:
    """List the tools that the caller may use, page by page."""
    query, fleet, caller = asked.query, await asked.fleet(), asked.operator.caller_for()
    at = read_cursor(query.cursor)
    if query.q:
        if at.after:
            raise InvalidQuestion("The cursor is that of a listing: send no `q`.")
        tools = _chosen(await fleet.search(query.q, caller, tags=query.tag, limit=_MOST_FOUND), query)
        start = at.offset
    else:
        if at.offset:
            raise InvalidQuestion("The cursor is that of a search: send the same `q`.")
        tools = _chosen(await fleet.tools(caller), query)
        start = bisect.bisect_right(tools, at.after, key=lambda tool: tool.name)
    page, places = tools[start : start + query.limit], places_of(await fleet.modules.statuses())
    following = Cursor(offset=start + query.limit) if query.q else Cursor(page[-1].name if page else "")
    more = following.text() if page and start + query.limit < len(tools) else None
    previews, is_large = asked.settings.artifact_store is not None, len(page) > MANY_TOOLS
    return await aside(
        lambda: _page(query.format, page, len(tools), more, places, previews=previews), is_large=is_large
    )


@operation("GET", f"{_LISTED}/errors", role="viewer", answers="What does not load.")
async def list_tool_errors(asked: OperationRequest[None, None]) -> LoadErrorList:
    """List the files and operations that are not served as they stand."""
    statuses = await (await asked.fleet()).modules.statuses()
    errors = [error for status in statuses.values() for error in ShownLoadError.of(status)]
    return LoadErrorList(errors=errors, count=len(errors))


@operation("POST", f"{_LISTED}/reload", role="operator", answers="What they serve since.")
async def reload_tools(asked: OperationRequest[None, None]) -> ReloadReport:
    """Have hosts read their tool folders again, and wait 10 s at most."""
    answers = await have_tools_reloaded(asked.settings, seconds=_RELOAD_SECONDS)
    done = [each for each in answers if each.is_done]
    return ReloadReport(
        count=sum(each.tools for each in done),
        errors=[ShownLoadError(**dict(error), module=each.module) for each in answers for error in each.errors],
        hosts=len(answers),
        pending=sorted({each.module for each in answers if not each.is_done}),
    )


@operation("GET", _LISTED_ONE, role="none", answers="The tool.", problems=(404,))
async def get_tool(asked: OperationRequest[None, None]) -> ShownTool:
    """Return one tool that the caller may use."""
    name, fleet, caller = asked.path["name"], await asked.fleet(), asked.operator.caller_for()
    tool = tool_named(name, await fleet.tools(caller))
    if tool is None:
        raise no_such_tool(await fleet.begun_calls.absence(name, caller))
    return ShownTool.of(tool, places_of(await fleet.modules.statuses()))


# Names of modules alone can be more than a URL holds.
@operation("GET", f"{_LISTED_ONE}/why", role="none", answers="What decides.", problems=(404, 431))
async def explain_tool(asked: OperationRequest[None, WhyQuery]) -> ToolExplanation:
    """Explain which rules have a say in a call of a tool, and where each stands."""
    query, operator, name = asked.query, asked.operator, asked.path["name"]
    fleet, where = await asked.fleet(), Conversation(run_id=query.run_id, conversation_id=query.conversation_id)
    if query.model_dump(exclude_none=True, exclude={"agent", "run_id", "conversation_id"}):
        operator.require("operator")
        return await fleet.modules.explain(name, await _caller(asked.settings, query), conversation=where)
    # The caller's own: who is no operator is told what outsiders may know.
    caller, is_operator = operator.caller_for(None, query.agent), has_role(operator.maker.role, "operator")
    if not is_operator and not await fleet.begun_calls.reaches(name, operator.caller_for()):
        raise no_such_tool(await fleet.begun_calls.absence(name, operator.caller_for()))
    found = await fleet.modules.explain(name, caller, conversation=where)
    return found if is_operator else found.for_outsiders()


async def _caller(settings: Settings, query: WhyQuery) -> Caller:
    """Return the caller that an operator asks about. Raises `OperationRefused`."""
    if query.key is None:
        said = {"user_id": query.user_id, "permission": query.permission or "guest", "agent": query.agent}
        return Caller.model_validate({**said, "allowed_modules": named_modules(query.modules)})
    if query.user_id is not None or query.permission is not None or query.modules is not None:
        raise InvalidQuestion("The key says that: leave user_id, permission and modules out.")
    found = await holder_of(settings, query.key)
    return found if query.agent is None else found.model_copy(update={"agent": query.agent})


def no_such_tool(absence: ToolResult) -> NoSuchEntry:
    """Return the error of a tool that looks to the caller like one that does not exist, by the refusal of its call."""
    error = NoSuchEntry(str(absence.error))
    error.error_code, error.hint = "unknown_tool", absence.hint or "GET /tools lists those that there are."
    return error


def places_of(statuses: Mapping[str, ModuleStatus]) -> Mapping[str, ToolSource]:
    """Return where each tool stands that is in a file, by the tool's name. A module's word counts for its own tools."""
    return {
        place.tool_name: place
        for name, status in statuses.items()
        for place in status.sources
        if place.tool_name.startswith(f"{name}.")
    }


def _chosen(tools: Sequence[ToolDefinition], query: ToolQuery) -> Sequence[ToolDefinition]:
    if query.module is None and not query.tag:
        return tools
    wanted = {tag.casefold() for tag in query.tag}
    prefix = "" if query.module is None else f"{query.module}."
    return [tool for tool in tools if tool.name.startswith(prefix) and wanted.issubset(map(str.casefold, tool.tags))]


def _page(
    form: OfferedFormat | None,
    tools: Sequence[ToolDefinition],
    count: int,
    following: str | None,
    places: Mapping[str, ToolSource],
    *,
    previews: bool,
) -> ToolPage:
    if form is None:
        return ToolPage(tools=[ShownTool.of(tool, places) for tool in tools], count=count, next=following)
    from toolfleet_registry.formats import convert  # the command line has no use for it

    converted = convert(tools, form, previews=previews)
    notes = [FormatNote.model_validate(note, from_attributes=True) for note in converted.notes]
    return ToolPage(tools=list(converted), count=count, next=following, notes=notes)
