"""Registers what one module offers: compares it with the registry, registers and judges it, in a bounded time."""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from toolfleet_registry.catalog.registration_plan import (
    Known,
    Offer,
    PlannedChange,
    RegistrationPlan,
    offers_of,
    take_in,
)
from toolfleet_registry.contracts import ModuleManifest, ToolDefinition
from toolfleet_registry.contracts.names import name_fault
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.manifests.digests import digest_of
from toolfleet_registry.manifests.manifest_cache import CachedManifest, read_kept
from toolfleet_registry.manifests.overrides import ToolOverride, Verdicts
from toolfleet_registry.manifests.specs import ToolRegistration, ToolSpec
from toolfleet_registry.store.port import ToolRegistry
from toolfleet_registry.time import machine_clock

PinsByModule: TypeAlias = Mapping[str, Mapping[str, str]]
Answers: TypeAlias = Sequence[ToolRegistration | ValueError]

_MOST_TRIES = 5  # to register until nothing is left to be
_PATIENCE_SECONDS = 60  # if no other module waits


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
    """A kept manifest with what operators have decided by now. A tool without a readable registration is closed.

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

    `before`: its stored manifest. `verdicts`: the last judgement. `like`: a registration whose findings are shared.
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
        """Return the changed definitions of a module whose changes are accepted as served: the digests before and after, by name.

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
            from toolfleet_registry.schemas.validation import schema_fault  # noqa: PLC0415 - a worker registers nothing

            start = time.thread_time()
            found = tool, name_fault(tool.name) or schema_fault(tool)
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


_UNKNOWN = "what the registry holds of it cannot be read, or was not there"
