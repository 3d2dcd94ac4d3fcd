"""Waits until hosts that were started here have announced their modules to the fleet."""

import asyncio
from collections.abc import Collection

from toolfleet_registry.directory.directory import Listing, ModuleDirectory
from toolfleet_registry.directory.entries import AnnouncedModule
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.settings import Settings

KNOWN_SECONDS = 10.0
"""For hosts that are ready to have announced themselves."""

_POLL_SECONDS = 0.05


async def unannounced(settings: Settings, modules: Collection[str], *, seconds: float = KNOWN_SECONDS) -> list[str]:
    """Return when hosts serve all of these modules, or after so long: with a sentence for each that none serves.

    Raises `FleetUnavailable` when Redis does not answer.
    """
    async with async_client(str(settings.redis_url), master=settings.sentinel_master) as redis:
        directory = ModuleDirectory(redis, settings)
        give_up_at = asyncio.get_running_loop().time() + seconds
        while True:
            listing = await directory.read()
            missing = [name for name in sorted(modules) if not _is_served(name, listing)]
            if not missing or asyncio.get_running_loop().time() > give_up_at:
                return [f"The fleet does not know the module {name!r} yet: {_why(name, listing)}." for name in missing]
            await asyncio.sleep(_POLL_SECONDS)


async def module_places(settings: Settings) -> dict[str, str]:
    """Return the URL of each module, with the number of further hosts that serve it."""
    async with async_client(str(settings.redis_url), master=settings.sentinel_master) as redis:
        entries = (await ModuleDirectory(redis, settings).read()).entries
    places = dict(settings.module_services)
    for name, entry in entries.items():
        if name not in places and entry.url is not None:
            others = len(entry.replicas) - 1 if isinstance(entry, AnnouncedModule) else 0
            places[name] = entry.url + (f" and {others} more" if others > 0 else "")
    return places


def _is_served(module: str, listing: Listing) -> bool:
    entry = listing.entries.get(module)
    return isinstance(entry, AnnouncedModule) and bool(entry.replicas)


def _why(module: str, listing: Listing) -> str:
    reasons = [host.reason for host in listing.hosts.refused if host.module == module]
    return reasons[0] if reasons else "its host has not announced itself"
