"""Shows the tools and modules that a caller may use, in the forms that clients and model providers take."""

import asyncio
import base64
import binascii
import bisect
import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from toolfleet_gateway.auth.identity import AgentNames, Identity, UserName
from toolfleet_gateway.calls import unknown_tool
from toolfleet_gateway.http.entrance import require_role
from toolfleet_gateway.http.problems import invalid_request, not_found
from toolfleet_gateway.http.routes import (
    Answer,
    AnyRoute,
    RouteRequest,
    declared_routes,
    json_answer,
    json_text,
    route,
    text_answer,
)
from toolfleet_registry.agents.explanation import ToolExplanation
from toolfleet_registry.api_keys import ApiKeys
from toolfleet_registry.contracts import Caller, Conversation, Level, ModuleStatus, ToolDefinition
from toolfleet_registry.contracts.tool_definition import ToolLoadError, ToolSource, tool_named
from toolfleet_registry.directory.requests import reload_tools
from toolfleet_registry.formats import convert
from toolfleet_registry.permissions import reaches
from toolfleet_registry.policy.call_faults import modules_of
from toolfleet_registry.settings import Settings
from toolfleet_registry.system.offload import aside
from toolfleet_tasks.client.fleet import ToolFleet
from toolfleet_tasks.resources.operation import AnswerModel

_PROGRAMMATIC = "programmatic"
"""The source of a tool that is in no file of a tool folder."""

_LONGEST = 512  # characters of a cursor: a tool's name has 256 at most
_DIGITS = 6

_RELOAD_SECONDS = 10.0

_MANY_TOOLS = 50  # tools: to write them takes some ms, which other requests should not wait
_MOST_FOUND = 1_000  # tools of a search, on all its pages
_Tag = Annotated[str, Field(max_length=256)]
# The listing's own names: FastAPI's habits are no reason to load the providers' packages.
OfferedFormat = Literal["openai_chat", "openai_responses", "anthropic", "gemini", "mcp"]


class ShownTool(ToolDefinition):
    """A tool as its module describes it, and where it stands."""

    source: str
    """The file that it stands in, on its host's machine; `programmatic` for others."""
    module: str
    """What that file is imported as there; of others, the module that they belong to."""


class FormatNote(BaseModel):
    """What a model provider does not see of a tool as it is."""

    model_config = ConfigDict(frozen=True, from_attributes=True, use_attribute_docstrings=True)

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

    tools: list[ShownTool | dict[str, Any]]
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


class LoadErrorList(AnswerModel):
    """The tool files that are not served in their present form."""

    errors: list[ShownLoadError]
    """By module, and as its host tells them."""
    count: int
    """How many there are."""


class ReloadReport(AnswerModel):
    """What came of a reload."""

    count: int
    """How many tools the hosts serve that are done."""
    errors: list[ShownLoadError]
    """What these do not serve as it stands."""
    hosts: int
    """How many hosts have answered."""
    pending: list[str]
    """The modules of hosts that are still at it."""


def shown_tool(tool: ToolDefinition, place: ToolSource | None) -> ShownTool:
    """Return the tool with its place, if it has one."""
    source = _PROGRAMMATIC if place is None else place.file
    module = tool.name.partition(".")[0] if place is None else place.python_module
    # Judged already: to validate each again would be most of a listing's time.
    return ShownTool.model_construct(
        tool.model_fields_set | {"source", "module"}, **dict(tool), source=source, module=module
    )


@dataclass(frozen=True, slots=True)
class Cursor:
    """The start of a page: `after` the name of a listing's last tool, or at the `offset` of a search."""

    after: str = ""
    offset: int = 0

    def text(self) -> str:
        """Return the cursor as clients get it."""
        return base64.urlsafe_b64encode(f"{self.offset}:{self.after}".encode()).decode().rstrip("=")


def read_cursor(text: str | None) -> Cursor:
    """Parse a cursor. Raises `Problem` (400) for one that no gateway has made."""
    if text is None:
        return Cursor()
    cursor = _read(text) if len(text) <= _LONGEST else None
    if cursor is None or cursor.text() != text:
        raise invalid_request("The cursor is none: send the `next` of an answer as it is.")
    return cursor


def _read(text: str) -> Cursor | None:
    try:
        offset, _, after = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode().partition(":")
    except (ValueError, binascii.Error):
        return None
    return Cursor(after, int(offset)) if offset.isascii() and offset.isdigit() and len(offset) <= _DIGITS else None


