"""Plans what a module's manifest means to a registry (what to register, change, withhold), and carries it out in a bounded time.

Pure: the same manifest, registrations and pins always mean the same.

The registry is asked in a thread. Agents and workers read manifests with their verdicts from the cache, or expired ones
from the registry through `manifest_reader`.

Many together, because every question to Redis and every hop into a thread would else be made for each of thousands of
modules.
"""

import asyncio
import functools
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, TypeVar

from toolfleet_registry.contracts import ModuleManifest, ToolDefinition
from toolfleet_registry.contracts.names import name_fault
from toolfleet_registry.contracts.tool_definition import ToolLines, concurrency_fault
from toolfleet_registry.errors import FleetUnavailable, RegistryAway
from toolfleet_registry.manifests.manifest_cache import (
    CachedManifest,
    ManifestCache,
    Successor,
    ToolOverride,
    Verdicts,
    kept_text,
    read_kept,
)
from toolfleet_registry.permissions import broken_because
from toolfleet_registry.specs import (
    ToolFinding,
    ToolRegistration,
    ToolSpec,
    definition_of,
    digest_of,
    ends_rollback,
    spec_of,
)
from toolfleet_registry.store.registry import ToolRegistry
from toolfleet_registry.system import machine_clock
from toolfleet_registry.system.loggers import get_logger

_log = get_logger(__name__)

ChangeKind: TypeAlias = Literal["added", "changed", "removed", "drifted"]
"""What a look found: a new tool, another version of one, one less, or other content under the same version."""

FaultOf: TypeAlias = Callable[[ToolDefinition], str | None]
"""A fault of a tool itself, so that no caller can use it."""

_NOTHING = ToolOverride()
_MOST_GONE = 1000  # registrations of tools that a module does not offer now

PinsByModule: TypeAlias = Mapping[str, Mapping[str, str]]
Answers: TypeAlias = Sequence[ToolRegistration | ValueError]

_MOST_TRIES = 5  # to register until nothing is left to be
_PATIENCE_SECONDS = 60  # if no other module waits

_UNKNOWN = "what the registry holds of it cannot be read, or was not there"

OpenRegistry = Callable[[], ToolRegistry]

_OTHER_REGISTRY = (
    "The registry here is not this fleet's: TOOLFLEET_REGISTRY_URL must be the same in all its processes "
    "(`toolfleet tools adopt-registry` makes the one here the fleet's)."
)

T = TypeVar("T")

MOST_TRIES = 5  # while others change the registry at the same time, which is rare and soon over

_MOST_NAMED = 20  # tools of a kind in a line of the log

# To judge a module: first each gets a little, so that none waits for a costly one; then the costly ones get the rest.
TURN_SECONDS = (0.5, 4.5)

_SECONDS_IN_ALL = 12  # less than a refresh has, so that what did not get its turn is still told

_AT_ONCE = 6  # batches: most of each is waiting for Redis or the registry, in a thread

# A batch ends with the one that comes first.
_BATCH = 32  # modules: ten times as many would save no time

_BATCH_TOOLS = 200  # of large modules: a batch is written in one go

_BATCH_SECONDS = 0.5  # of judging


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """The change of one tool since it was registered. `is_withheld`: it has no effect until an operator approves it."""

    tool_name: str
    kind: ChangeKind
    before: str | None = None
    after: str | None = None
    is_withheld: bool = False
    registered: str | None = None
    """The digest of what was registered before."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool as its module offers it, and what the registry calls that."""

    definition: ToolDefinition
    spec: ToolSpec
    digest: str


@dataclass(frozen=True, slots=True)
class Known:
    """The known state of a module: its registrations by tool name, and its pins if it is pinned.

    `names` and `verdicts` are those of its last manifest; `names` is `None` if that is lost.
    """

    registrations: Mapping[str, ToolRegistration]
    pins: Mapping[str, str] | None = None
    names: frozenset[str] | None = None
    verdicts: Verdicts = field(default_factory=dict[str, ToolOverride])


@dataclass(frozen=True, slots=True)
class RegistrationPlan:
    """The specifications to register, the registrations to forget, the changes, and the exceptions for what is in effect."""

    register: list[ToolSpec]
    forget: list[str]
    changes: list[PlannedChange]
    verdicts: dict[str, ToolOverride]


