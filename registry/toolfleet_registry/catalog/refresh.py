"""Looks at all modules that a process knows: those with an address, and those that have none."""

from toolfleet_registry.directory.known_modules import KnownModules
from toolfleet_registry.local.scheduler_tools import probe_scheduler
from toolfleet_registry.manifests.discovery import DiscoveryResult, discover
from toolfleet_registry.settings import Settings


async def probe_modules(known: KnownModules, settings: Settings, *, imports_local: bool) -> dict[str, DiscoveryResult]:
    """What each module offers now. Local tools are left out unless `imports_local`: only workers run their program."""
    probes = await discover(
        known.settings.module_services,
        timeout_seconds=settings.discovery_timeout_seconds,
        max_bytes=settings.max_manifest_bytes,
        at_once=settings.manifest_requests,
        guards=known.guards,
        headers=known.headers,
    )
    if imports_local and settings.local_tools:
        from toolfleet_registry.local.local_tools import probe_local  # noqa: PLC0415 - hardly any worker has them

        probes |= await probe_local(settings)
    return probes | probe_scheduler(settings)
