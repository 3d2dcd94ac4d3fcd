"""Holds the tools that exist now, and decides which of them a caller may use: the heart of the registry."""

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from toolfleet_registry.agents.known_profiles import KnownProfiles, Reach, reach_of
from toolfleet_registry.agents.live_profiles import LiveProfiles
from toolfleet_registry.catalog.manifest_reader import ManifestReader
from toolfleet_registry.config.run_file import unknown_module, why_not_applied
from toolfleet_registry.contracts import (
    NEVER_PROBED,
    Caller,
    ErrorCode,
    ModuleStatus,
    ToolCall,
    ToolDefinition,
    ToolResult,
)
from toolfleet_registry.contracts.names import ARTIFACTS, PROGRAMS, ToolName
from toolfleet_registry.contracts.tool_definition import by_any_name
from toolfleet_registry.directory.directory import ModuleDirectory, ProbeFailure
from toolfleet_registry.directory.known_modules import KnownModules
from toolfleet_registry.directory.requests import MODULES_AT_ONCE
from toolfleet_registry.errors import InvalidToolName, RegistryAway, UnknownAgent
from toolfleet_registry.local.scheduler_tools import probe_scheduler
from toolfleet_registry.manifests.manifest_cache import (
    CachedManifest,
    ManifestCache,
    SeenTool,
    broken_tools,
    pending_because,
    seen_tools,
)
from toolfleet_registry.permissions import Modules, Permission, denial, level_of_caller, module_denial, reaches
from toolfleet_registry.policy.call_faults import fault_in_call
from toolfleet_registry.policy.hints import CLOSED_TO_ALL
from toolfleet_registry.schemas.arguments import size_fault
from toolfleet_registry.schemas.checker import Checker
from toolfleet_registry.schemas.definition import input_schema
from toolfleet_registry.schemas.effort import is_small
from toolfleet_registry.schemas.validation import checked, checked_with
from toolfleet_registry.searching import SearchDocument, TextIndex
from toolfleet_registry.settings import Settings
from toolfleet_registry.specs import effect_of
from toolfleet_registry.system import fleet_clock
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.system.offload import aside
from toolfleet_registry.system.process import this_process

if TYPE_CHECKING:
    from toolfleet_registry.catalog.registration import OpenRegistry
    from toolfleet_registry.manifests.discovery import DiscoveryResult

_log = get_logger(__name__)

_MOST_LISTINGS = 256  # kinds of callers; each listing holds a reference for every tool
_MOST_COMPARED = 500  # names; comparing two takes some 20 µs, and the event loop waits
_LONGEST_COMPARED = 64  # characters; the time grows with their square
_LONGEST_SUCCESSOR = 256  # characters of what a module says

_MOST_NAMED = 5  # modules

_NOT_NAMED = (
    "the caller is a guest without allowed_modules, and TOOLFLEET_DEFAULT_GUEST_MODULES does not have these modules"
)
_NAMED = "the caller's allowed_modules do not have these modules"

_MANY = 200  # tools: to sort and index them takes some ms, which an event loop should not wait

_PROBE_MARGIN_SECONDS = 10.0  # beyond a module's time to answer: others are asked before it, and all is taken in

_MOST_SHOWN = 256  # characters of foreign text


