"""Lists a server's tools, says when to list them again, and describes for a manifest those that can be served."""

import asyncio
import contextlib
import hashlib
import re
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, field
from typing import Any

import mcp_types as types
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost, listen
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError
from pydantic_core import to_json

from toolfleet_modules.hosts.mcp.mcp_session import McpSession, ServerAway
from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.contracts.tool_definition import Effect, ToolAnnotations
from toolfleet_registry.functions.passed_methods import RESERVED
from toolfleet_registry.schemas.checker import SchemaWrong, compiled
from toolfleet_registry.schemas.subschemas import without_senseless

MOST_TOOLS = 10_000
"""The most tools of one server."""

_LONGEST_DESCRIPTION = 16_000  # characters; a longer one is cut: no model reads it
_LONGEST_SHOWN = 200  # characters of a name
_LARGEST_META = 2**16  # bytes; of what is larger clients are told nothing
# What an annotation must say to count without trust: it makes clients more careful.
_CAREFUL = {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": True, "idempotentHint": False}

_LONGEST_NAME = 64  # characters of a method; a model sees them, too
_DIGEST = 12  # hex digits
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", re.ASCII)
_ILLEGAL = re.compile(r"[^A-Za-z0-9_-]+", re.ASCII)
_AMBIGUOUS = re.compile(rf"-[0-9a-f]{{{_DIGEST}}}$")  # it could be what another name is mapped to

_CHANGED = "notifications/tools/list_changed"
_MOST_PAGES = 1000
_SHORTEST_PAUSE = 1.0  # seconds between two lists, however often a server says that they change
_LONGEST_PAUSE = 30.0  # the same for a server whose lists never stay
_FREE_CHANGES = 3  # lists in a row that differ, before the pause between them grows
_TTL_SECONDS = (5.0, 3600.0)  # what a server may have us keep its list for
_LISTEN_SECONDS = 5.0  # until a stream of changes that ended is asked for again


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool, and how its server names it."""

    original: str
    definition: ToolDefinition


@dataclass(slots=True)
class ServerOffer:
    """The offer of a server: `tools` by their full names here; `faults`: what is wrong with others, by the server's names for them.

    `passed`: the methods of prompts, resources and completion that it has; `has_watch`: whether its resources can be
    watched.
    """

    tools: dict[str, OfferedTool] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    passed: tuple[str, ...] = ()
    has_watch: bool = False


def offer_of(
    module: str, listed: Iterable[types.Tool], refused: Iterable[tuple[str, str]], *, is_trusted: bool
) -> ServerOffer:
    """Describe what a server has listed; `refused` are those that were no tools."""
    offer = ServerOffer(faults={name[:_LONGEST_SHOWN]: why for name, why in refused})
    for tool in listed:
        name, shown = f"{module}.{method_of(tool.name)}", tool.name[:_LONGEST_SHOWN]
        if name in offer.tools:
            offer.faults[shown] = "The server lists it twice; the first one is served."
        elif len(offer.tools) >= MOST_TOOLS:
            offer.faults["(more tools)"] = f"The server has more than {MOST_TOOLS} tools; the first ones are served."
            break
        else:
            _add(offer, name, shown, tool, is_trusted=is_trusted)
    return offer


def effect_of(annotations: types.ToolAnnotations | None, *, is_trusted: bool) -> Effect:
    """Return the effect of a tool: as a trusted server declares it, else `once`."""
    if is_trusted and annotations is not None:
        if annotations.read_only_hint:
            return "read"
        if annotations.idempotent_hint:
            return "idempotent"
    return "once"


def _add(offer: ServerOffer, name: str, shown: str, tool: types.Tool, *, is_trusted: bool) -> None:
    schemas: dict[str, dict[str, Any] | None] = {"input": tool.input_schema, "output": tool.output_schema}
    for kind, schema in schemas.items():
        try:
            schemas[kind] = None if schema is None else _usable(schema)
        except SchemaWrong as exc:
            if kind == "output":  # what it returns costs no tool: its results are not checked
                schemas[kind] = None
                continue
            offer.faults[shown] = f"Its {kind} schema cannot be used: {exc}."
            return
    tool = tool.model_copy(update={"input_schema": schemas["input"], "output_schema": schemas["output"]})
    try:
        offer.tools[name] = OfferedTool(tool.name, _definition(name, tool, is_trusted=is_trusted))
    except ValidationError as exc:
        offer.faults[shown] = f"It cannot be described: {exc.errors(include_url=False, include_input=False)[0]['msg']}."


def _usable(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema, if needed without parts that are invalid and decide nothing. Raises `SchemaWrong`."""
    try:
        compiled(schema)
    except SchemaWrong:
        schema, written = dict(without_senseless(schema)), schema
        if schema == written:
            raise
        compiled(schema)
    return schema


def _definition(name: str, tool: types.Tool, *, is_trusted: bool) -> ToolDefinition:
    hints = {} if tool.annotations is None else tool.annotations.model_dump(by_alias=True, exclude_none=True)
    if not is_trusted:
        hints = {hint: value for hint, value in hints.items() if _CAREFUL.get(hint, value) is value}
    shown = [icon for icon in tool.icons or () if _is_shown(icon)]
    return ToolDefinition(
        name=name,
        description=(tool.description or "")[:_LONGEST_DESCRIPTION].encode("utf-8", "replace").decode(),
        title=tool.title,
        icons=[icon.model_dump(mode="json", by_alias=True, exclude_none=True) for icon in shown] or None,
        meta=tool.meta if tool.meta and len(to_json(tool.meta, fallback=str)) <= _LARGEST_META else None,
        is_foreign=True,
        input_schema=tool.input_schema,
        output_schema=tool.output_schema,
        effect=effect_of(tool.annotations, is_trusted=is_trusted),
        annotations=ToolAnnotations.model_validate(hints) if hints else None,
    )


def _is_shown(icon: types.Icon) -> bool:
    """Return whether clients may be given an icon: they fetch its URL by themselves."""
    return icon.src.startswith(("https:", "data:image/")) and len(icon.src) <= _LARGEST_META


def method_of(name: str) -> str:
    """Return the method for a name of any form and length. One that is fit stays as it is.

    Of any other the readable start is kept, and its SHA-256's first 12 digits follow.
    """
    is_fit = _PLAIN_NAME.fullmatch(name) and len(name) <= _LONGEST_NAME
    if is_fit and name not in RESERVED and not _AMBIGUOUS.search(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    readable = _ILLEGAL.sub("_", name)[: _LONGEST_NAME - _DIGEST - 1].strip("_-")
    return f"{readable or 'tool'}-{digest}"


@dataclass(slots=True)
class ToolListing:
    """A server's list; `refused` are the invalid tools, each with the reason.

    `ttl_seconds`: its validity, if stated.
    """

    tools: list[types.Tool] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    ttl_seconds: float | None = None


async def listed_tools(connection: McpSession) -> ToolListing:
    """Return all of a server's tools, up to a page without a new name. Raises `ServerAway` if the server does not list them."""
    listing, names = ToolListing(), set[str]()
    connection.refused_tools.clear()
    cursor: str | None = None
    for _ in range(_MOST_PAGES):
        try:
            page = await connection.session.list_tools(params=types.PaginatedRequestParams(cursor=cursor))
        except (MCPError, ValidationError) as exc:
            if isinstance(exc, MCPError) and exc.code == types.METHOD_NOT_FOUND:
                break  # it has prompts or resources only
            why = exc.message if isinstance(exc, MCPError) else "its list is none"
            raise ServerAway(why[:500]) from None
        if page.ttl_ms:
            listing.ttl_seconds = page.ttl_ms / 1000
        is_first, known = cursor is None, len(names)
        names.update(tool.name for tool in page.tools)
        names.update(name for name, _ in connection.refused_tools)
        if len(names) == known and not is_first:
            break  # some servers give a cursor with each page
        listing.tools += page.tools
        cursor = page.next_cursor  # an empty one is a cursor as well
        if cursor is None or len(listing.tools) > MOST_TOOLS:
            break
    listing.refused = list(connection.refused_tools)
    connection.has_listed = True
    return listing


class ListChanges:
    """Says when to list: at first, when the server tells of a change, and after a pause. Fails to the pause."""

    def __init__(self, pause_seconds: float) -> None:
        self._usual = self._pause = pause_seconds
        self._changed = asyncio.Event()
        self._listed = asyncio.Event()
        self._in_a_row = 0

    def notice(self, said: types.ServerNotification) -> None:
        """Take a notification of the server's."""
        if said.method == _CHANGED:
            self._changed.set()

    def set_pause(self, ttl_seconds: float | None) -> None:
        """Keep the list for as long as the server says, within bounds; as usual where it says nothing."""
        shortest, longest = _TTL_SECONDS
        self._pause = self._usual if ttl_seconds is None else min(max(ttl_seconds, shortest), longest)

    def note_list(self, *, is_new: bool) -> None:
        """Note whether a list differs from the one before.

        Serving it means reading all of it again: an ever-changing one is listed less and less often.
        """
        self._in_a_row = self._in_a_row + 1 if is_new else 0

    @property
    def shortest_pause(self) -> float:
        """The seconds that there are at least before the next list."""
        doublings = max(0, min(self._in_a_row - _FREE_CHANGES, 10))
        return min(_SHORTEST_PAUSE * (1 << doublings), _LONGEST_PAUSE)

    def give_up_waiting(self) -> None:
        """End all waits for a first list."""
        self._listed.set()

    async def first(self, seconds: float) -> None:
        """Return once tools have been listed, or it is plain that it takes longer."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._listed.wait(), seconds)

    async def of(self, connection: McpSession) -> AsyncGenerator[None]:
        """Yield whenever the tools are to be listed, until the session ends."""
        listening = asyncio.ensure_future(self._listen(connection))
        try:
            while connection.is_open:
                self._changed.clear()
                yield
                self._listed.set()
                await asyncio.sleep(self.shortest_pause)
                try:
                    await asyncio.wait_for(self._changed.wait(), self._pause)
                except TimeoutError:
                    self._in_a_row = 0
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def _listen(self, connection: McpSession) -> None:
        """Hear of changes as newer servers tell of them; older ones send notifications without being asked."""
        tools = connection.capabilities.tools
        if connection.session.discover_result is None or tools is None or not tools.list_changed:
            return
        while connection.is_open:
            try:
                async with listen(connection.session, tools_list_changed=True) as changes:
                    async for _ in changes:
                        self._changed.set()
            except ListenNotSupportedError:
                return
            except (MCPError, SubscriptionLost, TimeoutError):
                pass
            await asyncio.sleep(_LISTEN_SECONDS)
            self._changed.set()  # what was missed meanwhile
