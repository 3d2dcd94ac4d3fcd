"""Reads the profiles of agents that are in force, from the fleet's Redis, for agents and workers."""

import asyncio
from collections.abc import Awaitable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, cast

from redis.asyncio import Redis
from redis.client import NEVER_DECODE

from toolfleet_registry.agents.known_profiles import KnownProfiles
from toolfleet_registry.agents.stored_profiles import ProfileVersion, agent_seal, profile_names, read_profile
from toolfleet_registry.config.agent_profile import AgentProfile, OwnMiddlewareSpec, PiiSpec
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.redis.servers import answering
from toolfleet_registry.settings import Settings
from toolfleet_registry.store.documents import NOTHING_KEPT, Documents, documents_of, reading
from toolfleet_registry.system.loggers import get_logger

_PATIENCE_SECONDS = 5
_IMPORT_SECONDS = 10.0
_REPORTED_SECONDS = 3600

# However the client was built: one value that is no text would else fail the reading of all.
_AS_BYTES = {NEVER_DECODE: True}

_log = get_logger(__name__)


class LiveProfiles:
    """Loads stored profiles into `known` when they have changed. One per process.

    Known profiles are kept while Redis is away, and also if it has lost its data: then no operator has changed
    anything. Raises `FleetUnavailable` when Redis does not answer within 5 s, and `SettingsError` when it is made with
    a signing key and without the libraries for that.
    """

    def __init__(self, redis: Redis, settings: Settings, known: KnownProfiles) -> None:
        self._redis = redis
        self._names = profile_names(settings.keys)
        self._faults_key = settings.keys.registry.agent_faults
        self._seal = agent_seal(settings)
        self.known = known
        """Those of this process."""
        self._revision = ""
        self._read = dict[str, tuple[str, ProfileVersion | str]]()
        self._turn = asyncio.Lock()  # of two readings the later one counts

    async def load(self) -> None:
        """Load the profiles that are stored now."""
        async with self._turn:
            found = await self._find()
            if found is None:
                return
            if found.revision == NOTHING_KEPT and self._revision:
                _log.warning("agent_profiles_lost", kept=len(self._read))
                return
            await self._take(found)
            self._revision = found.revision

    async def _find(self) -> Documents | None:
        command = reading(self._names, self._revision or NOTHING_KEPT)
        async with self._answering():
            return documents_of(await cast("Awaitable[Any]", self._redis.execute_command(*command, **_AS_BYTES)))

    async def _take(self, found: Documents) -> None:
        self._read = {name: (text, self._judged(name, text)) for name, text in found.entries.items()}
        profiles, versions, refused = dict[str, AgentProfile](), dict[str, int](), dict[str, str]()
        for name, (_, judged) in self._read.items():
            if isinstance(judged, str):
                refused[name] = judged
            elif judged.profile is not None:
                profiles[name], versions[name] = judged.profile, judged.version
        faults = await self._faults(profiles)
        await self._report({f"{name} {versions[name]}": fault for name, fault in faults.items()})
        admitted = {name: profile for name, profile in profiles.items() if name not in faults}
        self.known.take(admitted, versions=versions, refused={**refused, **faults})

    async def _faults(self, profiles: Mapping[str, AgentProfile]) -> dict[str, str]:
        """Return why profiles cannot be applied here, by name.

        Importing their classes may take a while, within a limit.
        """
        faults = dict[str, str]()
        for name, profile in profiles.items():
            if not any(isinstance(spec, OwnMiddlewareSpec | PiiSpec) for spec in profile.middleware):
                continue
            try:
                async with asyncio.timeout(_IMPORT_SECONDS):
                    fault = await asyncio.to_thread(self.known.fault_here, profile)
            except TimeoutError:
                fault = f"what it names was not imported within {_IMPORT_SECONDS:g} s"
            if fault is not None:
                faults[name] = fault
                _log.warning("agent_profile_not_applied", agent=name, reason=fault)
        return faults

    async def _report(self, faults: Mapping[str, str]) -> None:
        """Let operators see what cannot be applied, for an hour. Fails open: the log has it."""
        if not faults:
            return
        try:
            async with self._answering(), self._redis.pipeline(transaction=True) as pipe:
                pipe.hset(self._faults_key, items=[part for fault in faults.items() for part in fault])
                pipe.expire(self._faults_key, _REPORTED_SECONDS)
                await pipe.execute()
        except FleetUnavailable as exc:
            _log.warning("agent_faults_not_reported", error=str(exc))

    def _judged(self, name: str, text: str) -> ProfileVersion | str:
        """Return the stored version of an agent's profile, or why it is ignored, which is logged the first time."""
        known = self._read.get(name)
        if known is not None and known[0] == text:
            return known[1]
        found = read_profile(name, text, self._seal)
        if isinstance(found, str):
            _log.warning("agent_profile_ignored", agent=name[:80], reason=found)
        return found

    def _answering(self) -> AbstractAsyncContextManager[None]:
        return answering(self._redis, seconds=_PATIENCE_SECONDS)
