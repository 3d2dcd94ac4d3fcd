"""Makes a module of tools that something else than this process runs, and tells a listener when they change."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Generic, TypeVar, cast

from toolfleet_modules.calls.work import ServedTool
from toolfleet_modules.hosts.secrets import Secrets
from toolfleet_modules.sdk.module import Lifespan, ServedModule
from toolfleet_registry.contracts import ModuleManifest, ToolDefinition
from toolfleet_registry.contracts.tool_definition import ToolLines
from toolfleet_registry.once.port import OnceStore

_log = logging.getLogger("toolfleet.host")

Served = TypeVar("Served", bound=ServedTool)

Listener = Callable[[], Awaitable[None]]
"""Is told after what a host serves has changed."""


@dataclass(frozen=True, slots=True)
class HostOptions:
    """The options of serving the module `name`.

    `key`: with which the fleet signs its calls; `secrets`: values that its tools may use, and that are hidden
    everywhere.

    `calls`: at work at once; `request_bytes`, `result_bytes`: of one call; `longest_call_seconds`: how long a caller
    may wait for one, retries included. `lines`: the settings' overrides for its tools.
    """

    name: str
    _: KW_ONLY
    description: str = ""
    key: str = field(default="", repr=False)
    secrets: Secrets = field(default_factory=lambda: Secrets({}))
    calls: int = 1000
    request_bytes: int = 8 * 2**20
    result_bytes: int = 4 * 2**20
    longest_call_seconds: float = 4 * 3600
    lines: ToolLines = field(default_factory=ToolLines)


class Host(ServedModule, Generic[Served]):
    """A module whose `app` serves `tools`, by their full names. Its subclass sets `tools`, and calls `tell`.

    A subclass that accepts calls sets `follower` before `app` is used.
    """

    assumes_once = False
    """Return whether `once` is only assumed for tools that declare nothing, so that a line of the settings counts."""

    def __init__(
        self,
        options: HostOptions,
        *,
        replies: OnceStore | None = None,
        listener: Listener | None = None,
        lifespan: Lifespan | None = None,
    ) -> None:
        limits = {
            "calls": options.calls,
            "threads": 1,  # the tools' are in their own process
            "request_bytes": options.request_bytes,
            "result_bytes": options.result_bytes,
            "progress_seconds": 0.2,
        }
        super().__init__(
            options.name,
            description=options.description,
            replies=replies,
            longest_call_seconds=options.longest_call_seconds,
            limits=limits,
        )
        if lifespan is not None:
            self.lifespans.append(lifespan)
        self._key = options.key
        self._lines = options.lines
        self._tools: Mapping[str, Served] = {}
        self._listener = listener

    @property
    def tools(self) -> Mapping[str, Served]:
        """Return the tools that are served now, by full name, with the lines of the settings applied."""
        return self._tools

    @tools.setter
    def tools(self, tools: Mapping[str, Served]) -> None:
        self._tools = {name: self._lined(tool) for name, tool in tools.items()}
        if tools and (unmet := self._lines.unmet(tool.definition for tool in tools.values())):
            _log.warning("%s has no tools that [hosts.%s] names: %s.", self.name, self.name, ", ".join(unmet[:20]))

    def _lined(self, tool: Served) -> Served:
        hints, declared = tool.definition.annotations, tool.definition.effect
        says_more = hints is not None and (bool(hints.destructiveHint) or hints.idempotentHint is False)
        if self.assumes_once and declared == "once" and not says_more:
            declared = None
        found = self._lines.on(tool.definition, declared, lowers=True)
        return tool if found is tool.definition else cast("Served", replace(cast("Any", tool), definition=found))

    @property
    def definitions(self) -> list[ToolDefinition]:
        """The definitions of the served tools, by name."""
        return sorted((tool.definition for tool in self.tools.values()), key=lambda tool: tool.name)

    @property
    def manifest(self) -> ModuleManifest:
        """The manifest of the served tools."""
        return ModuleManifest(module_name=self.name, description=self.description, tools=self.definitions)

    @property
    def key(self) -> str:
        """The keys that verify tokens; empty where no token is checked."""
        return self._key

    async def tell(self) -> None:
        """Have the manifest written again, and notify the listener."""
        self._tools = dict(self._tools)  # another mapping: by that the app knows
        _log.info("%s serves %d tools.", self.name, self.manifest.listed_count)
        if self._listener is not None:
            await self._listener()