class ToolQuery(BaseModel):
    """A query for tools."""

    model_config = ConfigDict(extra="forbid")

    module: str | None = Field(None, max_length=256, description="Only those of this module.")
    tag: list[_Tag] = Field([], max_length=20, description="Only those with all of these tags.")
    q: str | None = Field(None, max_length=1_000, description="Only those with one of these words, the best first.")
    limit: int = Field(100, ge=1, le=1_000, description="How many a page has.")
    cursor: str | None = Field(None, pattern="^[A-Za-z0-9_-]{1,512}$", description="The `next` of the page before.")
    format: OfferedFormat | None = Field(None, description="Write them as this provider takes them.")


class WhyQuery(BaseModel):
    """A query for an explanation: by default for the caller itself."""

    model_config = ConfigDict(extra="forbid")

    agent: AgentNames | None = Field(None, description="As this agent, by its profile.")
    run_id: str | None = Field(None, max_length=256, description="In this run: how much it has used of its limits.")
    conversation_id: str | None = Field(None, max_length=256, description="In this conversation, likewise.")
    user_id: Annotated[UserName, Field(min_length=1)] | None = Field(
        None, description="Of this user; for operators, as all that follows."
    )
    permission: Level | None = Field(None, description="With this permission; else as a guest.")
    modules: str | None = Field(None, max_length=10_000, description="With these modules, comma-separated; `*` is all.")
    key: str | None = Field(None, max_length=256, description="Of the holder of the API key with this id.")


def tool_routes(fleet: ToolFleet, settings: Settings) -> list[AnyRoute]:
    """Return the routes of tools."""
    return declared_routes(_ToolRoutes(fleet, settings), tag="tools")


class _ToolRoutes:
    """The routes of tools. What exists is in memory: a listing asks nothing of Redis.

    `/tools/errors` and `/tools/reload` come before the tools' names, which have a dot.
    """

    def __init__(self, fleet: ToolFleet, settings: Settings) -> None:
        self._fleet, self._settings = fleet, settings

    @route(
        "GET",
        "/tools",
        "The tools that the caller may use, page by page",
        {
            200: Answer("A page of them.", ToolPage, headers={"ETag": "Changes with the page."}),
            304: Answer("The page is as the client has it, by `If-None-Match`."),
        },
    )
    async def list_tools(self, request: RouteRequest[None, ToolQuery]) -> Response:
        """Answer with a page and its `ETag`; with 304 if the client has it already."""
        query = request.query
        tools, count, following = await self._page(query, request.who.caller)
        places = {
            place.tool_name: place
            for status in (await self._fleet.modules.statuses()).values()
            for place in status.sources
        }
        text = await aside(lambda: _written(query, tools, count, following, places), is_large=len(tools) > _MANY_TOOLS)
        tag = f'"{hashlib.sha256(text).hexdigest()[:32]}"'
        headers = {"etag": tag, "cache-control": "private, no-cache", "vary": "authorization, x-api-key"}
        if _has(request.raw.headers.getlist("if-none-match"), tag):
            return Response(None, 304, headers)
        return text_answer(text, headers=headers)

    @route(
        "GET",
        "/tools/errors",
        "Which files and operations are not served as they stand; for viewers",
        {200: Answer("What does not load.", LoadErrorList)},
    )
    async def list_tool_errors(self, request: RouteRequest[None, None]) -> Response:
        require_role(request.who, "viewer")
        errors = [
            ShownLoadError(**dict(error), module=status.module)
            for status in (await self._fleet.modules.statuses()).values()
            for error in status.load_errors
        ]
        return json_answer(LoadErrorList(errors=errors, count=len(errors)))

    @route(
        "POST",
        "/tools/reload",
        "Have hosts read their tool folders again, and wait 10 s at most; for operators",
        {200: Answer("What they serve since.", ReloadReport)},
    )
    async def reload_tools(self, request: RouteRequest[None, None]) -> Response:
        require_role(request.who, "operator")
        answers = await reload_tools(self._settings, seconds=_RELOAD_SECONDS)
        done = [each for each in answers if each.is_done]
        report = ReloadReport(
            count=sum(each.tools for each in done),
            errors=[ShownLoadError(**dict(error), module=each.module) for each in answers for error in each.errors],
            hosts=len(answers),
            pending=sorted({each.module for each in answers if not each.is_done}),
        )
        return json_answer(report)

    @route(
        "GET",
        "/tools/{name}",
        "One tool that the caller may use",
        {200: Answer("The tool.", ShownTool)},
        problems=(404,),
    )
    async def get_tool(self, request: RouteRequest[None, None]) -> Response:
        name = request.path["name"]
        tool = tool_named(name, await self._fleet.tools(request.who.caller))
        if tool is None:
            raise await unknown_tool(self._fleet, request.who, name)
        statuses = await self._fleet.modules.statuses()
        places = (place for status in statuses.values() for place in status.sources if place.tool_name == tool.name)
        return json_answer(shown_tool(tool, next(places, None)))

    @route(
        "GET",
        "/tools/{name}/why",
        "Which rules have a say in a call of a tool, and where each stands",
        {200: Answer("What decides.", ToolExplanation)},
        problems=(404, 431),  # names of modules alone can be more than a URL holds
    )
    async def explain_tool(self, request: RouteRequest[None, WhyQuery]) -> Response:
        """Answer with an operator's explanation, or with what the caller itself may know."""
        query, who, name = request.query, request.who, request.path["name"]
        where = Conversation(run_id=query.run_id, conversation_id=query.conversation_id)
        if not query.model_dump(exclude_none=True, exclude={"agent", "run_id", "conversation_id"}):
            caller, is_operator = who.caller_for(None, query.agent), who.has_role("operator")
            if not is_operator and not await self._fleet.begun_calls.reaches(name, who.caller):
                raise await unknown_tool(self._fleet, who, name)
            found = await self._fleet.modules.explain(name, caller, conversation=where)
            return json_answer(found if is_operator else found.for_outsiders())
        require_role(who, "operator")
        caller = await self._caller(query)
        return json_answer(await self._fleet.modules.explain(name, caller, conversation=where))

    async def _page(self, query: ToolQuery, caller: Caller) -> tuple[Sequence[ToolDefinition], int, Cursor | None]:
        """Return the page's tools, the number of all tools, and the cursor of the next page."""
        at = read_cursor(query.cursor)
        if not query.q:
            if at.offset:
                raise invalid_request("The cursor is that of a search: send the same `q`.")
            return _part(_chosen(await self._fleet.tools(caller), query), at.after, query.limit)
        if at.after:
            raise invalid_request("The cursor is that of a listing: send no `q`.")
        found = _chosen(await self._fleet.search(query.q, caller, tags=query.tag, limit=_MOST_FOUND), query)
        end = at.offset + query.limit
        return found[at.offset : end], len(found), Cursor(offset=end) if end < len(found) else None

    async def _caller(self, query: WhyQuery) -> Caller:
        if query.key is None:
            names = None if query.modules is None else [one.strip() for one in query.modules.split(",")]
            allowed: frozenset[str] | Literal["*"] | None = None if names is None else frozenset(filter(None, names))
            return Caller.model_validate(
                {
                    "user_id": query.user_id,
                    "permission": query.permission or "guest",
                    "allowed_modules": "*" if names is not None and "*" in names else allowed,
                    "agent": query.agent,
                }
            )
        if query.user_id is not None or query.permission is not None or query.modules is not None:
            raise invalid_request("The key says that: leave user_id, permission and modules out.")
        found = await asyncio.to_thread(self._holder, query.key)
        if found is None:
            raise not_found("There is no such key, or not any more.")
        return found if query.agent is None else found.model_copy(update={"agent": query.agent})

    def _holder(self, key_id: str) -> Caller | None:
        with contextlib.closing(ApiKeys.of(self._settings)) as keys:
            return next((each.key.caller for each in keys.records() if each.key.id == key_id), None)