def offers_of(manifest: ModuleManifest) -> list[Offer]:
    """Return the manifest's tools with their digests. Takes some 60 µs a tool."""
    specs = ((tool, spec_of(tool)) for tool in manifest.tools)
    return [Offer(tool, spec, digest_of(spec)) for tool, spec in specs]


def take_in(offers: list[Offer], known: Known, fault_of: FaultOf) -> RegistrationPlan:
    """Compare what is offered with what is known.

    A tool of a pinned module is withheld if its digest is not approved, and not registered. Other content under the same
    version is not registered either, and the registered one stays in effect; as does one that was rolled back, until a
    version comes that is later than what it was rolled back from. The registration of a tool that left is kept, and
    says what the tool was when it comes back; of very many such the oldest are forgotten, but for disabled ones.
    """
    register = list[ToolSpec]()
    changes = list[PlannedChange]()
    verdicts = dict[str, ToolOverride]()
    for offer in offers:
        name, present = offer.spec.tool_name, known.registrations.get(offer.spec.tool_name)
        if broken := broken_because(offer.definition.required_permission):
            # Nothing to register or compare: what was registered before is what it is compared with when it is fixed.
            verdicts[name] = ToolOverride(is_disabled=_is_disabled(offer, known), fault=broken)
            continue
        registered = None if present is None else digest_of(present.spec)
        verdict = _verdict(offer, present, registered, known, fault_of)
        if verdict != _NOTHING:
            verdicts[name] = verdict
        if present is not None and (present.spec.version, registered) == (offer.spec.version, offer.digest):
            if known.names is not None and name not in known.names:
                changes.append(PlannedChange(name, "added", after=offer.spec.version))
            continue
        is_pending = verdict.digest is not None
        if not is_pending:
            register.append(offer.spec)
        if is_pending and not verdict.is_withheld and _is_held_back(offer, present):
            continue  # an operator knows
        if not is_pending or verdict.digest != known.verdicts.get(name, _NOTHING).digest:  # said once
            change = _change(offer, present, is_withheld=verdict.is_withheld)
            changes.append(replace(change, registered=registered))
    offered = {offer.spec.tool_name for offer in offers}
    gone = [registration for name, registration in known.registrations.items() if name not in offered]
    for name in sorted((known.names or offered) - offered):
        last = known.registrations.get(name)
        changes.append(PlannedChange(name, "removed", before=None if last is None else last.spec.version))
    return RegistrationPlan(register, _forgotten(gone), changes, verdicts)


def _verdict(
    offer: Offer, present: ToolRegistration | None, registered: str | None, known: Known, fault_of: FaultOf
) -> ToolOverride:
    is_disabled = _is_disabled(offer, known)
    has_drifted = present is not None and present.spec.version == offer.spec.version and registered != offer.digest
    stays = has_drifted or _is_held_back(offer, present)
    if _is_withheld(offer, registered, known, stays=stays):
        return ToolOverride(is_disabled=is_disabled, is_withheld=True, digest=offer.digest)
    if present is None or not stays:
        return ToolOverride(is_disabled=is_disabled, fault=fault_of(offer.definition))
    try:
        kept = definition_of(present.spec)
    except ValueError:  # a foreign specification under this name
        return ToolOverride(
            is_disabled=is_disabled, fault="what is registered is no tool of a module", digest=offer.digest
        )
    return ToolOverride(is_disabled=is_disabled, kept=kept, fault=fault_of(kept), digest=offer.digest)


def _is_disabled(offer: Offer, known: Known) -> bool:
    """Return whether an operator has disabled the tool under any of its names: a new name enables nothing."""
    return any(not known.registrations[each].enabled for each in offer.definition.names if each in known.registrations)


def _is_held_back(offer: Offer, present: ToolRegistration | None) -> bool:
    """Return whether the tool was rolled back, and the offer does not end that."""
    since = None if present is None else present.rolled_back_from
    if present is None or since is None or present.spec.version == offer.spec.version:
        return False
    return not ends_rollback(offer.spec.version, since)


def _is_withheld(offer: Offer, registered: str | None, known: Known, *, stays: bool) -> bool:
    """Return whether the offer needs an approval it does not have; what had drifted before its module was pinned stays in effect.

    `stays`: the registered definition stays in effect also now. The same content under a new version is not what was
    pinned.
    """
    name = offer.spec.tool_name
    approved = None if known.pins is None else known.pins.get(name)
    if known.pins is None or approved == offer.digest or (approved is None and _was_pinned(offer, known.pins)):
        return False
    before = known.verdicts.get(name, _NOTHING)
    had_drifted = before.kept is not None and before.digest == offer.digest
    return not (stays and had_drifted and approved is not None and approved == registered)