class ToolSet:
    """The tools by name: finds one, lists those that a caller may use, and suggests similar names."""

    def __init__(self, tools: Iterable[SeenTool] = ()) -> None:
        self._by_name = {tool.definition.name: tool for tool in tools}
        self._by_any_name = by_any_name(self._by_name, lambda tool: tool.definition)
        listed = sorted(name for name, tool in self._by_name.items() if tool.definition.listed)
        self._sorted = [(self._by_name[name].access, _described(self._by_name[name])) for name in listed]
        self._listings: dict[tuple[Permission, Modules], tuple[ToolDefinition, ...]] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def all(self) -> Iterable[SeenTool]:
        """Return all tools, regardless of who may use them."""
        return self._by_name.values()

    def find(self, name: str) -> SeenTool | None:
        """Return the tool that has or had this name, regardless of who may use it."""
        return self._by_any_name.get(name)

    def usable(self, permission: str, modules: Modules) -> tuple[ToolDefinition, ...]:
        """Return the tools that a caller with `permission` may use in `modules`, sorted by name, but for those that are not listed."""
        kind = (level_of_caller(permission), modules)
        listing = self._listings.get(kind)
        if listing is None:
            listing = tuple(tool for access, tool in self._sorted if denial(access, permission, modules) is None)
            if len(self._listings) >= _MOST_LISTINGS:
                self._listings.clear()
            self._listings[kind] = listing
        return listing

    def callable_by(self, permission: str, modules: Modules) -> list[ToolDefinition]:
        """Return the tools that the caller may call, including unlisted ones, in no order; computed each time."""
        tools = self._by_name.values()
        return [tool.definition for tool in tools if denial(tool.access, permission, modules) is None]

    def near(self, name: ToolName, permission: str, modules: Modules) -> list[str]:
        """Return up to three usable tools in `modules` with a similar name; if `modules` is just the name's own module, that module's name is ignored."""
        import difflib  # needed after a mistake only

        if len(str(name)) > _LONGEST_COMPARED:
            return []
        names = [tool.name for tool in islice(self.usable(permission, modules), _MOST_COMPARED)]
        if modules != frozenset({name.module}):
            return difflib.get_close_matches(str(name), names)
        methods = [ToolName.parse(near).method for near in names]
        return [f"{name.module}.{method}" for method in difflib.get_close_matches(name.method, methods)]


def _described(tool: SeenTool) -> ToolDefinition:
    """Return the tool as it is listed: a deprecated one says so first, and what to use instead."""
    definition = tool.definition
    if not definition.deprecated:
        return definition
    instead = f": use {definition.successor[:_LONGEST_SUCCESSOR]!r} instead" if definition.successor else ""
    return definition.model_copy(update={"description": f"Deprecated{instead}. {definition.description}".rstrip()})


class ToolSearch(TextIndex[SeenTool]):
    """An index of tools as they are in effect."""

    def __init__(self, tools: Iterable[SeenTool]) -> None:
        super().__init__((_document(tool.definition), tool) for tool in tools)


def _document(tool: ToolDefinition) -> SearchDocument:
    # Their words, such as `read` and `search`, are in many questions: their tags are found. An older module of that name has none of these.
    module = tool.name.partition(".")[0]
    if module in {ARTIFACTS, PROGRAMS} and tool.tags[:1] == [module]:
        return SearchDocument(module, tool.tags, "", {})
    properties: Any = input_schema(tool).get("properties")
    arguments: Mapping[str, Any] = properties if isinstance(properties, dict) else {}
    return SearchDocument(tool.name, tool.tags, tool.description, arguments)


def say_hidden(tools: ToolSet, caller: Caller, modules: Modules) -> None:
    """Log the tools that `caller` could use outside of `modules`: a warning if the modules are a default, otherwise for information."""
    reason = _NOT_NAMED if caller.allowed_modules is None else _NAMED
    if modules == "*" or reason in (said := this_process().part(_said)):
        return
    listed = tools.usable(caller.permission, modules)
    everywhere = tools.usable(caller.permission, "*")
    if len(everywhere) == len(listed):
        return
    said.add(reason)
    left_out = sorted({tool.name.partition(".")[0] for tool in everywhere} - {*modules})
    named = ", ".join(left_out[:_MOST_NAMED]) + (" …" if len(left_out) > _MOST_NAMED else "")
    log = _log.warning if reason is _NOT_NAMED else _log.info
    log("tools_hidden", hidden=len(everywhere) - len(listed), listed=len(listed), modules=named, reason=reason)


def _said() -> set[str]:
    return set()


@dataclass(slots=True)
class Judged:
    """A call that may be published: its tool, its arguments as the tool takes them, and what its caller reaches."""

    tool: ToolDefinition
    arguments: dict[str, Any]
    reach: Reach


