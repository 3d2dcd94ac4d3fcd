"""The heart of the registry: which tools exist now, and which of them may this caller use."""

import asyncio
import functools
import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolfleet_registry.arguments import fault_in
from toolfleet_registry.aside import aside
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
from toolfleet_registry.errors import InvalidToolName, RegistryAway
from toolfleet_registry.hints import FOR_NOBODY
from toolfleet_registry.local_tools import look_at_local
from toolfleet_registry.manifests import CachedManifest, ManifestCache
from toolfleet_registry.names import ToolName
from toolfleet_registry.permissions import Modules, denial, module_denial, reaches
from toolfleet_registry.registrar import OpenRegistry, Registrar
from toolfleet_registry.scheduler_tools import look_at_scheduler
from toolfleet_registry.schemas.validation import Checked, checked
from toolfleet_registry.search import ToolSearch
from toolfleet_registry.settings import Settings
from toolfleet_registry.store.factory import open_store
from toolfleet_registry.toolset import ToolSet, described
from toolfleet_registry.verdicts import broken_tools, seen_tools

_MANY = 200  # tools: to sort and index them takes some ms, which an event loop should not wait


@dataclass(frozen=True, slots=True)
class Judged:
    """A call that may be published: its tool, and its arguments as the tool takes them."""

    tool: ToolDefinition
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Failure:
    error: str
    at: float


@dataclass(frozen=True, slots=True)
class _State:
    """All that the catalog knows at one moment. Replaced as a whole, so that no reader sees half of a change."""

    manifests: Mapping[str, CachedManifest] = field(default_factory=dict[str, CachedManifest])
    failures: Mapping[str, _Failure] = field(default_factory=dict[str, _Failure])
    tools: ToolSet = field(default_factory=ToolSet)


