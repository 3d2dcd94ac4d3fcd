"""Holds the leases of the workers against each other, and against how long calls may run."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from toolfleet_cli.doctor.check import Patient
from toolfleet_cli.doctor.finding import CheckResult, Diagnosis, error, warning
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.redis.urls import is_redis_url
from toolfleet_registry.settings import HARD_LIMIT_MARGIN, Settings
from toolfleet_tasks.presence.transport_check import COUNTS_SECONDS, mode_of

_ONE_MODE = "Set TOOLFLEET_VISIBILITY_TIMEOUT alike everywhere; end the workers that differ first."


@dataclass(frozen=True, slots=True)
class LeaseCheck:
    """Checks the leases of messages, which RabbitMQ does not have."""

    name: str = "leases"
    asks_redis: bool = True
    seconds: float = 8.0

    async def examine(self, patient: Patient) -> CheckResult:
        """See the module."""
        settings, modes = patient.settings, dict[str, list[str]]()
        if is_redis_url(str(settings.broker)):
            async with async_client(str(settings.broker), master=settings.sentinel_master, timeout_seconds=3) as redis:
                modes = await _modes(redis, settings)
        findings = [*_of_modes(modes, settings), *_of_limits(settings)]
        return CheckResult(tuple(findings), {"lease_seconds": settings.lease_seconds, "modes": modes})


async def _modes(redis: Redis, settings: Settings) -> dict[str, list[str]]:
    since = (await redis.time())[0] - COUNTS_SECONDS
    found = dict[str, list[str]]()
    notes: list[Any] = list(await redis.zrangebyscore(settings.keys.modes, since, "+inf"))
    for note in notes:
        mode, _, worker = (note if isinstance(note, str) else note.decode(errors="replace")).partition(" ")
        found.setdefault(mode, []).append(worker)
    return found


def _of_modes(modes: Mapping[str, list[str]], settings: Settings) -> Iterable[Diagnosis]:
    why = "One worker takes a running call of the other for lost: it runs twice at once."
    if len(modes) > 1:
        named = "; ".join(f"{mode}: {', '.join(workers)}" for mode, workers in sorted(modes.items()))
        yield error(f"Workers use different transports or leases: {named}.", why, _ONE_MODE)
    elif modes and mode_of(settings) not in modes:
        (mode,) = modes
        text = f"The settings here say {mode_of(settings)}, and the workers use {mode}."
        yield warning(text, "A worker that is started with these settings ends at once.", _ONE_MODE)


def _of_limits(settings: Settings) -> Iterable[Diagnosis]:
    limits = {
        "TOOLFLEET_DEFAULT_TIMEOUT": settings.default_timeout,
        "TOOLFLEET_TOOL_EXECUTION_TIMEOUT": settings.tool_execution_timeout,
    }
    limits |= {f"TOOLFLEET_MODULE_TIMEOUTS of {name}": seconds for name, seconds in settings.module_timeouts.items()}
    name, longest = max(limits.items(), key=lambda one: one[1])
    needed = longest + HARD_LIMIT_MARGIN
    if settings.drain_seconds < needed:
        yield warning(
            f"A stopping worker waits {settings.drain_seconds:g} s for its calls, and {name} lets one run {longest:g} s.",
            "Calls that are longer are interrupted by a restart, and end as unknown.",
            f"export TOOLFLEET_DRAIN_SECONDS={needed:g}, and give processes longer than that before they are killed",
        )
    for name, seconds in limits.items():
        if seconds > settings.max_timeout:
            text = f"{name} ({seconds:g} s) is more than TOOLFLEET_MAX_TIMEOUT ({settings.max_timeout:g} s)."
            yield warning(text, "Calls end at the latter.", f"export TOOLFLEET_MAX_TIMEOUT={seconds:g}")
    if settings.result_ttl_seconds < longest:
        yield warning(
            f"Results are kept {settings.result_ttl_seconds:g} s, and a call may run {longest:g} s.",
            "The record of a call may be gone while it runs: a second message of it would run it again.",
            f"export TOOLFLEET_RESULT_TTL_SECONDS={max(21_600, int(2 * longest))}",
        )
