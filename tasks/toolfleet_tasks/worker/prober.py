"""Looks whether a module is there that failed: on behalf of the fleet while its breaker is open, else for this worker alone.

Of the whole fleet one process at a time looks after an open breaker, by `GET /health` and never by anybody's call.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any

from toolfleet_registry.contracts.outcomes import Health
from toolfleet_registry.directory.known_modules import KnownModules
from toolfleet_registry.redis.script import Script
from toolfleet_registry.settings import Settings
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.system.process import this_process
from toolfleet_registry.time import fleet_clock, machine_clock
from toolfleet_tasks.lua.breaker import ASK, PROBED, REACHED, UNREACHED
from toolfleet_tasks.lua.constants import SLOTS_COUNT_SECONDS
from toolfleet_tasks.ports import Runner
from toolfleet_tasks.presence.fleet_versions import read_notes
from toolfleet_tasks.queues import lane_of
from toolfleet_tasks.redis.connection import PipelinedConnection
from toolfleet_tasks.redis.durable_write import run_durably

log = get_logger(__name__)

PROBE_SECONDS = 2.0
_LOCK_SECONDS = PROBE_SECONDS + 1  # that nobody else looks: who has died meanwhile is replaced then
UNREADY_SECONDS = 30.0
"""A module that says for so long that it cannot serve now is tried nevertheless: its `/health` may mean something else."""

_VERDICTS = {Health.WELL: "well", Health.UNKNOWN: "none", Health.NOT_READY: "unready"}


class Finding(Enum):
    """What there is to know of a module now."""

    WELL = "well"
    """This worker may begin calls, as far as the breaker lets it."""
    OPEN = "open"
    """Its breaker is, and decides about its calls."""
    AWAY = "away"
    """This worker cannot connect to it, and others may."""
    BLOCKED = "blocked"
    """This worker cannot connect to anything new: it is its own trouble."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """One look at a module. `seconds`: how long its breaker is open, if it is; `is_closed`: whether it surely is."""

    finding: Finding
    seconds: float = 0
    is_closed: bool = False


class Prober:
    """Looks at modules for one worker, over the connection to the Redis of the results.

    `unready_seconds`: how long a module's word that it is not ready counts.
    """

    def __init__(
        self,
        connection: PipelinedConnection,
        settings: Settings,
        runner: Runner,
        *,
        known: KnownModules | None = None,
        unready_seconds: float = UNREADY_SECONDS,
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._runner = runner
        self._known = KnownModules(settings) if known is None else known
        self._unready_seconds = unready_seconds
        self._unready_since: dict[str, float] = {}
        self.reasons: dict[str, str] = {}  # by module: why a call could not connect to it, the last time
        self._longest_ms = round(settings.breaker_seconds * 1000)
        self._worker = this_process().name  # as it notes its slots

    async def probe(self, module: str, *, is_unreached: bool) -> ProbeResult:
        """Look at a module. `is_unreached`: this worker could not connect to it.

        Takes a few seconds at most while Redis answers. Raises `RedisConnectionClosed` and `ResponseError`.
        """
        others = await self._others(module)
        answer = await self._run(ASK, module, probe_ms=round(_LOCK_SECONDS * 1000), has_others=int(bool(others)))
        what = answer[0].decode()
        if what == "open":
            return ProbeResult(Finding.OPEN, answer[1] / 1000)
        if what == "probe":
            return await self._probe_for_all(module)
        if is_unreached:
            return await self._probe_for_itself(module, others)
        return ProbeResult(Finding.WELL, is_closed=what == "closed")

    def forget(self, module: str) -> None:
        """It is looked at no more: what it says the next time is news."""
        self._unready_since.pop(module, None)
        self.reasons.pop(module, None)

    async def unreached(self, module: str) -> None:
        """Note that this worker cannot connect to the module."""
        await self._unreached(module, await self._others(module))

    async def _others(self, module: str) -> list[str]:
        """The other live workers of the module's lane."""
        key, since = (
            self._settings.keys.slots(lane_of(module, self._known.settings)),
            fleet_clock.now() - SLOTS_COUNT_SECONDS,
        )
        notes: list[bytes] = await self._connection.execute("ZRANGEBYSCORE", key, round(since), "+inf")
        return [worker.name for worker in read_notes(notes) if worker.name != self._worker]

    async def _probe_for_all(self, module: str) -> ProbeResult:
        health = await self._runner.probe(module, seconds=PROBE_SECONDS)
        log.info("module_probed", module=module, health=health)
        verdict, bearable_ms = _VERDICTS.get(health, "away"), round(self._unready_seconds * 1000)
        longest_ms = self._longest_ms
        open_ms = await self._run(PROBED, module, verdict=verdict, longest_ms=longest_ms, bearable_ms=bearable_ms)
        if health is Health.WELL:
            return ProbeResult(Finding.WELL)
        # Of one that is tried though it is not ready, the next look finds that the breaker lets calls in.
        return ProbeResult(Finding.BLOCKED) if health is Health.UNKNOWN else ProbeResult(Finding.OPEN, open_ms / 1000)

    async def _probe_for_itself(self, module: str, others: list[str]) -> ProbeResult:
        health = await self._health(module)
        if health is Health.UNKNOWN:
            return ProbeResult(Finding.BLOCKED)
        if health is Health.WELL:
            await self._run(REACHED, module)
            return ProbeResult(Finding.WELL)
        return await self._unreached(module, others)

    async def _unreached(self, module: str, others: list[str]) -> ProbeResult:
        live, why = [self._worker, *others], self.reasons.get(module, "")
        open_ms = await self._run(UNREACHED, module, longest_ms=self._longest_ms, why=why, live=live)
        return ProbeResult(Finding.OPEN, open_ms / 1000) if open_ms else ProbeResult(Finding.AWAY)

    async def _health(self, module: str) -> Health:
        """What this worker finds; it remembers for itself since when a module is not ready, as the breaker does for all."""
        health = await self._runner.probe(module, seconds=PROBE_SECONDS)
        if health is not Health.NOT_READY:
            self._unready_since.pop(module, None)
            return health
        since = self._unready_since.setdefault(module, machine_clock.monotonic())
        return Health.WELL if machine_clock.monotonic() - since >= self._unready_seconds else health

    async def _run(self, script: Script, module: str, **args: Any) -> Any:
        breaker = self._settings.keys.breaker(module)
        return await run_durably(
            self._connection, script, script.parameters(breaker=breaker, worker=self._worker, **args)
        )
