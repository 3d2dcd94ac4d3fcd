"""Adds modules to a running fleet and removes them, for an operator; each change has its line in the audit."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Self

from redis.asyncio import Redis

from toolfleet_registry.contracts.names import LOCAL, SCHEDULER
from toolfleet_registry.directory.directory import ModuleDirectory
from toolfleet_registry.directory.entries import ModuleEntry, ModuleNetworks, plain_url
from toolfleet_registry.directory.hosts import JudgedHosts
from toolfleet_registry.errors import OperationRefused
from toolfleet_registry.redis.servers import answering, async_client
from toolfleet_registry.redis.urls import fleet_url
from toolfleet_registry.settings import Settings
from toolfleet_tasks.operations.change_trail import Actor, ChangeTrail

DRAIN_SECONDS = 30.0
"""For how long calls that wait for a removed module are run: most are over by then, and nobody waits longer for the end."""

_PATIENCE_SECONDS = 5
_MOST_TRIES = 5  # while others change the same entry


class ModuleChanges:
    """Operators' changes of the directory.

    Raises `OperationRefused`, and `FleetUnavailable` when Redis does not answer.
    """

    def __init__(self, redis: Redis, settings: Settings, by: Actor | None = None) -> None:
        self._redis = redis
        self._trail = ChangeTrail(redis, settings, by or Actor.at_command_line())
        self._settings = settings
        self._directory = ModuleDirectory(redis, settings)
        self._networks = ModuleNetworks(settings.module_networks)

    @classmethod
    @asynccontextmanager
    async def of(cls, settings: Settings, *, by: Actor | None = None) -> AsyncGenerator[Self]:
        """Open the changes for the fleet of these settings. Raises `SettingsError` if they name none.

        `by`: the author in the audit; `None`: this machine's user.
        """
        async with async_client(fleet_url(settings.redis_url), master=settings.sentinel_master) as redis:
            yield cls(redis, settings, by)

    async def add(self, entry: ModuleEntry) -> ModuleEntry:
        """Add a module, or give an existing one another lane or limit. Returns the stored entry."""
        url = plain_url(entry.url or "-")
        async with self._trail.change("module_added", entry.module, url=url, lane=entry.lane):
            return await self._add(entry)

    async def remove(self, module: str, *, drain_seconds: float = DRAIN_SECONDS) -> ModuleEntry:
        """Have a module take no more calls: waiting ones are run for `drain_seconds`, and ended then.

        Returns the stored entry.
        """
        async with self._trail.change("module_removed", module) as change:
            gone = await self._remove(module, drain_seconds)
            change.facts |= {"url": plain_url(gone.url or "-"), "lane": gone.lane}
            return gone

    async def _add(self, entry: ModuleEntry) -> ModuleEntry:
        self._check_name(entry.module)
        if fault := await self._networks.fault(str(entry.url), public_only=entry.public_only):
            raise OperationRefused(f"Module {entry.module!r} is not added: {fault}.")
        await self._check_unannounced(entry.module, "nothing is added: end them first")
        entry = entry.model_copy(update={"added_at": await self._now()})
        for _ in range(_MOST_TRIES):
            text, present = await self._directory.entry(entry.module)
            await self._check_free(entry, present)
            if present is not None and _says(present) == _says(entry):
                return present
            # First: a pause that a look at an earlier module of that name has left is not this one's.
            async with answering(self._redis, seconds=_PATIENCE_SECONDS):
                await self._redis.delete(self._settings.keys.manifest_fetch(entry.module))
            if await self._directory.replace(entry.module, text, entry):
                return entry
        raise OperationRefused(f"Module {entry.module!r} keeps being changed by others: try again.")

    async def _remove(self, module: str, drain_seconds: float) -> ModuleEntry:
        for _ in range(_MOST_TRIES):
            text, present = await self._directory.entry(module)
            if present is None and text:
                await self._directory.replace(module, text, None)  # it counts for no module
                return ModuleEntry(module=module, removed_at=await self._now())
            if present is None or present.is_removed:
                hosts = await self._check_unannounced(module, "it is there as long as they are: end them")
                if module in hosts.modules:  # all of them have ended
                    await self._directory.forget_hosts(hosts, removed=module)
                    return ModuleEntry(module=module, removed_at=await self._now())
                raise OperationRefused(f"There is no module {module!r} in the fleet's directory.")
            if present.is_static and module in await self._directory.fed():
                raise OperationRefused(
                    f"Module {module!r} is in the settings of workers or beat: take it out of TOOLFLEET_MODULE_SERVICES there."
                )
            gone = present.model_copy(update={"removed_at": await self._now(), "drain_seconds": drain_seconds})
            if await self._directory.replace(module, text, None if present.is_static else gone):
                return gone
        raise OperationRefused(f"Module {module!r} keeps being changed by others: try again.")

    async def _now(self) -> float:
        """Return the time by Redis's clock, which workers use: this machine's may be off."""
        async with answering(self._redis, seconds=_PATIENCE_SECONDS):
            seconds, micros = await self._redis.time()
        return float(seconds) + float(micros) / 1e6

    def _check_name(self, module: str) -> None:
        if module in {LOCAL, SCHEDULER}:
            raise OperationRefused(f"Module {module!r} is the fleet's own: another one needs another name.")

    async def _check_unannounced(self, module: str, otherwise: str) -> JudgedHosts:
        hosts = (await self._directory.read()).hosts
        found = hosts.modules.get(module)
        if found is not None and found.replicas:
            at = ", ".join(replica.url for replica in found.replicas)
            raise OperationRefused(f"Module {module!r} is announced by its hosts ({at}); {otherwise}.")
        return hosts

    async def _check_free(self, entry: ModuleEntry, present: ModuleEntry | None) -> None:
        if present is None or present.is_removed:
            return
        if present.is_static and entry.module in await self._directory.fed():
            raise OperationRefused(
                f"Module {entry.module!r} is in the settings of workers or beat, which come first: nothing is added."
            )
        if not present.is_static and present.url != entry.url:
            raise OperationRefused(
                f"Module {entry.module!r} is at {plain_url(present.url or '-')} already, and the older address stays: "
                f"`toolfleet modules remove {entry.module}` first."
            )


def _says(entry: ModuleEntry) -> tuple[object, ...]:
    said = entry.url, entry.slow, entry.timeout_seconds, entry.scales_from_zero
    return *said, entry.public_only, entry.removed_at, entry.origin
