"""Checks the workers: whether they answer, read the same messages, have clocks that agree, and hold calls as long as these may run."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from redis.asyncio import Redis

from toolfleet_cli.doctor.check import CheckResult, Diagnosis, Patient, error, remark, warning
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.settings import HARD_LIMIT_MARGIN, Settings
from toolfleet_registry.system import fleet_clock, machine_clock
from toolfleet_registry.system.fleet_clock import STEP_SECONDS
from toolfleet_tasks.clock import MOST_OFFSET_SECONDS, READ
from toolfleet_tasks.control.startup_checks import COUNTS_SECONDS, mode_of
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.operations.worker_probes import WorkerAnswers, ask_workers
from toolfleet_tasks.presence import LiveWorker, live_workers, mixed_versions

_ASK_SECONDS = 2.0

_ORDER = "Upgrade what is older: docs/operations/upgrade.md says in which order."

_US = 1e6
_SYNCHRONISE = "Let a time service run there: `timedatectl set-ntp true`, then `timedatectl timesync-status`."
_HARM = "Certificates, tokens and logs are wrong there; deadlines and leases go by the fleet's time."

_ONE_MODE = "Set TOOLFLEET_VISIBILITY_TIMEOUT alike everywhere; end the workers that differ first."


async def check_workers(patient: Patient) -> CheckResult:
    """Ask the workers by Celery's remote control, which each worker answers on its loop."""
    found = await ask_workers(patient.settings, seconds=_ASK_SECONDS)
    facts = {
        "noted": [one.name for one in found.noted],
        "answering": sorted(found.answering),
        "listening": found.listening,
    }
    return CheckResult(tuple(_deaf_workers(found)), facts)


def _deaf_workers(found: WorkerAnswers) -> Iterable[Diagnosis]:
    if not found.noted and not found.listening:
        yield error("There is no worker.", "No call is executed.", "toolfleet worker")
    for name in found.deaf:
        host, _, pid = name.rpartition(":")
        yield error(
            f"Worker {name} says that it lives, and does not answer within {_ASK_SECONDS:g} s.",
            "It is frozen, or its loop stands still. What it holds goes to others when its lease is over.",
            f"On {host}: kill -CONT {pid} if it was stopped, else kill -ABRT {pid} shows in its log where it stands; start another.",
        )
    silent = (found.listening or 0) - len(found.noted)
    if silent > 0:
        yield warning(
            f"{silent} worker processes are connected, and have said nothing of themselves for 20 s.",
            "They are frozen, or cut off from half of Redis: what they take is only found when their leases end.",
            "toolfleet redis-cli client list shows their addresses; end these processes.",
        )


async def check_versions(patient: Patient) -> CheckResult:
    """Check the versions: two of them work together, but should not mix for long."""
    workers = {*await live_workers(patient.settings, "fast"), *await live_workers(patient.settings, "slow")}
    ordered = sorted(workers, key=lambda one: one.name)
    facts = {"this_process": json_text.VERSION, "workers": {one.name: one.version for one in ordered}}
    return CheckResult(tuple(_differing_versions(ordered)), facts)


def _differing_versions(workers: Sequence[LiveWorker]) -> list[Diagnosis]:
    found = list[Diagnosis]()
    if mixed := mixed_versions(workers):
        why = "Calls that use what is new wait for the newer workers, and end unexecuted if these go."
        found.append(warning(f"Workers read different versions of messages: {mixed}.", why, _ORDER))
    elif any(one.version > json_text.VERSION for one in workers):
        text = f"The workers read version {workers[0].version} of messages, and this process {json_text.VERSION}."
        found.append(remark(text, "What is installed here is older than the fleet.", _ORDER))
    elif any(one.version < json_text.VERSION for one in workers):
        text = (
            f"The workers read version {workers[0].version} of messages, and this process writes {json_text.VERSION}."
        )
        why = "What is new cannot be used yet: such calls end unexecuted."
        found.append(warning(text, why, _ORDER))
    return found


async def check_clocks(patient: Patient) -> CheckResult:
    """Check the clocks against the fleet's time, which is Redis's, but for steps of its clock, which are bridged."""
    keys = patient.settings.keys
    async with patient.redis() as redis:
        read = READ.parameters(clock_key=keys.clock, notes_key=keys.clock_notes, shown="", note="")
        before, asked_at = machine_clock.wall(), fleet_clock.suspend_aware()
        server, fleet, *_ = await redis.eval(READ.text, *read)
        doubt = (fleet_clock.suspend_aware() - asked_at) / 2
        notes: list[Any] = list(await redis.zrange(keys.clock_notes, 0, -1))
    own = before + doubt - int(fleet) / _US
    step = (int(server) - int(fleet)) / _US
    workers = _leads(notes)
    facts = {"this_machine_ahead": round(own, 3), "redis_ahead": round(step, 3), "workers_ahead": workers}
    return CheckResult(tuple(_wrong_clocks(own, step, workers, doubt=doubt)), facts)


def _wrong_clocks(own: float, step: float, workers: Mapping[str, float], *, doubt: float) -> Iterable[Diagnosis]:
    if abs(own) > STEP_SECONDS + doubt:
        yield warning(f"This machine's clock is {_off(own)} the fleet's time.", _HARM, _SYNCHRONISE)
    if abs(step) > STEP_SECONDS:
        yield warning(
            f"Redis's clock is {_off(step)} the fleet's time: it was set while workers ran.",
            "Keys expire by it, too early or too late, until the two meet again.",
            _SYNCHRONISE,
        )
    for worker, lead in workers.items():
        if abs(lead) > MOST_OFFSET_SECONDS:
            text = f"The clock of worker {worker} is {_off(lead)} the fleet's time."
            yield error(text, "That worker takes no calls.", _SYNCHRONISE)
        elif abs(lead) > STEP_SECONDS:
            yield warning(f"The clock of worker {worker} is {_off(lead)} the fleet's time.", _HARM, _SYNCHRONISE)


def _off(seconds: float) -> str:
    return f"{abs(seconds):.1f} s {'ahead of' if seconds > 0 else 'behind'}"


def _leads(notes: Iterable[bytes | str]) -> dict[str, float]:
    """Return the latest lead of each worker."""
    found = dict[str, float]()
    for note in notes:
        worker, _, seconds = (note if isinstance(note, str) else note.decode(errors="replace")).rpartition(" ")
        try:
            found[worker] = float(seconds)
        except ValueError:
            continue
    return found


async def check_leases(patient: Patient) -> CheckResult:
    """Check the leases of messages, which RabbitMQ does not have."""
    settings, modes = patient.settings, dict[str, list[str]]()
    if settings.has_redis_broker:
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