class Catalog:
    """The tools of the modules that are known, held in memory: a listing or a decision costs no round trip.

    `open_registry` is for tests; by default it is what the settings say. `known` are the modules, and takes over what the
    `directory` says with each reading; without one they are those of the settings. So with the `profiles` of agents.
    `asks_fleet`: an agent's, which has the fleet ask the modules rather than itself.
    """

    def __init__(
        self,
        settings: Settings,
        cache: ManifestCache,
        open_registry: "OpenRegistry | None" = None,
        *,
        known: KnownModules | None = None,
        directory: ModuleDirectory | None = None,
        profiles: LiveProfiles | None = None,
        asks_fleet: bool = False,
    ) -> None:
        self._settings, self._open_modules = settings, settings.open_modules
        self._known = KnownModules(settings) if known is None else known
        self.profiles = KnownProfiles(settings) if profiles is None else profiles.known
        """Those of agents."""
        self._live_profiles = profiles
        self._directory, self._asks_fleet = directory, asks_fleet
        self._reader = ManifestReader.of(settings, cache, open_registry, is_agents=asks_fleet)
        self._state = CatalogState()
        self.revision: object = self._state
        """Another object after each change of what there is, and of what operators have decided about it."""
        self._search: tuple[ToolSet, ToolSearch] | None = None
        self._reads = itertools.count(1)
        self._shown = 0  # the read that made the present state
        self._is_filled = False
        self._filling = asyncio.Lock()

    async def ensure(self) -> None:
        """Fill an empty catalog, once: from the cache, or by having the modules asked if the cache has nothing."""
        async with self._filling:
            if not self._is_filled:
                await self.reload()
                self._is_filled = True

    async def reload(self) -> None:
        """Take over what the cache holds; where it has lost everything, only the modules know."""
        if not await self.load():
            await self.refresh()

    async def load(self) -> bool:
        """Take over what the cache holds now: after another process's look, for example.

        False, and nothing changes, if there are modules and it holds nothing: it may have lost it, and only the modules know.
        """
        read = next(self._reads)
        await self._read_directory()
        found = await self._reader.read(self.modules, self._state.manifests, needs_cache=True)
        manifests = found.manifests
        if not manifests and self.modules:
            return False
        noted = {} if self._directory is None else await self._directory.failures.read()
        failures = _newer_failures({**self._state.failures, **noted}, manifests)
        await self._take_over(read, manifests, failures)
        return True

    async def refresh(self) -> dict[str, ModuleStatus]:
        """Probe every module now and register the tools it offers. A module that fails keeps its last good tools.

        All modules keep them if the registry does not answer: without it, the tools that operators have switched off
        are unknown. In an agent the fleet's workers probe; if there are none, the agent probes itself, and logs that.
        """
        await self._read_directory()
        if not await self._fleet_has_probed() or not await self.load():
            await self._probe()
        return self.statuses()

    async def _probe(self) -> None:
        from toolfleet_registry.manifests.discovery import ManifestFailure, offered_by  # workers do it, most often

        probes = await _probe_modules(self._known, self._settings, imports_local=not self._asks_fleet)
        errors = {module: probe.error for module, probe in probes.items() if isinstance(probe, ManifestFailure)}
        found = {module: offered for module, probe in probes.items() if (offered := offered_by(probe)) is not None}
        try:
            taken = await self._reader.registrar.take_in(found)
            manifests, errors = taken.saved, errors | taken.errors
        except RegistryAway as exc:
            manifests = {}
            errors |= dict.fromkeys(found, str(exc))
        cache = self._reader.cache
        kept = [module for module in errors if module not in manifests and await cache.renew(module)]
        manifests |= await cache.load([*kept, *(self.modules - probes.keys())])
        expired = await self._reader.read_kept(self.modules - manifests.keys(), self._state.manifests)
        manifests |= expired.manifests
        now = fleet_clock.now()
        failures = {module: ProbeFailure(error, now) for module, error in errors.items()}
        if self._directory is not None:
            await self._directory.failures.note(failures, probes.keys() - errors.keys())
            failures = _newer_failures(await self._directory.failures.read() | failures, manifests)
        await self._take_over(next(self._reads), manifests, failures)

    async def _fleet_has_probed(self) -> bool:
        """Return whether workers have probed the modules for this process.

        They do not know modules that only its settings name.
        """
        if not self._asks_fleet or self._directory is None:
            return False
        is_theirs = self._settings.modules <= self._known.entries.keys()
        seconds = self._settings.discovery_timeout_seconds + _PROBE_MARGIN_SECONDS
        if (
            is_theirs
            and await self._directory.is_tended()
            and await self._directory.requested_probes.request(seconds=seconds)
        ):
            return True
        _log.info("agent_looks_itself", modules=len(self._known.settings.module_services))
        return False

    def statuses(self) -> dict[str, ModuleStatus]:
        """Return the status of each module, by name."""
        state, stale = self._state, self._settings.manifest_stale_seconds
        return {module: state.status(module, stale_seconds=stale) for module in sorted(self.modules)}

    def tools(self, caller: Caller) -> list[ToolDefinition]:
        """Return the tools this caller may use, sorted by name; none for an unknown agent.

        Logs once how many its modules leave out.
        """
        tools, reach = self._state.tools, self._listed_for(caller)
        if reach is None:
            return []
        say_hidden(tools, caller, reach.modules)
        return reach.among(tools.usable(reach.caller.permission, reach.modules))

    def callable_by(self, caller: Caller) -> list[ToolDefinition]:
        """Return the tools this caller may call, listed or not."""
        reach, tools = self._listed_for(caller), self._state.tools
        return [] if reach is None else reach.among(tools.callable_by(reach.caller.permission, reach.modules))

    def judge(self, call: ToolCall, caller: Caller, context: Mapping[str, Any] | None = None) -> Judged | ToolResult:
        """Return what may be published for the call, or the refusal that the caller gets.

        `context` is what the core tells the module, and is among the arguments. They are validated with all of it; if
        the tool's schema has no room for that, with the fields that it names at its top level.
        """
        if isinstance(found := self.found(call, caller), ToolResult):
            return found
        tool, reach = found
        arguments = self.judge_arguments(call, caller, tool, context)
        return arguments if isinstance(arguments, ToolResult) else Judged(tool, arguments, reach)

    def judge_arguments(
        self,
        call: ToolCall,
        caller: Caller,
        tool: ToolDefinition,
        context: Mapping[str, Any] | None = None,
        checker: Checker | None = None,
    ) -> dict[str, Any] | ToolResult:
        """Return the arguments as `judge` does, of a call by a caller with access to the tool. `checker`: as of `checked`."""
        most, are_small = self._settings.max_arguments_bytes, is_small(call.arguments)
        if fault := fault_in_call(call, caller, most_bytes=most, are_small=are_small):
            return _refused(call, "invalid_arguments", fault)
        coerced = self._settings.coerce_numbers_modules
        numbers = bool(coerced) and ToolName.parse(tool.name).module in coerced
        is_plain = are_small and not (numbers or context)
        if is_plain and checker is not None and checker.takes_small and checker.fits(call.arguments):
            arguments: dict[str, Any] = call.arguments
            return arguments
        if context:
            result = checked_with(context, tool, call.arguments, coerces_numbers=numbers)
        else:
            result = checked(tool, call.arguments, coerces_numbers=numbers, are_small=are_small, checker=checker)
        if result.arguments is None:
            return _refused(call, "invalid_arguments", str(result.fault))
        if result.arguments is not call.arguments and (fault := size_fault(result.arguments, most=most)):
            return _refused(call, "invalid_arguments", fault)
        return result.arguments

    def usable(self, call: ToolCall, caller: Caller) -> ToolDefinition | ToolResult:
        """Return the call's tool if the caller may use it, with any arguments; otherwise the refusal."""
        found = self.found(call, caller)
        return found if isinstance(found, ToolResult) else found[0]

    def reached(self, tool_name: str, caller: Caller) -> tuple[ToolDefinition, Reach] | None:
        """Return the tool, and what the caller reaches, if that has the tool in it."""
        found = self.found(ToolCall(tool_name=tool_name), caller)
        return None if isinstance(found, ToolResult) else found

    def reaches(self, tool_name: str, caller: Caller) -> bool:
        """Return whether the caller may know that the tool exists: it may use it, or could if it were not closed to all."""
        tool, reach = self.find(tool_name), self._listed_for(caller)
        return tool is not None and reach is not None and not reach.hides(tool)

    def absence(self, tool_name: str, caller: Caller) -> ToolResult:
        """Return the refusal of a tool that does not exist, as far as this caller is to know: it names only what they may use."""
        call, reach, hint = ToolCall(tool_name=tool_name), self._listed_for(caller), None
        with contextlib.suppress(InvalidToolName):
            hint = None if reach is None else self._hint(ToolName.parse(tool_name), reach)
        return _refused(call, "unknown_tool", "There is no such tool for this caller.", hint=hint)

    async def search(
        self, text: str, caller: Caller, *, tags: Sequence[str] = (), limit: int = 20
    ) -> list[ToolDefinition]:
        """Return at most `limit` tools this caller may use that match a word of `text` and have all `tags`, the best first."""
        tools, reach, needed = self._state.tools, self._listed_for(caller), frozenset(tags)
        if reach is None:
            return []

        def may(tool: SeenTool) -> bool:
            return tool.definition.listed and reach.denial(tool) is None

        def find() -> list[ToolDefinition]:
            return [_described(one) for one in self._index_of(tools).find(text, may=may, tags=needed, limit=limit)]

        return await asyncio.to_thread(find)

    @property
    def modules(self) -> frozenset[str]:
        """The known modules."""
        return self._known.names

    def find(self, tool_name: str) -> SeenTool | None:
        """Return the tool as it is in effect, regardless of who may use it."""
        return self._state.tools.find(tool_name)

    async def _read_directory(self) -> None:
        if self._directory is not None:
            self._known.take((await self._directory.read()).entries)
        if self._live_profiles is not None:
            await self._live_profiles.load()

    def _index_of(self, tools: ToolSet) -> ToolSearch:
        """Return the index of these tools; two who ask for a new one at the same moment may both make it."""
        known = self._search
        if known is None or known[0] is not tools:
            known = self._search = (tools, ToolSearch(tools.all()))
        return known[1]

    def found(self, call: ToolCall, caller: Caller) -> tuple[ToolDefinition, Reach] | ToolResult:
        """Return the call's tool, and what its caller reaches; otherwise the refusal. Depends on no argument, and not on time."""
        try:
            name = ToolName.parse(call.tool_name)
        except InvalidToolName:
            return _refused(call, "invalid_tool_name", str(InvalidToolName(_shown(call.tool_name))))
        return self._named(name, call, caller)

    def _named(self, name: ToolName, call: ToolCall, caller: Caller) -> tuple[ToolDefinition, Reach] | ToolResult:
        if name.module not in self.modules:
            return _refused(call, "unknown_module", unknown_module(name.module, self._settings.redis_url))
        try:
            reach = reach_of(caller, self.profiles, self._settings.default_guest_modules, self._open_modules)
        except UnknownAgent as exc:
            return _refused(call, "permission_denied", str(exc))
        tool = self.find(call.tool_name)
        if tool is None:
            # A module's offers are private to those who may use it.
            if not reaches(name.module, reach.modules):
                return _refused(call, "permission_denied", module_denial(name.module))
            is_known = name.module in self._state.manifests
            why = None if is_known else why_not_applied(name.module, self._settings.redis_url)
            text = f"Unknown tool: {name}" + (f". {why}" if why else "")
            return _refused(call, "unknown_tool", text, hint=self._hint(name, reach))
        if reason := reach.denial(tool):
            return _refused(
                call, "permission_denied", reason, hint=CLOSED_TO_ALL if reason == tool.access.closed else None
            )
        return tool.definition, reach

    def _listed_for(self, caller: Caller) -> Reach | None:
        try:
            return reach_of(caller, self.profiles, self._settings.default_guest_modules, self._open_modules)
        except UnknownAgent as exc:
            _log.warning("agent_unknown", error=str(exc))
            return None

    def _hint(self, name: ToolName, reach: Reach) -> str | None:
        is_theirs = name.module in self.modules and reaches(name.module, reach.modules)
        if is_theirs:
            known = self._state.manifests.get(name.module)
            if known is None:
                return f"Module {name.module!r} is not reachable now; its tools may be there later."
            if known.manifest.load_errors and not known.manifest.tools:
                return f"Module {name.module!r} serves no tools now; `toolfleet tools list --errors` says why."
        modules = frozenset({name.module}) if is_theirs else reach.modules
        likely = ((one, self.find(one)) for one in self._state.tools.near(name, reach.caller.permission, modules))
        near = [one for one, tool in likely if tool is not None and reach.denial(tool) is None]
        return f"Did you mean {' or '.join(near)}?" if near else None

    async def _take_over(
        self, read: int, manifests: Mapping[str, CachedManifest], failures: Mapping[str, ProbeFailure]
    ) -> None:
        """Show what was read, unless something that was read later is shown already."""

        def tools() -> ToolSet:
            seen = (seen_tools(cached.manifest, cached.verdicts) for cached in manifests.values())
            return ToolSet(itertools.chain.from_iterable(seen))

        made = await aside(tools, is_large=sum(len(cached.manifest.tools) for cached in manifests.values()) > _MANY)
        if read > self._shown:
            self._shown, self._state = read, CatalogState(manifests, failures, made)
            self.revision = self._state


