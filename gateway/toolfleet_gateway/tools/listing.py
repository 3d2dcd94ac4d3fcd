"""Lists tools page by page, found by words and tags, in a provider's form if that is asked for."""

import bisect
import hashlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from toolfleet_gateway.http.answers import json_text, text_answer
from toolfleet_gateway.http.problems import invalid_request
from toolfleet_gateway.http.routes import RouteRequest
from toolfleet_gateway.tools.answers import FormatNote, ToolPage, shown_tool
from toolfleet_gateway.tools.cursors import Cursor, read_cursor
from toolfleet_registry.contracts import Caller, ToolDefinition
from toolfleet_registry.contracts.tool_definition import ToolSource
from toolfleet_registry.formats import convert
from toolfleet_registry.system.offload import aside
from toolfleet_tasks.client.fleet import ToolFleet

_MANY = 50  # tools: to write them takes some ms, which other requests should not wait
_MOST_FOUND = 1_000  # tools of a search, on all its pages
_Tag = Annotated[str, Field(max_length=256)]
# The listing's own names: FastAPI's habits are no reason to load the providers' packages.
OfferedFormat = Literal["openai_chat", "openai_responses", "anthropic", "gemini", "mcp"]


class ToolQuery(BaseModel):
    """Which tools are listed."""

    model_config = ConfigDict(extra="forbid")

    module: str | None = Field(None, max_length=256, description="Only those of this module.")
    tag: list[_Tag] = Field([], max_length=20, description="Only those with all of these tags.")
    q: str | None = Field(None, max_length=1_000, description="Only those with one of these words, the best first.")
    limit: int = Field(100, ge=1, le=1_000, description="How many a page has.")
    cursor: str | None = Field(None, pattern="^[A-Za-z0-9_-]{1,512}$", description="The `next` of the page before.")
    format: OfferedFormat | None = Field(None, description="Write them as this provider takes them.")


class ToolPages:
    """Answers `GET /tools`. It asks nothing of Redis: what exists is in memory."""

    def __init__(self, fleet: ToolFleet) -> None:
        self._fleet = fleet

    async def answer(self, request: RouteRequest[None, ToolQuery]) -> Response:
        """One page, with an `ETag`; 304 where the client has it already."""
        query = request.query
        tools, count, following = await self._page(query, request.who.caller)
        places = {
            place.tool_name: place
            for status in (await self._fleet.modules.statuses()).values()
            for place in status.sources
        }
        text = await aside(lambda: _written(query, tools, count, following, places), is_large=len(tools) > _MANY)
        tag = f'"{hashlib.sha256(text).hexdigest()[:32]}"'
        headers = {"etag": tag, "cache-control": "private, no-cache", "vary": "authorization, x-api-key"}
        if _has(request.raw.headers.getlist("if-none-match"), tag):
            return Response(None, 304, headers)
        return text_answer(text, headers=headers)

    async def _page(self, query: ToolQuery, caller: Caller) -> tuple[Sequence[ToolDefinition], int, Cursor | None]:
        """The page's tools, how many there are in all, and where the next page begins."""
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
    """Whether one of the tags that a client has is this one; weak ones compare as strong."""
    known = {one.strip().removeprefix("W/") for value in values for one in value.split(",")}
    return tag in known or "*" in known