def _was_pinned(offer: Offer, pins: Mapping[str, str]) -> bool:
    """Return whether the definition approved under a former name is the offered one, except for the name."""
    tool = offer.definition
    before = (tool.model_copy(update={"name": name, "former_names": []}) for name in tool.former_names)
    return any(pins.get(each.name) == digest_of(spec_of(each)) for each in before)


def _forgotten(gone: list[ToolRegistration]) -> list[str]:
    """Return the oldest of those that left, where there are too many."""
    enabled = sorted((one for one in gone if one.enabled), key=lambda one: one.created_at or "", reverse=True)
    return [one.spec.tool_name for one in enabled[_MOST_GONE:]]


def _change(offer: Offer, present: ToolRegistration | None, *, is_withheld: bool) -> PlannedChange:
    name, after = offer.spec.tool_name, offer.spec.version
    if present is None:
        return PlannedChange(name, "added", after=after, is_withheld=is_withheld)
    kind: ChangeKind = "drifted" if present.spec.version == after else "changed"
    return PlannedChange(name, kind, present.spec.version, after, is_withheld)


class ModuleTooCostly(Exception):
    """Judging a module's tools takes longer than allowed; what was found is kept for its next turn."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The registry as it was at `revision`: registrations by module and tool, and pins by module."""

    revision: str
    registrations: Mapping[str, Mapping[str, ToolRegistration]]
    pins: PinsByModule


def moment_of(registry: ToolRegistry) -> Moment:
    """Read the registry's present state. Raises `FleetUnavailable`."""
    revision = registry.revision()  # first: what changes after it is seen in a later one
    registrations = dict[str, dict[str, ToolRegistration]]()
    for registration in registry.list_all(include_disabled=True):
        name = registration.spec.tool_name
        registrations.setdefault(name.partition(".")[0], {})[name] = registration
    return Moment(revision, registrations, registry.pins())


def in_effect(
    kept: CachedManifest, registrations: Mapping[str, ToolRegistration], pins: PinsByModule
) -> CachedManifest:
    """Return a kept manifest with what operators have decided by now. A tool without a readable registration is closed.

    What was found wrong with its tools when it was kept is not looked for again.
    """
    faults = {name: verdict.fault for name, verdict in kept.verdicts.items()}
    known = Known(registrations, pins.get(kept.manifest.module_name), verdicts=kept.verdicts)
    plan = take_in(offers_of(kept.manifest), known, lambda tool: faults.get(tool.name))
    return replace(kept, verdicts=_closed(plan, registrations, {}).verdicts)


def kept_in_effect(registry: ToolRegistry, modules: Sequence[str]) -> dict[str, CachedManifest]:
    """Read the registry's manifests of these modules, with operators' current decisions. Raises `FleetUnavailable`."""
    read = {module: read_kept(module, text) for module, text in registry.kept_manifests(modules).items()}
    found = {module: cached for module, cached in read.items() if cached is not None}
    if not found:
        return {}
    names = {
        module: [each for tool in cached.manifest.tools for each in tool.names] for module, cached in found.items()
    }
    registrations, pins = registry.get_many([name for each in names.values() for name in each]), registry.pins()
    return {
        module: in_effect(cached, {name: registrations[name] for name in names[module] if name in registrations}, pins)
        for module, cached in found.items()
    }


