"""Lists a caller's tools in a framework's form, and converts only the changed ones again."""

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

from toolfleet_registry.contracts import Caller, ToolDefinition
from toolfleet_registry.contracts.names import provider_name

T = TypeVar("T")

_MOST_CALLERS = 64  # kinds of callers whose listings are kept


class ToolOffers(Generic[T]):
    """The tools of a fleet as `make` writes them, by the names under which providers take them.

    `list_tools` returns those that a caller may use, sorted by name. `where` says which of them are offered. Nothing is
    asked of Redis: a listing is compared with the one before, and while nothing has changed the answer is the same object.
    """

    def __init__(
        self,
        list_tools: Callable[[Caller], Awaitable[list[ToolDefinition]]],
        make: Callable[[ToolDefinition, str], T],
        where: Callable[[ToolDefinition], bool] | None = None,
    ) -> None:
        self._list_tools = list_tools
        self._make = make
        self._where = where
        self._kept: dict[tuple[object, object], tuple[list[ToolDefinition], Mapping[str, T]]] = {}

    async def of(self, caller: Caller) -> Mapping[str, T]:
        """Return this caller's present offers, sorted by name.

        Raises `FleetUnavailable` if nothing is known yet, and Redis is silent.
        """
        tools = await self._list_tools(caller)
        kind = caller.permission, caller.allowed_modules
        before, offers = self._kept.get(kind, ([], None))
        if offers is not None and tools == before:
            return offers
        known = {tool.name: tool for tool in before}
        made: dict[str, T] = {}
        for tool in tools if self._where is None else filter(self._where, tools):
            name = provider_name(tool.name)
            is_same = (seen := known.get(tool.name)) is tool or seen == tool
            made[name] = offers[name] if is_same and offers and name in offers else self._make(tool, name)
        while len(self._kept) >= _MOST_CALLERS:
            self._kept.pop(next(iter(self._kept)))
        listing: Mapping[str, T] = MappingProxyType(made)
        self._kept[kind] = tools, listing
        return listing
