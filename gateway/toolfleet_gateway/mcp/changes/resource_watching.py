"""Has modules' servers tell of resources that a client watches: asked once by a call of its own, and kept up by a note in Redis."""

import asyncio
from collections.abc import Sequence

import mcp_types as types
from mcp.shared.exceptions import MCPError

from toolfleet_gateway.mcp.module_methods import ModuleMethods
from toolfleet_gateway.mcp.view import McpView
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.functions.passed_methods import LONGEST_URI, MOST_WATCHED, WATCH_METHOD
from toolfleet_registry.watching import WatchedResources
from toolfleet_tasks.aio.cancellation import end

_GRANT_SECONDS = 10.0  # for modules to answer: one that does not finds later what is watched
_AT_ONCE = 16  # calls for one client
_METHODS = {"resource": WATCH_METHOD, "resources": "resources/list", "prompts": "prompts/list"}


class ResourceWatching:
    """The resource watching of one gateway's clients.

    Each call is made with the client's permissions, and is in the audit.
    """

    def __init__(self, modules: ModuleMethods, watched: WatchedResources) -> None:
        self._modules = modules
        self._watched = watched

    async def sees(self, view: McpView, kind: str) -> bool:
        """Return whether a client may hear of such changes of its endpoint's module. From memory."""
        method = _METHODS.get(kind)
        return method is not None and await self._modules.has(view, method)

    async def watch(self, view: McpView, uri: str) -> None:
        """Have one resource watched. Raises `MCPError`, that of the server or of the call."""
        check_uri(uri)
        await self._note(view, [uri])
        await self._modules.asked(view, WATCH_METHOD, {"uri": uri})

    async def watch_all(self, view: McpView, uris: Sequence[str]) -> list[str]:
        """Watch resources.

        Returns those that may be watched; a module that is away will report on them when it is back.

        Raises `MCPError` for resources that cannot be watched.
        """
        wanted = list(dict.fromkeys(uris))
        if len(wanted) > MOST_WATCHED:
            raise MCPError(types.INVALID_PARAMS, f"At most {MOST_WATCHED} resources can be watched by one client.")
        for uri in wanted:
            check_uri(uri)
        if not wanted or not await self.sees(view, "resource"):
            return []
        await self._note(view, wanted)
        places = asyncio.Semaphore(_AT_ONCE)
        asking = {uri: asyncio.create_task(self._is_granted(view, uri, places)) for uri in wanted}
        try:
            await asyncio.wait(asking.values(), timeout=_GRANT_SECONDS)
            return [uri for uri, task in asking.items() if not task.done() or task.result()]
        finally:
            await end(asking.values())

    async def renew(self, view: McpView, uris: Sequence[str]) -> None:
        """Renew the watched resources. Raises `FleetUnavailable`."""
        if view.module is not None:
            await self._watched.watch(view.module, uris)

    async def _is_granted(self, view: McpView, uri: str, places: asyncio.Semaphore) -> bool:
        async with places:
            try:
                await self._modules.asked(view, WATCH_METHOD, {"uri": uri})
            except MCPError as exc:
                return isinstance(exc.data, dict) and bool(exc.data.get("retryable"))
        return True

    async def _note(self, view: McpView, uris: Sequence[str]) -> None:
        try:
            await self.renew(view, uris)
        except FleetUnavailable:
            raise MCPError(types.INTERNAL_ERROR, "The fleet's Redis does not answer.") from None


def check_uri(uri: str) -> None:
    """Raise `MCPError` for an invalid address of a resource."""
    if not 0 < len(uri) <= LONGEST_URI:
        raise MCPError(types.INVALID_PARAMS, f"The address of a resource has between 1 and {LONGEST_URI} characters.")
    try:
        uri.encode()
    except UnicodeEncodeError:
        raise MCPError(types.INVALID_PARAMS, "The address of a resource must be text.") from None