class ModuleRegistration:
    """One module's registration.

    `before`: its stored manifest. `verdicts`: the last judgement. `like`: a registration to share findings with.
    """

    def __init__(
        self,
        module: str,
        manifest: ModuleManifest,
        before: CachedManifest | None = None,
        like: "ModuleRegistration | None" = None,
    ) -> None:
        self.module = module
        self.manifest = manifest
        self.before = before
        self.verdicts: Verdicts = {}
        self._changes: list[PlannedChange] | None = None
        self._offers: list[Offer] | None = None
        self._known = dict[str, ToolRegistration]()
        self._begun = RegistrationPlan([], [], [], {})
        self._faults: _Faults = _Faults() if like is None else like._faults  # noqa: SLF001 - of its own kind

    @property
    def changes(self) -> list[PlannedChange]:
        """The changes since the module was registered last; registering hides them from later judgements."""
        return self._changes or []

    @property
    def is_known(self) -> bool:
        """Whether the stored manifest is what the module offers."""
        return self.before is not None and self.before.manifest == self.manifest

    def served_changes(self, verdicts: Verdicts) -> dict[str, tuple[str, str]]:
        """Return the changed definitions of a module that has its changes accepted as served: the digests before and after, by name.

        What was stored before counts as well as what was registered: a process that ended between the two writes has
        left the new one registered.
        """
        if self.manifest.on_change != "shown" or self.is_known:
            return {}
        before = {change.tool_name: change.registered for change in self.changes if change.kind == "changed"}
        if self.before is not None and self.before.manifest.on_change is not None:
            before |= {offer.spec.tool_name: offer.digest for offer in offers_of(self.before.manifest)}
        offers = {offer.spec.tool_name: offer.digest for offer in self._offers or ()}
        pending = {name for name, verdict in verdicts.items() if verdict.digest is not None}
        both = {name: (before.get(name), digest) for name, digest in offers.items() if name not in pending}
        return {name: (old, new) for name, (old, new) in both.items() if old is not None and old != new}

    def pins(self, moment: Moment) -> dict[str, str]:
        """Return what to approve for a module that is to be pinned and is not yet: what is registered, or else what it offers first."""
        if self.manifest.on_change != "withheld" or self.module in moment.pins:
            return {}
        known = {name: digest_of(one.spec) for name, one in moment.registrations.get(self.module, {}).items()}
        return known or {offer.spec.tool_name: offer.digest for offer in offers_of(self.manifest)}

    def allow(self, seconds: float) -> None:
        """Set the budget of thread CPU time for further judging: on a busy machine no module seems costly."""
        self._faults.allow(seconds)

    def preview(self, moment: Moment) -> RegistrationPlan:
        """Judge and register nothing. A tool without a readable registration is closed: it may be disabled."""
        known = moment.registrations.get(self.module, {})
        return _closed(self._judge(moment, known), known, {})

    def begin(self, moment: Moment) -> list[ToolSpec]:
        """Judge the tools and return the specifications to register. Raises `ModuleTooCostly`."""
        self._known = dict(moment.registrations.get(self.module, {}))
        self._begun = plan = self._judge(moment, self._known)
        if self._changes is None:
            self._changes = plan.changes
        return plan.register

    def register(self, registry: ToolRegistry, moment: Moment) -> RegistrationPlan:
        """Judge, and register until nothing is left to be. Raises `ModuleTooCostly`, and what the registry raises."""
        self.begin(moment)
        return self.end(registry, moment)

    def end(self, registry: ToolRegistry, moment: Moment, answers: Answers | None = None) -> RegistrationPlan:
        """Register until nothing is left to be; `answers` are the registry's to what was to be registered at first."""
        known, plan = self._known, self._begun
        refused = dict[str, str]()
        for _ in range(_MOST_TRIES):
            specs = [spec for spec in plan.register if spec.tool_name not in refused]
            if not specs and not plan.forget:
                break
            given, answers = answers or registry.register_many(specs, keep_enabled=True), None
            for spec, answer in zip(specs, given, strict=True):
                if isinstance(answer, ValueError):
                    refused[spec.tool_name] = str(answer).rstrip(".")
                else:  # also of what cannot be listed: whether it is enabled is known by now
                    known[spec.tool_name] = answer
            for name in plan.forget:
                registry.remove(name, unless_disabled=True)  # which another operator may have done just now
                known.pop(name, None)
            plan = self._judge(moment, known)
        return _closed(plan, known, refused)

    def faults(self) -> dict[str, str]:
        """Return what is wrong with the module's tools, by name, as judged last."""
        return {name: verdict.fault for name, verdict in self.verdicts.items() if verdict.fault is not None}

    def _judge(self, moment: Moment, registrations: Mapping[str, ToolRegistration]) -> RegistrationPlan:
        if self._offers is None:
            self._offers = offers_of(self.manifest)
        known = Known(registrations, moment.pins.get(self.module))
        if self.before is not None:
            names = frozenset(tool.name for tool in self.before.manifest.tools)
            known = replace(known, names=names, verdicts=self.before.verdicts)
        return take_in(self._offers, known, self._faults)