def _chosen(tools: Sequence[ToolDefinition], query: ToolQuery) -> Sequence[ToolDefinition]:
    if query.module is None and not query.tag:
        return tools
    wanted = set(query.tag)
    prefix = "" if query.module is None else f"{query.module}."
    return [tool for tool in tools if tool.name.startswith(prefix) and wanted.issubset(tool.tags)]


def _part(
    tools: Sequence[ToolDefinition], after: str, limit: int
) -> tuple[Sequence[ToolDefinition], int, Cursor | None]:
    start = bisect.bisect_right(tools, after, key=lambda tool: tool.name)
    page = tools[start : start + limit]
    following = Cursor(page[-1].name) if page and start + limit < len(tools) else None
    return page, len(tools), following


def _written(
    query: ToolQuery,
    tools: Sequence[ToolDefinition],
    count: int,
    following: Cursor | None,
    places: Mapping[str, ToolSource],
) -> bytes:
    more = None if following is None else following.text()
    if query.format is None:
        page = ToolPage(tools=[shown_tool(tool, places.get(tool.name)) for tool in tools], count=count, next=more)
    else:
        converted = convert(tools, query.format)
        notes = [FormatNote.model_validate(note) for note in converted.notes]
        page = ToolPage(tools=list(converted), count=count, next=more, notes=notes)
    return json_text(page).encode()


def _has(values: Sequence[str], tag: str) -> bool:
    """Return whether one of the client's tags is this one; weak ones compare as strong."""
    known = {one.strip().removeprefix("W/") for value in values for one in value.split(",")}
    return tag in known or "*" in known


