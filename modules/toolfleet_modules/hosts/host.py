"""Makes a module of tools that another process or a service runs, and tells a listener when they change."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from toolfleet_modules.calls.work import ServedTool
from toolfleet_modules.hosts.secrets import Secrets
from toolfleet_modules.sdk.module import Lifespan, Limits, ServedModule
from toolfleet_registry.contracts import ModuleManifest, ToolDefinition
from toolfleet_registry.contracts.tool_definition import NO_TOOLS, InEffect, ToolLines, ToolLoadError
from toolfleet_registry.system import machine_clock

_log = logging.getLogger("toolfleet.host")

Served = TypeVar("Served", bound=ServedTool)

Listener = Callable[[], Awaitable[None]]
"""Is called after the tools that a host serves have changed."""

_MOST_ERRORS = 1000  # in a manifest
_LONGEST_PLACE, _LONGEST_KIND, _LONGEST_MESSAGE = 1024, 100, 1000

_PROGRESS_SECONDS = 0.2  # between two reports of a call's progress

_STEP_MS = 50  # without a change, after which the changes before are reported
_RESCAN_SECONDS = 5.0  # for file systems that report no changes
_RETURN_SECONDS = 1.0  # for a folder that has gone, and may come back


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
    """A module whose `app` serves `tools`, by their full names. A subclass sets `tools`, and calls `tell`.

    A subclass that accepts calls sets `follower` before `app` is used.
    """

    assumes_once = False
    """Whether `once` is only assumed for tools that declare nothing, so that a line of the settings counts."""

    def __init__(
        self, options: HostOptions, *, listener: Listener | None = None, lifespan: Lifespan | None = None
    ) -> None:
        threads = 1  # the tools' are in their own process
        super().__init__(
            options.name,
            description=options.description,
            replies=None,
            longest_call_seconds=options.longest_call_seconds,
            limits=Limits(options.calls, threads, options.request_bytes, options.result_bytes, _PROGRESS_SECONDS),
        )
        if lifespan is not None:
            self.lifespans.append(lifespan)
        self.load_errors: list[ToolLoadError] = []
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
        """The manifest of the served tools, with the load errors."""
        return ModuleManifest(
            module_name=self.name,
            description=self.description,
            tools=self.definitions,
            load_errors=self.load_errors or None,
        )

    @property
    def key(self) -> str:
        """The keys that verify tokens; empty where no token is checked."""
        return self._key

    def set_load_errors(self, errors: Iterable[ToolLoadError]) -> bool:
        """Put these errors into the manifest, and log the new ones; an error that was there keeps its time.

        Returns:
            Whether they differ from the errors before.
        """
        known = {_without_time(each): each for each in self.load_errors}
        latest = [known.get(_without_time(each), each) for each in errors][:_MOST_ERRORS]
        for each in latest:
            if _without_time(each) not in known:
                _log.log(
                    logging.INFO if each.error_type == NO_TOOLS else logging.ERROR,
                    "%s file=%s error=%s line=%s in_effect=%s: %s",
                    "tool_file_without_tools" if each.error_type == NO_TOOLS else "tool_load_failed",
                    each.file,
                    each.error_type,
                    each.line,
                    each.in_effect,
                    each.message,
                )
        is_changed = latest != self.load_errors
        self.load_errors = latest
        return is_changed

    async def reload(self) -> bool:
        """Serve the present state of the source; returns whether anything has changed. For hosts that watch files."""
        raise NotImplementedError

    async def reload_safely(self) -> None:
        """Reload, and log any error: the next change is processed all the same."""
        try:
            await self.reload()
        except Exception as exc:  # noqa: BLE001 - see above
            _log.error("%s was not reloaded", self.name, exc_info=exc)

    async def tell(self) -> None:
        """Have the manifest written again, and notify the listener."""
        self._tools = dict(self._tools)  # another mapping shows the app the change
        _log.info("%s serves %d tools.", self.name, self.manifest.listed_count)
        if self._listener is not None:
            await self._listener()


def load_error(
    file: str, kind: str, message: str, *, in_effect: InEffect = "none", line: int | None = None
) -> ToolLoadError:
    """Return an error for the manifest that was found now, with its texts cut to the lengths that are allowed there."""
    return ToolLoadError(
        file=file[:_LONGEST_PLACE],
        error_type=kind[:_LONGEST_KIND],
        message=message[:_LONGEST_MESSAGE],
        timestamp=machine_clock.wall(),
        line=line,
        in_effect=in_effect,
    )


def _without_time(error: ToolLoadError) -> tuple[object, ...]:
    return error.file, error.error_type, error.message, error.line, error.in_effect


async def file_changes(folder: Path, is_ours: Callable[[str], bool], *, debounce_ms: int) -> AsyncGenerator[None]:
    """Yield after changes of files that are ours by their path, gathered for `debounce_ms` at most, and every 5 s without."""
    from watchfiles import awatch  # the host of an MCP server watches no files

    while True:
        with contextlib.suppress(OSError):
            async for _ in awatch(
                folder,
                watch_filter=lambda _, path: is_ours(path),
                debounce=max(debounce_ms, _STEP_MS),
                step=min(debounce_ms, _STEP_MS) or 1,
                rust_timeout=int(_RESCAN_SECONDS * 1000),
                yield_on_timeout=True,
                recursive=False,
            ):
                yield
                if not await asyncio.to_thread(folder.is_dir):
                    break  # a folder that comes back is another one, whose changes would not be reported
        await asyncio.sleep(_RETURN_SECONDS)
        yield