def register_together(
    registry: ToolRegistry, moment: Moment, turns: Sequence[ModuleRegistration], *, seconds: float
) -> list[RegistrationPlan | Exception]:
    """Judge modules and register what they offer, in few questions to the registry. What came of each, or its defect.

    In the order of the turns, without those at the end for which `seconds` did not suffice. Raises what says that the
    registry is away.
    """
    offered, until = list[list[ToolSpec] | Exception](), machine_clock.monotonic() + seconds
    for turn in turns:
        if offered and machine_clock.monotonic() > until:
            break
        try:
            offered.append(turn.begin(moment))
        except Exception as exc:  # noqa: BLE001 - a defect that one module brings out must not hide the others
            offered.append(exc)
    answers = _answered(registry, [spec for each in offered if isinstance(each, list) for spec in each])
    ends = list[RegistrationPlan | Exception]()
    for turn, each in zip(turns, offered, strict=False):
        ends.append(each if isinstance(each, Exception) else _ended(registry, moment, turn, answers, number=len(each)))
    return ends


def _answered(registry: ToolRegistry, specs: Sequence[ToolSpec]) -> deque[ToolRegistration | ValueError] | None:
    """Register all specifications at once; `None` if each module must ask separately."""
    try:
        return deque(registry.register_many(specs, keep_enabled=True)) if specs else deque()
    except FleetUnavailable:
        raise
    except Exception:  # noqa: BLE001 - asked for itself, its module shows it
        return None


def _ended(
    registry: ToolRegistry,
    moment: Moment,
    turn: ModuleRegistration,
    answers: deque[ToolRegistration | ValueError] | None,
    *,
    number: int,
) -> RegistrationPlan | Exception:
    given = None if answers is None else [answers.popleft() for _ in range(number)]
    try:
        return turn.end(registry, moment, given)
    except FleetUnavailable:
        raise
    except Exception as exc:  # noqa: BLE001 - as above
        return exc