class Catalog:
    """The tools of the modules in the settings, held in memory: a listing or a decision costs no round trip.

    `open_registry` is for tests; by default it is what the settings say.
    """

    def __init__(self, settings: Settings, cache: ManifestCache, open_registry: OpenRegistry | None = None) -> None:
        self._settings = settings
        self._modules = settings.modules
        self._cache = cache
        self._registrar = Registrar(cache, open_registry or functools.partial(open_store, settings))
        self._state = _State()
        self._search: tuple[ToolSet, ToolSearch] | None = None
        self._reads = itertools.count(1)
        self._shown = 0  # the read that made the present state
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
        read = next(self._reads)
        manifests = await self._cache.load(self._modules)
        if not manifests:
            return False
        failures = {
            module: failure
            for module, failure in self._state.failures.items()
            if module not in manifests or (manifests[module].discovered_at or 0) < failure.at
        }
        await self._take_over(read, manifests, failures)
        return True

    async def refresh(self) -> dict[str, ModuleStatus]:
        """Ask every module now, and take into the registry what they offer. One that fails keeps its last good tools.

        So do all, if the registry does not answer: without it nobody knows what operators have switched off.
        """
        looks = await discover(
            self._settings.module_services,
            timeout_seconds=self._settings.discovery_timeout_seconds,
            max_bytes=self._settings.max_manifest_bytes,
        )
        looks |= await look_at_local(self._settings)
        looks |= look_at_scheduler(self._settings)
        errors = {module: look.error for module, look in looks.items() if isinstance(look, ManifestFailure)}
        found = {module: look for module, look in looks.items() if isinstance(look, ModuleManifest)}
        try:
            taken = await self._registrar.take_in(found)
            manifests, errors = taken.saved, errors | taken.errors
        except RegistryAway as exc:
            manifests = {}
            errors |= dict.fromkeys(found, str(exc))
        kept = [module for module in errors if await self._cache.renew(module)]
        manifests |= await self._cache.load(kept)
        now = time.time()
        failures = {module: _Failure(error, now) for module, error in errors.items()}
        await self._take_over(next(self._reads), manifests, failures)
        return self.statuses()

    def statuses(self) -> dict[str, ModuleStatus]:
        """What is known of each module in the settings, by name."""
        state = self._state
        return {module: self._status(module, state) for module in sorted(self._modules)}

    def tools(self, caller: Caller) -> list[ToolDefinition]:
        """What this caller may use, sorted by name."""
        return list(self._state.tools.usable(caller.permission, self._modules_of(caller)))

    def judge(self, call: ToolCall, caller: Caller, told: Mapping[str, Any] | None = None) -> Judged | ToolResult:
        """What may be published for the call, or the refusal that the caller gets.

        `told` is what the module is told by the core, and is among the arguments. They are judged with all of it; where
        the tool's schema has no room for that, with what it names at its top.
        """
        tool = self.usable(call, caller)
        if isinstance(tool, ToolResult):
            return tool
        if fault := fault_in(call.arguments):
            return _refused(call, "invalid_arguments", fault)
        coerces = ToolName.parse(tool.name).module in self._settings.coerce_numbers_modules
        if told:
            result = _checked_with(told, tool, call.arguments, coerces_numbers=coerces)
        else:
            result = checked(tool, call.arguments, coerces_numbers=coerces)
        if result.arguments is None:
            return _refused(call, "invalid_arguments", str(result.fault))
        return Judged(tool, result.arguments)

    def usable(self, call: ToolCall, caller: Caller) -> ToolDefinition | ToolResult:
        """The call's tool, if the caller may use it, whatever the arguments are; or the refusal."""
        try:
            name = ToolName.parse(call.tool_name)
        except InvalidToolName:
            return _refused(call, "invalid_tool_name", str(InvalidToolName(_shown(call.tool_name))))
        return self._usable_tool(name, call, caller)

    async def search(
        self, text: str, caller: Caller, *, tags: Sequence[str] = (), limit: int = 20
    ) -> list[ToolDefinition]:
        """At most `limit` of the tools that this caller may use: with a word of `text` and all `tags`, the best first."""
        modules = self._modules_of(caller)
        tools = self._state.tools

        def find() -> list[ToolDefinition]:
            index = self._index_of(tools)
            found = index.find(
                text,
                may=lambda tool: denial(tool.access, caller.permission, modules) is None,
                tags=frozenset(tags),
                limit=limit,
            )
            return [described(tool) for tool in found]

        return await asyncio.to_thread(find)

    def _index_of(self, tools: ToolSet) -> ToolSearch:
        """The index of these tools; two who ask for a new one at the same moment may both make it."""
        known = self._search
        if known is None or known[0] is not tools:
            known = self._search = (tools, ToolSearch(tools.all()))
        return known[1]

    def _usable_tool(self, name: ToolName, call: ToolCall, caller: Caller) -> ToolDefinition | ToolResult:
        if name.module not in self._modules:
            return _refused(call, "unknown_module", f"Unknown module: {name.module}")
        modules = self._modules_of(caller)
        tool = self._state.tools.find(call.tool_name)
        if tool is None:
            # What a module offers is nobody's business who may not use it.
            if not reaches(name.module, modules):
                return _refused(call, "permission_denied", module_denial(name.module))
            return _refused(call, "unknown_tool", f"Unknown tool: {name}", hint=self._hint(name, caller))
        if reason := denial(tool.access, caller.permission, modules):
            hint = FOR_NOBODY if reason == tool.access.closed else None
            return _refused(call, "permission_denied", reason, hint=hint)
        return tool.definition

    def _modules_of(self, caller: Caller) -> Modules:
        return self._settings.default_guest_modules if caller.allowed_modules is None else caller.allowed_modules

    def _hint(self, name: ToolName, caller: Caller) -> str | None:
        state = self._state
        if name.module not in state.manifests:
            return f"Module {name.module!r} is not reachable now; its tools may be there later."
        near = state.tools.near(name, caller.permission)
        return f"Did you mean {' or '.join(near)}?" if near else None

    def _status(self, module: str, state: _State) -> ModuleStatus:
        failure = state.failures.get(module)
        cached = state.manifests.get(module)
        if cached is None:
            return ModuleStatus(module=module, ok=False, error=failure.error if failure else "no manifest yet")
        names = {tool.name for tool in cached.manifest.tools}
        verdicts = {name: verdict for name, verdict in cached.verdicts.items() if name in names}
        age = cached.age_seconds
        return ModuleStatus(
            module=module,
            ok=failure is None,
            tools=len(names),
            closed_tools=broken_tools(cached.manifest, cached.verdicts),
            error=failure.error if failure else None,
            age_seconds=age,
            is_stale=age is not None and age > self._settings.manifest_stale_seconds,
            disabled=sum(verdict.is_disabled for verdict in verdicts.values()),
            withheld=sum(verdict.is_withheld for verdict in verdicts.values()),
            drifted=sum(verdict.digest is not None and not verdict.is_withheld for verdict in verdicts.values()),
        )

    async def _take_over(
        self, read: int, manifests: Mapping[str, CachedManifest], failures: Mapping[str, _Failure]
    ) -> None:
        """Show what was read, unless something that was read later is shown already."""

        def tools() -> ToolSet:
            seen = (seen_tools(cached.manifest, cached.verdicts) for cached in manifests.values())
            return ToolSet(itertools.chain.from_iterable(seen))

        is_large = sum(len(cached.manifest.tools) for cached in manifests.values()) > _MANY
        made = await aside(tools, is_large=is_large)
        if read > self._shown:
            self._shown, self._state = read, _State(manifests, failures, made)


def _checked_with(
    told: Mapping[str, Any], tool: ToolDefinition, arguments: dict[str, Any], *, coerces_numbers: bool
) -> Checked:
    whole = checked(tool, {**arguments, **told}, coerces_numbers=coerces_numbers)
    if whole.arguments is not None:
        return whole
    properties = {} if tool.input_schema is None else tool.input_schema.get("properties")
    names = {*(properties if isinstance(properties, dict) else ()), *(parameter.name for parameter in tool.parameters)}
    named = {name: value for name, value in told.items() if name in names}
    part = checked(tool, {**arguments, **named}, coerces_numbers=coerces_numbers)
    rest = {name: value for name, value in told.items() if name not in named}
    return part if part.arguments is None else Checked({**part.arguments, **rest})


def _refused(call: ToolCall, code: ErrorCode, error: str, *, hint: str | None = None) -> ToolResult:
    return ToolResult.refused(_encodable(call.tool_name), code, error, hint=hint)


def _shown(text: str) -> str:
    """Foreign text for a reason: of a bounded length, and without what cannot be written to a terminal or a file."""
    return _encodable(text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…")


def _encodable(text: str) -> str:
    """`text`, with "?" for half surrogate pairs: a model can write them, and no output can."""
    return text.encode("utf-8", "replace").decode()


_MOST_SHOWN = 256
