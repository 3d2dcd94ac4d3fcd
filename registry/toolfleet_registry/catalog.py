"""The heart of the registry: which tools exist now, and which of them may this caller use."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass

from toolfleet_registry.admission import closed_tools
from toolfleet_registry.arguments import fault_in
from toolfleet_registry.contracts import (
    Caller,
    ErrorCode,
    ModuleManifest,
    ModuleStatus,
    ToolCall,
    ToolDefinition,
    ToolResult,
)
from toolfleet_registry.discovery import ManifestFailure, discover
from toolfleet_registry.errors import InvalidToolName
from toolfleet_registry.manifests import CachedManifest, ManifestCache
from toolfleet_registry.names import ToolName
from toolfleet_registry.permissions import module_denial, permits, reaches, tool_denial
from toolfleet_registry.settings import Settings
from toolfleet_registry.toolset import Modules, ToolSet


@dataclass(frozen=True, slots=True)
class _Failure:
    error: str
    at: float


@dataclass(frozen=True, slots=True)
class _State:
    """All that the catalog knows at one moment. Replaced as a whole, so that no reader sees half of a change."""

    manifests: Mapping[str, CachedManifest]
    failures: Mapping[str, _Failure]
    tools: ToolSet


class Catalog:
    """The tools of the modules in the settings, held in memory: a listing or a decision costs no round trip."""

    def __init__(self, settings: Settings, cache: ManifestCache) -> None:
        self._settings = settings
        self._cache = cache
        self._state = _state({}, {})
        self._is_filled = False
        self._filling = asyncio.Lock()

    async def ensure(self) -> None:
        """Fill an empty catalog, once: from the cache, or by asking the modules if the cache has nothing."""
        async with self._filling:
            if self._is_filled:
                return
            if not await self.load():
                await self.refresh()
            self._is_filled = True

    async def load(self) -> bool:
        """Take over what the cache holds now: after another process's look, for example.

        False, and nothing changes, if it holds nothing: it may have lost it, and only the modules know.
        """
        manifests = await self._cache.load(self._settings.module_services)
        if not manifests:
            return False
        failures = {
            module: failure
            for module, failure in self._state.failures.items()
            if module not in manifests or (manifests[module].discovered_at or 0) < failure.at
        }
        self._state = _state(manifests, failures)
        return True

    async def refresh(self) -> dict[str, ModuleStatus]:
        """Ask every module now. One that fails keeps the tools of its last good manifest."""
        looks = await discover(
            self._settings.module_services,
            timeout_seconds=self._settings.discovery_timeout_seconds,
            max_bytes=self._settings.max_manifest_bytes,
        )
        now = time.time()
        failures = {
            module: _Failure(look.error, now) for module, look in looks.items() if isinstance(look, ManifestFailure)
        }
        # One after the other: a connection for each module at once would be a burst for little gain.
        manifests = {
            module: await self._cache.save(look) for module, look in looks.items() if isinstance(look, ModuleManifest)
        }
        kept = [module for module in failures if await self._cache.renew(module)]
        manifests |= await self._cache.load(kept)
        self._state = _state(manifests, failures)
        return self.statuses()

    def statuses(self) -> dict[str, ModuleStatus]:
        """What is known of each module in the settings, by name."""
        state = self._state
        return {module: _status(module, state) for module in sorted(self._settings.module_services)}

    def tools(self, caller: Caller) -> list[ToolDefinition]:
        """What this caller may use, sorted by name."""
        return list(self._state.tools.usable(caller.permission, self._modules_of(caller)))

    def judge(self, call: ToolCall, caller: Caller) -> ToolDefinition | ToolResult:
        """The tool that the call may be published for, or the refusal that the caller gets."""
        try:
            name = ToolName.parse(call.tool_name)
        except InvalidToolName:
            return _refused(call, "invalid_tool_name", str(InvalidToolName(_shown(call.tool_name))))
        tool = self._usable_tool(name, call, caller)
        if isinstance(tool, ToolDefinition) and (fault := fault_in(call.arguments)):
            return _refused(call, "invalid_arguments", fault)
        return tool

    def _usable_tool(self, name: ToolName, call: ToolCall, caller: Caller) -> ToolDefinition | ToolResult:
        if name.module not in self._settings.module_services:
            return _refused(call, "unknown_module", f"Unknown module: {name.module}")
        # Before the tool is looked up: what a module offers is nobody's business who may not use it.
        if not reaches(name.module, self._modules_of(caller)):
            return _refused(call, "permission_denied", module_denial(name.module))
        tool = self._state.tools.find(call.tool_name)
        if tool is None:
            return _refused(call, "unknown_tool", f"Unknown tool: {name}", hint=self._hint(name, caller))
        if not permits(caller.permission, tool.required_permission):
            denial = tool_denial(tool.name, caller.permission, _shown(tool.required_permission))
            return _refused(call, "permission_denied", denial)
        return tool

    def _modules_of(self, caller: Caller) -> Modules:
        return self._settings.default_guest_modules if caller.allowed_modules is None else caller.allowed_modules

    def _hint(self, name: ToolName, caller: Caller) -> str | None:
        state = self._state
        if name.module not in state.manifests:
            return f"Module {name.module!r} is not reachable now; its tools may be there later."
        near = state.tools.near(name, caller.permission)
        return f"Did you mean {' or '.join(near)}?" if near else None


def _state(manifests: Mapping[str, CachedManifest], failures: Mapping[str, _Failure]) -> _State:
    return _State(manifests, failures, ToolSet(cached.manifest for cached in manifests.values()))


def _status(module: str, state: _State) -> ModuleStatus:
    failure = state.failures.get(module)
    cached = state.manifests.get(module)
    if cached is None:
        return ModuleStatus(module=module, ok=False, error=failure.error if failure else "no manifest yet")
    return ModuleStatus(
        module=module,
        ok=failure is None,
        tools=len(cached.manifest.tools),
        closed_tools=closed_tools(cached.manifest),
        error=failure.error if failure else None,
        age_seconds=cached.age_seconds,
    )


def _refused(call: ToolCall, code: ErrorCode, error: str, *, hint: str | None = None) -> ToolResult:
    return ToolResult.refused(_encodable(call.tool_name), code, error, hint=hint)


def _shown(text: str) -> str:
    """Foreign text for a reason: of a bounded length, and without what cannot be written to a terminal or a file."""
    return _encodable(text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…")


def _encodable(text: str) -> str:
    """`text`, with "?" for half surrogate pairs: a model can write them, and no output can."""
    return text.encode("utf-8", "replace").decode()


_MOST_SHOWN = 256