class _Faults:
    """Finds what is wrong with tools; checks each one once."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[ToolDefinition, str | None]] = {}
        self._seconds = float(_PATIENCE_SECONDS)

    def allow(self, seconds: float) -> None:
        self._seconds = seconds

    def __call__(self, tool: ToolDefinition) -> str | None:
        found = self._found.get(id(tool))
        if found is None:
            if self._seconds <= 0:
                raise ModuleTooCostly
            from toolfleet_registry.schemas.validation import schema_fault  # a worker registers nothing

            start = time.thread_time()
            found = tool, name_fault(tool.name) or schema_fault(tool) or concurrency_fault(tool)
            self._seconds -= time.thread_time() - start
            self._found[id(tool)] = found  # with the tool, so that no other one gets its id
        return found[1]


def _closed(
    plan: RegistrationPlan, known: Mapping[str, ToolRegistration], refused: Mapping[str, str]
) -> RegistrationPlan:
    """Close the tools that failed to register: it is unknown whether they are disabled."""
    left = {spec.tool_name for spec in plan.register}
    faults = {name: refused.get(name, _UNKNOWN) for name in left if name in refused or name not in known}
    closed = {name: ToolOverride(fault=fault) for name, fault in faults.items()}
    return replace(plan, verdicts=plan.verdicts | closed) if closed else plan


@dataclass(frozen=True, slots=True)
class TakenIn:
    """The result of probes, by module: the stored manifest, or why the last good one still holds."""

    saved: dict[str, CachedManifest] = field(default_factory=dict[str, CachedManifest])
    errors: dict[str, str] = field(default_factory=dict[str, str])

    def report(self, turn: ModuleRegistration, exc: Exception) -> None:
        """Log a defect that one module has brought out: it must not hide the other modules."""
        _log.error("module_not_taken_in", module=turn.module, exc_info=exc)
        self.errors[turn.module] = f"what it offers cannot be taken in: {type(exc).__name__}"


class Registrar:
    """Keeps manifests, registry and verdicts in step. `open_registry` is called in a thread, for each operation.

    Raises `RegistryAway`, storing nothing more, when the registry does not answer, or is not the fleet's: what
    operators have switched off must not come back. `lines` are the settings' overrides for modules' tools, `None` in a
    process with settings that do not count: stored ones stay. Raises `FleetUnavailable` when the cache's Redis does not
    answer.
    """

    def __init__(
        self, cache: ManifestCache, open_registry: OpenRegistry, lines: Mapping[str, ToolLines] | None = None
    ) -> None:
        self._cache = cache
        self._open_registry = open_registry
        self._lines = lines

    async def take_in(self, manifests: Mapping[str, ModuleManifest]) -> TakenIn:
        """Register what looks have just found, and store it with its verdicts.

        A module that takes too long, or shows a defect of ours, keeps its last good manifest, and holds no other one up.
        """
        taken = TakenIn()
        if not manifests:
            return taken
        await self._cache.renew_all(manifests)  # first: with any result of this probe
        turns = [ModuleRegistration(module, manifest) for module, manifest in manifests.items()]
        async with self.registry() as registry:
            loaded = await self._cache.load(manifests)
            moment = await asked(functools.partial(moment_of, registry))
            for turn in turns:
                turn.before = loaded.get(turn.module)
                turn.manifest = self._with_lines(turn)
            if pins := {turn.module: digests for turn in turns if (digests := turn.pins(moment))}:
                for module, digests in pins.items():
                    await asked(functools.partial(registry.pin, module, digests))
                    _log.info("module_pinned", module=module, tools=len(digests))
                moment = await asked(functools.partial(moment_of, registry))
            await BatchRegistration(self._cache, registry, taken).take(moment, turns)
            await self._see_to_it(registry, moment, turns, taken)
            await asked(lambda: registry.keep_manifests({name: kept_text(one) for name, one in taken.saved.items()}))
        return taken

    def _with_lines(self, turn: ModuleRegistration) -> ModuleManifest:
        """Return what a module offers with what settings say of its tools, and log names that are none of its tools'."""
        if self._lines is None:
            lines = None if turn.before is None else turn.before.manifest.lines
        else:
            said = self._lines.get(turn.module)
            lines = None if said is None else ToolLines.model_validate(said.model_dump(exclude_defaults=True))
        if lines is not None and (unmet := lines.unmet(turn.manifest.tools)):
            _log.warning("settings_name_no_tool", module=turn.module, names=unmet[:20])
        return turn.manifest if lines == turn.manifest.lines else turn.manifest.model_copy(update={"lines": lines})

    async def rejudge(
        self, registry: ToolRegistry, module: str, *, registers: bool = False, like: ModuleRegistration | None = None
    ) -> CachedManifest | None:
        """Judge the stored manifest of a module again after a change of the registry; `None` if there is none.

        `like` is a registration: its findings about the module's schemas are used again.
        """
        for _ in range(MOST_TRIES):
            cached = (await self._cache.load([module])).get(module)
            if cached is None:  # readers of the registry's manifests are told
                await self._cache.announce(module)
                return None
            turn = ModuleRegistration(module, cached.manifest, cached, like)
            moment = await asked(functools.partial(moment_of, registry))
            work = functools.partial(turn.register, registry) if registers else turn.preview
            try:
                plan = await asked(functools.partial(work, moment))
            except ModuleTooCostly as exc:
                raise FleetUnavailable(f"It takes too long to judge the tools of module {module!r}.") from exc
            saved = await self._cache.replace(cached, plan.verdicts)
            if saved is not None and await asked(registry.revision) == moment.revision:
                return saved
        _log.warning("module_keeps_changing", module=module)
        return (await self._cache.load([module])).get(module)

    @asynccontextmanager
    async def registry(self) -> AsyncGenerator[ToolRegistry]:
        """Yield the registry. It must be the one in which the fleet first registered something."""
        async with self._opened() as registry:
            await self.check(registry)
            yield registry

    async def check(self, registry: ToolRegistry) -> None:
        """Look whether it is the one that was there when the fleet first took something in. Raises `RegistryAway` if not."""
        identity = await asked(registry.identity)
        if await self._cache.fleets_registry(identity) != identity:
            raise RegistryAway(_OTHER_REGISTRY)

    async def adopt(self) -> None:
        """Make this registry the fleet's, replacing any other.

        From the next refresh on, this registry's content is in force.
        """
        async with self._opened() as registry:
            await self._cache.fleets_registry(await asked(registry.identity), replaces=True)

    @asynccontextmanager
    async def _opened(self) -> AsyncGenerator[ToolRegistry]:
        registry = await asked(self._open_registry)
        try:
            yield registry
        finally:
            await asyncio.to_thread(registry.close)

    async def _see_to_it(
        self, registry: ToolRegistry, moment: Moment, turns: Iterable[ModuleRegistration], taken: TakenIn
    ) -> None:
        """Judge again if the registry has changed meanwhile: an operator's decision may be missing."""
        for _ in range(MOST_TRIES):
            if await asked(registry.revision) == moment.revision:
                return
            moment = await asked(functools.partial(moment_of, registry))
            for turn in turns:
                if turn.module in taken.saved:
                    await self._judge_again(registry, moment, turn, taken)
        _log.warning("registry_keeps_changing")

    async def _judge_again(
        self, registry: ToolRegistry, moment: Moment, turn: ModuleRegistration, taken: TakenIn
    ) -> None:
        turn.before = taken.saved[turn.module]
        turn.allow(sum(TURN_SECONDS))
        try:
            plan = await asked(functools.partial(turn.preview, moment))
            if plan.verdicts == turn.verdicts and not plan.register:
                return
            judged = await self.rejudge(registry, turn.module, registers=True, like=turn)
        except FleetUnavailable:
            raise
        except Exception as exc:  # noqa: BLE001 - as when the turn was taken
            taken.report(turn, exc)
            return
        if judged is not None:
            turn.verdicts, taken.saved[turn.module] = judged.verdicts, judged


