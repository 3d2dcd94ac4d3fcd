"""Holds all that a catalog knows at one moment, and says of each module what that comes to."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from toolfleet_registry.catalog.toolset import ToolSet
from toolfleet_registry.contracts import NEVER_PROBED, ModuleStatus
from toolfleet_registry.directory.probe_failures import ProbeFailure
from toolfleet_registry.manifests.effects import effect_of
from toolfleet_registry.manifests.manifest_cache import CachedManifest
from toolfleet_registry.manifests.overrides import broken_tools, pending_because, seen_tools


@dataclass(frozen=True, slots=True)
class CatalogState:
    """Replaced as a whole, so that no reader sees half of a change."""

    manifests: Mapping[str, CachedManifest] = field(default_factory=dict[str, CachedManifest])
    failures: Mapping[str, ProbeFailure] = field(default_factory=dict[str, ProbeFailure])
    tools: ToolSet = field(default_factory=ToolSet)

    def status(self, module: str, *, stale_seconds: float) -> ModuleStatus:
        """What is known of a module; its manifest is stale after so many seconds."""
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


def newer_failures(
    failures: Mapping[str, ProbeFailure], manifests: Mapping[str, CachedManifest]
) -> dict[str, ProbeFailure]:
    """Those that came after the manifests which are there."""
    return {
        module: failure
        for module, failure in failures.items()
        if module not in manifests or (manifests[module].discovered_at or 0) < failure.at
    }
