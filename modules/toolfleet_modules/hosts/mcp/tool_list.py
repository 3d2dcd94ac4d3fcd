"""Lists a server's tools, page by page, and says when to list them again."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import mcp_types as types
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost, listen
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from toolfleet_modules.hosts.mcp.definitions import MOST_TOOLS
from toolfleet_modules.hosts.mcp.mcp_session import McpSession
from toolfleet_modules.hosts.mcp.server_away import ServerAway

_CHANGED = "notifications/tools/list_changed"
_MOST_PAGES = 1000
_SHORTEST_PAUSE = 1.0  # seconds between two lists, however often a server says that they change
_LONGEST_PAUSE = 30.0  # the same for a server whose lists never stay
_FREE_CHANGES = 3  # lists in a row that differ, before the pause between them grows
_TTL_SECONDS = (5.0, 3600.0)  # what a server may have us keep its list for
_LISTEN_SECONDS = 5.0  # until a stream of changes that ended is asked for again


@dataclass(slots=True)
class ToolListing:
    """A server's list; `refused` are the invalid tools, each with the reason.

    `ttl_seconds`: its validity, if stated.
    """

    tools: list[types.Tool] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    ttl_seconds: float | None = None


async def listed_tools(connection: McpSession) -> ToolListing:
    """All of them, up to a page that brings no new name. Raises `ServerAway` if the server does not list them."""
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
