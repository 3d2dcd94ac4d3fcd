"""Stores, rolls back and removes agents' profiles, for an operator; each change has its line in the audit."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Self

from toolfleet_registry.agents.stored.entries import ProfileVersion
from toolfleet_registry.agents.stored.factory import is_elsewhere
from toolfleet_registry.agents.stored.profile_copy import ProfileCopy
from toolfleet_registry.agents.stored.profiles import StoredProfiles
from toolfleet_registry.catalog.operator import fleets_registry
from toolfleet_registry.config.agents.agent_profile import AgentProfile
from toolfleet_registry.errors import FleetUnavailable, OperationRefused
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.settings import Settings
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.operations.change_trail import Actor, ChangeKind, ChangeTrail

_log = get_logger(__name__)


class AgentChanges:
    """Operators' changes of agents.

    Raises as `StoredProfiles` does, and `RegistryAway` if the registry is not the fleet's.

    Agents have a change at once, workers within two seconds.
    """

    def __init__(self, settings: Settings, trail: ChangeTrail, by: Actor) -> None:
        self._settings = settings
        self.trail = trail
        self._by = by.by if by.user_id is None else f"{by.user_id} ({by.by})"

    @classmethod
    @asynccontextmanager
    async def of(cls, settings: Settings, by: Actor) -> AsyncGenerator[Self]:
        """Open the changes for the fleet of these settings."""
        async with ChangeTrail.of(settings, by) as trail:
            yield cls(settings, trail, by)

    async def put(self, name: str, profile: AgentProfile, *, expected: int | None = None) -> ProfileVersion:
        """Store a profile as `StoredProfiles.put` does.

        Raises `OperationRefused` for a selector that can select no tool.
        """
        try:
            profile.check_selectors()
        except ValueError as exc:
            raise OperationRefused(f"{exc}.") from exc
        return await self._made(
            "agent_put", name, lambda stored: stored.put(name, profile, by=self._by, expected=expected)
        )

    async def rollback(self, name: str, version: int, *, expected: int | None = None) -> ProfileVersion:
        """Implements `StoredProfiles.rollback`."""
        return await self._made(
            "agent_rolled_back",
            name,
            lambda stored: stored.rollback(name, version, by=self._by, expected=expected),
            to_version=version,
        )

    async def remove(self, name: str, *, expected: int | None = None) -> ProfileVersion:
        """Implements `StoredProfiles.remove`."""
        return await self._made(
            "agent_removed", name, lambda stored: stored.remove(name, by=self._by, expected=expected)
        )

    async def _made(
        self, kind: ChangeKind, name: str, change: Callable[[StoredProfiles], ProfileVersion], **facts: int
    ) -> ProfileVersion:
        async with self.trail.change(kind, name, **facts) as noted:
            if is_elsewhere(self._settings):  # else the lines of another fleet's registry would rule here
                async with fleets_registry(self._settings):
                    pass
            made = await _asked(self._settings, change)
            noted.facts["version"] = made.version
        await self._copy()
        return made

    async def _copy(self) -> None:
        """Bring a change to the fleet's Redis. Fails open: it is stored, and the next refresh of the fleet does it."""
        if not is_elsewhere(self._settings):
            return
        url, master = str(self._settings.redis_url), self._settings.sentinel_master
        try:
            async with async_client(url, master=master) as redis:
                await ProfileCopy(redis, self._settings).renew()
        except FleetUnavailable as exc:
            _log.warning("agent_profiles_not_copied", error=str(exc))


async def _asked(settings: Settings, change: Callable[[StoredProfiles], ProfileVersion]) -> ProfileVersion:
    """Change the profiles in a thread: the store is synchronous, and limits the time of each answer itself."""

    def work() -> ProfileVersion:
        with contextlib.closing(StoredProfiles.of(settings)) as stored:
            return change(stored)

    return await asyncio.to_thread(work)
