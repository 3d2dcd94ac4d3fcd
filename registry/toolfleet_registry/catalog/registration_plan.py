"""Plans what a module's manifest means to a registry: what to register, what has changed, what to withhold.

Pure: the same manifest, registrations and pins always mean the same.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from toolfleet_registry.contracts import ModuleManifest, ToolDefinition
from toolfleet_registry.manifests.definitions import definition_of, spec_of
from toolfleet_registry.manifests.digests import digest_of
from toolfleet_registry.manifests.overrides import ToolOverride, Verdicts
from toolfleet_registry.manifests.specs import ToolRegistration, ToolSpec
from toolfleet_registry.manifests.versions import ends_rollback
from toolfleet_registry.permissions import broken_because

ChangeKind: TypeAlias = Literal["added", "changed", "removed", "drifted"]
"""What a look found: a new tool, another version of one, one less, or other content under the same version."""

FaultOf: TypeAlias = Callable[[ToolDefinition], str | None]
"""What is wrong with a tool itself, so that nobody can use it."""


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
    """The manifest's tools with their digests. Takes some 60 µs a tool."""
    specs = ((tool, spec_of(tool)) for tool in manifest.tools)
    return [Offer(tool, spec, digest_of(spec)) for tool, spec in specs]


def take_in(offers: list[Offer], known: Known, fault_of: FaultOf) -> RegistrationPlan:
    """Compare what is offered with what is known.

    A tool of a pinned module whose digest is not approved is withheld, and not registered. Other content under the same
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
    """The oldest of those that left, where there are too many."""
    enabled = sorted((one for one in gone if one.enabled), key=lambda one: one.created_at or "", reverse=True)
    return [one.spec.tool_name for one in enabled[_MOST_GONE:]]


def _change(offer: Offer, present: ToolRegistration | None, *, is_withheld: bool) -> PlannedChange:
    name, after = offer.spec.tool_name, offer.spec.version
    if present is None:
        return PlannedChange(name, "added", after=after, is_withheld=is_withheld)
    kind: ChangeKind = "drifted" if present.spec.version == after else "changed"
    return PlannedChange(name, kind, present.spec.version, after, is_withheld)


_NOTHING = ToolOverride()
_MOST_GONE = 1000  # registrations of tools that a module does not offer now