class ShownModule(AnswerModel):
    """A module as it is known. Only viewers see its errors."""

    module: str
    """Its name."""
    ok: bool
    """Whether the last probe found a good manifest."""
    tools: int
    """How many tools it has; to others than viewers, how many of them they may use."""
    age_seconds: float | None = None
    """The age of its last good manifest, if it has one."""
    is_stale: bool = False
    """Whether that one is too old."""
    error: str | None = None
    """Why the last probe failed."""
    closed_tools: list[str] | None = None
    """The tools that no caller can use because of their own declarations."""
    disabled: int | None = None
    """How many tools an operator has switched off."""
    withheld: int | None = None
    """How many tools no operator has approved, of a pinned module."""
    drifted: int | None = None
    """How many tools have other content than was registered under the same version."""
    load_errors: list[ShownLoadError] | None = None
    """The tool files that are not served in their present form."""


class ModuleList(AnswerModel):
    """The modules that a caller reaches."""

    modules: list[ShownModule]
    """By name."""
    count: int
    """How many there are."""


class ModuleWithTools(ShownModule):
    """A module, and what it offers to the caller."""

    offers: list[ShownTool]
    """The tools that the caller may use, by name."""


class ModuleToolsList(AnswerModel):
    """The modules that a caller reaches, each with its tools."""

    modules: list[ModuleWithTools]
    """By name."""
    count: int
    """How many there are."""


def module_routes(fleet: ToolFleet, settings: Settings) -> list[AnyRoute]:
    """Return the routes of modules."""
    return declared_routes(_AboutModules(fleet, settings), tag="modules")


class _AboutModules:
    def __init__(self, fleet: ToolFleet, settings: Settings) -> None:
        self._fleet = fleet
        self._guest_modules = settings.default_guest_modules

    @route(
        "GET",
        "/modules",
        "The modules that the caller reaches; asks none of them",
        {200: Answer("What is known of each.", ModuleList)},
    )
    async def list_modules(self, request: RouteRequest[None, None]) -> Response:
        return await self._list(request.who, await self._fleet.modules.statuses())

    @route(
        "GET",
        "/api/modules",
        "The modules that the caller reaches, each with the tools that they may use",
        {200: Answer("Each with its tools.", ModuleToolsList)},
    )
    async def list_modules_with_tools(self, request: RouteRequest[None, None]) -> Response:
        statuses = self._reached(request.who, await self._fleet.modules.statuses())
        tools = await self._fleet.tools(request.who.caller)

        def written() -> str:
            places = {place.tool_name: place for status in statuses.values() for place in status.sources}
            by_module = _by_module(tools)
            modules = [
                ModuleWithTools(
                    **_facts(request.who, status, len(by_module.get(name, ()))),
                    offers=[shown_tool(tool, places.get(tool.name)) for tool in by_module.get(name, ())],
                )
                for name, status in statuses.items()
            ]
            return json_text(ModuleToolsList(modules=modules, count=len(modules)))

        return text_answer(await aside(written, is_large=len(tools) > _MANY_TOOLS))

    @route(
        "POST",
        "/refresh-tools",
        "Have all modules asked now for what they offer; for operators",
        {200: Answer("The outcome.", ModuleList)},
    )
    async def refresh_tools(self, request: RouteRequest[None, None]) -> Response:
        require_role(request.who, "operator")
        return await self._list(request.who, await self._fleet.modules.refresh())

    async def _list(self, who: Identity, statuses: Mapping[str, ModuleStatus]) -> Response:
        by_module = _by_module(await self._fleet.tools(who.caller))
        modules = [
            ShownModule(**_facts(who, status, len(by_module.get(name, ()))))
            for name, status in self._reached(who, statuses).items()
        ]
        return json_answer(ModuleList(modules=modules, count=len(modules)))

    def _reached(self, who: Identity, statuses: Mapping[str, ModuleStatus]) -> Mapping[str, ModuleStatus]:
        """Return the statuses that the caller may see: a viewer may see all."""
        modules = "*" if who.has_role("viewer") else modules_of(who.caller, self._guest_modules)
        return {name: status for name, status in statuses.items() if reaches(name, modules)}


def _by_module(tools: list[ToolDefinition]) -> dict[str, list[ToolDefinition]]:
    found = dict[str, list[ToolDefinition]]()
    for tool in tools:
        found.setdefault(tool.name.partition(".")[0], []).append(tool)
    return found


def _facts(who: Identity, status: ModuleStatus, usable: int) -> dict[str, Any]:
    shown = {"module": status.module, "ok": status.ok, "age_seconds": status.age_seconds, "is_stale": status.is_stale}
    if not who.has_role("viewer"):
        return {**shown, "tools": usable}
    errors = [ShownLoadError(**dict(error), module=status.module) for error in status.load_errors]
    of_viewers = {"tools", "error", "closed_tools", "disabled", "withheld", "drifted"}
    return {**shown, **{name: getattr(status, name) for name in of_viewers}, "load_errors": errors}