class BatchRegistration:
    """Takes turns through judging, registering and storing, and notes in `taken` what came of them.

    Raises `RegistryAway`, and `FleetUnavailable` when the cache's Redis does not answer.
    """

    def __init__(self, cache: ManifestCache, registry: ToolRegistry, taken: TakenIn) -> None:
        self._cache = cache
        self._registry = registry
        self._taken = taken
        self._left = deque[ModuleRegistration]()
        self._costly = deque[ModuleRegistration]()

    async def take(self, moment: Moment, turns: Iterable[ModuleRegistration]) -> None:
        """Register all manifests, as far as the time suffices."""
        # What is new comes first: with very many modules some wait for the next look, and those had better be known ones.
        self._costly.extend(sorted(turns, key=lambda turn: turn.is_known))
        until = machine_clock.monotonic() + _SECONDS_IN_ALL
        for seconds in TURN_SECONDS:
            self._left, self._costly = self._costly, deque()
            work = functools.partial(self._work, moment, seconds=seconds, until=until)
            for end in await asyncio.gather(*(work() for _ in range(_AT_ONCE)), return_exceptions=True):
                if end is not None:
                    raise end
        for turn in self._costly:
            _log.warning("module_too_costly", module=turn.module, tools=len(turn.manifest.tools))
            self._taken.errors[turn.module] = "it takes too long to find out what its tools' schemas mean"

    async def _work(self, moment: Moment, *, seconds: float, until: float) -> None:
        """Take one batch after the other, until none is left. What stops it stops the others as well."""
        while self._left:
            batch = self._next(seconds, until)
            try:
                await self._take_batch(moment, batch)
            except FleetUnavailable:
                self._left.clear()
                raise
            except Exception as exc:  # noqa: BLE001 - of any kind
                await self._take_one_by_one(moment, batch, exc)

    def _next(self, seconds: float, until: float) -> list[ModuleRegistration]:
        batch, tools = list[ModuleRegistration](), 0
        while self._left and len(batch) < _BATCH and tools < _BATCH_TOOLS:
            turn = self._left.popleft()
            if machine_clock.monotonic() > until:
                self._costly.append(turn)
                continue
            turn.allow(seconds)
            batch.append(turn)
            tools += len(turn.manifest.tools)
        return batch

    async def _take_one_by_one(self, moment: Moment, batch: Sequence[ModuleRegistration], exc: Exception) -> None:
        """Register each manifest by itself, to find the one with a defect."""
        if len(batch) == 1:
            self._taken.report(batch[0], exc)
            return
        seen_to = {*self._left, *self._costly}
        for turn in batch:
            if turn in seen_to or turn.module in self._taken.saved:
                continue
            try:
                await self._take_batch(moment, [turn])
            except FleetUnavailable:
                raise
            except Exception as its_own:  # noqa: BLE001 - as above
                self._taken.report(turn, its_own)

    async def _take_batch(self, moment: Moment, batch: Sequence[ModuleRegistration]) -> None:
        for _ in range(MOST_TRIES):
            if not batch:
                return
            work = functools.partial(register_together, self._registry, moment, batch, seconds=_BATCH_SECONDS)
            batch = await self._store(self._judged(batch, await asked(work)))
            if batch:  # An operator's word, or another look, was stored meanwhile: that is what is to be judged with.
                loaded = await self._cache.load([turn.module for turn in batch])
                for turn in batch:
                    turn.before = loaded.get(turn.module)
                moment = await asked(functools.partial(moment_of, self._registry))
        for turn in batch:
            _log.warning("module_keeps_changing", module=turn.module)
            self._taken.errors[turn.module] = "others keep changing what is stored of it"

    def _judged(
        self, batch: Sequence[ModuleRegistration], ends: Sequence[RegistrationPlan | Exception]
    ) -> list[tuple[ModuleRegistration, RegistrationPlan]]:
        """Return the registrations that may be stored. Registrations that had no turn are queued again."""
        self._left.extendleft(reversed(batch[len(ends) :]))
        judged = list[tuple[ModuleRegistration, RegistrationPlan]]()
        for turn, end in zip(batch, ends, strict=False):
            if isinstance(end, RegistrationPlan):
                judged.append((turn, end))
            elif isinstance(end, ModuleTooCostly):
                self._costly.append(turn)
            else:
                self._taken.report(turn, end)
        return judged

    async def _store(self, judged: Sequence[tuple[ModuleRegistration, RegistrationPlan]]) -> list[ModuleRegistration]:
        """Store them, and say what has changed. Returns those that others have overtaken."""
        followers = [Successor.of(turn.before, turn.manifest, plan.verdicts) for turn, plan in judged]
        for turn, plan in judged:
            if changed := turn.served_changes(plan.verdicts):
                await self._cache.note_changes(
                    changed
                )  # first: a process that ends here has noted it, and it is stored later
        saved = await self._cache.succeed(followers)
        overtaken, kinds = list[ModuleRegistration](), Counter[str]()
        for (turn, plan), cached in zip(judged, saved, strict=True):
            if cached is None:
                overtaken.append(turn)
            else:
                turn.verdicts, self._taken.saved[turn.module] = plan.verdicts, cached
                kinds += _count_changes(turn)
        if kinds:
            await self._cache.count(kinds)
        # Last: what is stored is stored, and a process that ends before this has not reported what `differences` shows.
        if findings := [found for turn, _ in judged if turn not in overtaken for found in _findings(turn)]:
            await asked(lambda: self._registry.note(findings))
        return overtaken