async def _probe_modules(
    known: KnownModules, settings: Settings, *, imports_local: bool
) -> "dict[str, DiscoveryResult]":
    """Return each module's current offer.

    Local tools are left out unless `imports_local`: only workers run their program.
    """
    from toolfleet_registry.manifests.discovery import discover

    probes = await discover(
        known.settings.module_services,
        timeout_seconds=settings.discovery_timeout_seconds,
        at_once=MODULES_AT_ONCE,
        guards=known.guards,
        headers=known.headers,
    )
    if imports_local and settings.local_tools:
        from toolfleet_registry.local.local_tools import probe_local  # hardly any worker has them

        probes |= await probe_local(settings)
    if settings.artifact_store is not None:
        from toolfleet_registry.local.artifact_tools import probe_artifacts

        probes |= probe_artifacts(settings)
    if settings.programs:
        from toolfleet_registry.local.program_tools import probe_programs

        probes |= probe_programs(settings)
    return probes | probe_scheduler(settings)


@dataclass(frozen=True, slots=True)
class CatalogState:
    """Replaced as a whole, so that no reader sees half of a change."""

    manifests: Mapping[str, CachedManifest] = field(default_factory=dict[str, CachedManifest])
    failures: Mapping[str, ProbeFailure] = field(default_factory=dict[str, ProbeFailure])
    tools: ToolSet = field(default_factory=ToolSet)

    def status(self, module: str, *, stale_seconds: float) -> ModuleStatus:
        """Return the status of a module; its manifest is stale after `stale_seconds`."""
        failure = self.failures.get(module)
        cached = self.manifests.get(module)
        if cached is None:
            return ModuleStatus(module=module, ok=False, error=failure.error if failure else NEVER_PROBED)
        offered = {tool.name: tool for tool in cached.manifest.tools}
        verdicts = {name: verdict for name, verdict in cached.verdicts.items() if name in offered}
        pending = Counter(pending_because(offered[name], verdict) for name, verdict in verdicts.items())
        age = cached.age_seconds
        return ModuleStatus(
            module=module,
            ok=failure is None,
            tools=cached.manifest.listed_count,
            closed_tools=broken_tools(cached.manifest, cached.verdicts),
            error=failure.error if failure else None,
            age_seconds=age,
            is_stale=cached.is_kept or (age is not None and age > stale_seconds),
            disabled=sum(verdict.is_disabled for verdict in verdicts.values()),
            withheld=sum(verdict.is_withheld for verdict in verdicts.values()),
            drifted=pending["drifted"],
            load_errors=tuple(cached.manifest.load_errors or ()),
            sources=tuple(cached.manifest.sources or ()),
            undeclared=sum(effect_of(tool.definition) is None for tool in seen_tools(cached.manifest, cached.verdicts)),
        )


def _newer_failures(
    failures: Mapping[str, ProbeFailure], manifests: Mapping[str, CachedManifest]
) -> dict[str, ProbeFailure]:
    """Return the failures that are newer than the present manifests."""
    return {
        module: failure
        for module, failure in failures.items()
        if module not in manifests or (manifests[module].discovered_at or 0) < failure.at
    }


def _refused(call: ToolCall, code: ErrorCode, error: str, *, hint: str | None = None) -> ToolResult:
    """Return the result of a call that is not published."""
    return ToolResult.refused(_encodable(call.tool_name), code, error, hint=hint)


def _shown(text: str) -> str:
    """Foreign text for a reason: of a bounded length, and without what cannot be written to a terminal or a file."""
    return _encodable(text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…")


def _encodable(text: str) -> str:
    """`text`, with "?" for half surrogate pairs: a model can write them, and no output can."""
    return text.encode("utf-8", "replace").decode()
