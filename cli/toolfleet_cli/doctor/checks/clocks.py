"""Compares the clocks of this machine, of the workers' machines and of Redis."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from toolfleet_cli.doctor.check import Patient
from toolfleet_cli.doctor.finding import CheckResult, Diagnosis, error, warning
from toolfleet_registry.time import fleet_clock, machine_clock
from toolfleet_registry.time.slewed_clock import STEP_SECONDS
from toolfleet_tasks.lua.clock import READ

_US = 1e6
_SYNCHRONISE = "Let a time service run there: `timedatectl set-ntp true`, then `timedatectl timesync-status`."
_HARM = "Certificates, tokens and logs are wrong there; deadlines and leases go by the fleet's time."


@dataclass(frozen=True, slots=True)
class ClockCheck:
    """The fleet's time is Redis's, but for steps of its clock, which are bridged."""

    name: str = "clocks"
    asks_redis: bool = True
    seconds: float = 8.0

    async def examine(self, patient: Patient) -> CheckResult:
        """See the module."""
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
        most = patient.settings.max_clock_offset_seconds
        return CheckResult(tuple(_findings(own, step, workers, doubt=doubt, most=most)), facts)


def _findings(
    own: float, step: float, workers: Mapping[str, float], *, doubt: float, most: float
) -> Iterable[Diagnosis]:
    if abs(own) > STEP_SECONDS + doubt:
        yield warning(f"This machine's clock is {_off(own)} the fleet's time.", _HARM, _SYNCHRONISE)
    if abs(step) > STEP_SECONDS:
        yield warning(
            f"Redis's clock is {_off(step)} the fleet's time: somebody has set it while workers were at work.",
            "Keys expire by it, too early or too late, until the two meet again.",
            _SYNCHRONISE,
        )
    for worker, lead in workers.items():
        if abs(lead) > most:
            text = f"The clock of worker {worker} is {_off(lead)} the fleet's time."
            yield error(text, "That worker takes no calls (TOOLFLEET_MAX_CLOCK_OFFSET_SECONDS).", _SYNCHRONISE)
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