async def asked(work: Callable[[], T]) -> T:
    """Ask the registry in a thread. Raises `RegistryAway` if it does not answer."""
    try:
        return await asyncio.to_thread(work)
    except RegistryAway:
        raise
    except FleetUnavailable as exc:
        raise RegistryAway(f"The registry is away: {exc}") from exc


def _count_changes(turn: ModuleRegistration) -> Counter[str]:
    """Log what has changed, and count it by kind."""
    module, changes, faults = turn.module, turn.changes, turn.faults()
    for tool in turn.manifest.tools:  # said when the manifest came
        if broken_because(tool.required_permission):
            faults.pop(tool.name, None)
    kinds = Counter[str](change.kind for change in changes)
    if faults:
        _log.warning("tools_closed", module=module, tools=dict(list(faults.items())[:_MOST_NAMED]))
    if kinds:
        withheld = sum(change.is_withheld for change in changes)
        named = {kind: _named(changes, kind) for kind in kinds}
        say = _log.warning if withheld or kinds["drifted"] else _log.info
        say("tools_changed", module=module, changes=dict(kinds), withheld=withheld, tools=named)
    return kinds


def _findings(turn: ModuleRegistration) -> list[ToolFinding]:
    """Return the findings for followers of the registry that the registry's own changes do not show."""
    digests = {name: verdict.digest for name, verdict in turn.verdicts.items()}
    return [
        ToolFinding(
            kind="withheld" if change.is_withheld else "drifted",
            tool_name=change.tool_name,
            version=change.after,
            digest=digests.get(change.tool_name),
        )
        for change in turn.changes
        if change.is_withheld or change.kind == "drifted"
    ]


def _named(changes: list[PlannedChange], kind: str) -> list[str]:
    return [change.tool_name for change in changes if change.kind == kind][:_MOST_NAMED]
