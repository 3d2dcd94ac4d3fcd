"""Sends a canary through every lane and module queue, and reports those not answered, and workers that cannot reach a module."""

from collections.abc import Iterable
from dataclasses import dataclass

from toolfleet_cli.doctor.check import Patient
from toolfleet_cli.doctor.finding import CheckResult, Diagnosis, error, warning
from toolfleet_registry.contracts.names import LOCAL, SCHEDULER
from toolfleet_registry.directory.directory import ModuleDirectory
from toolfleet_registry.directory.known_modules import KnownModules
from toolfleet_tasks.operations.canaries import CanaryFlight, fly
from toolfleet_tasks.presence.consumers import workers_by_queue
from toolfleet_tasks.queue_states import QueueStateStore
from toolfleet_tasks.queues import CONTROL, lane_of, queue_of

_ASKED_NOTHING = frozenset({LOCAL, SCHEDULER})  # they are where the worker is
_MARGIN_SECONDS = 10.0
_WHY_SILENT = "Its calls wait in the same queue, and end as `expired`, or are begun late."


@dataclass(frozen=True, slots=True)
class CanaryCheck:
    """Canaries run no tools. `seconds` leaves room for several hundred modules."""

    name: str = "canary"
    asks_redis: bool = True
    seconds: float = 60.0

    async def examine(self, patient: Patient) -> CheckResult:
        """Queues that no worker consumes, or that are paused, get no canary: another check tells of them."""
        settings = patient.settings
        known = KnownModules(settings)
        async with patient.redis() as redis:
            known.take((await ModuleDirectory(redis, settings).read()).entries)
            states = await QueueStateStore(redis, settings).read()
        served = await workers_by_queue(settings)
        queues = {CONTROL: ""} if served[CONTROL] else {}
        for module in sorted(known.names - known.ending):
            if served[queue_of(module)] and not states.is_paused(module, lane_of(module, known.settings)):
                queues[queue_of(module)] = "" if module in _ASKED_NOTHING else module
        most = min(patient.canary_seconds, self.seconds - _MARGIN_SECONDS)
        flights = await fly(settings, queues, seconds=most) if queues else []
        return CheckResult(tuple(_findings(flights, most)), {"canaries": [_fact(one) for one in flights]})


def _findings(flights: Iterable[CanaryFlight], seconds: float) -> Iterable[Diagnosis]:
    for one in flights:
        if one.fate == "unknown":
            yield warning(
                f"A worker of {one.queue} does not know canaries: it is older than this doctor.",
                "Its queue cannot be examined, and it leaves what newer agents send to newer workers.",
                "Upgrade that worker: `toolfleet status --json` names the workers of each lane.",
            )
        elif one.fate == "waiting":
            yield error(
                f"Nobody has taken a canary out of {one.queue} within {seconds:g} s, though workers say that they consume it.",
                _WHY_SILENT,
                "Look at `toolfleet status`: start more workers if all slots are taken, else restart those of that lane.",
            )
        elif one.fate == "silent":
            yield error(
                f"A worker has taken a canary out of {one.queue} and has not answered within {seconds:g} s.",
                _WHY_SILENT,
                "Look for `loop_stalled` in the workers' logs (`toolfleet logs`), and restart the one that stands still.",
            )
        elif one.answer is not None and one.answer.health not in {None, "well"}:
            yield _unwell(one)


def _unwell(one: CanaryFlight) -> Diagnosis:
    health, worker = (one.answer.health, one.answer.worker) if one.answer is not None else ("", "")
    said = {
        "away": "does not answer `GET /health`",
        "not_ready": "says that it cannot serve now",
        "unknown": "cannot be asked: the worker itself has no descriptors, ports, route or name service",
    }
    return error(
        f"Module {one.module} {said.get(str(health), f'is {health}')}, says worker {worker}.",
        "Its calls fail, or wait until it is back.",
        f"Start the module, or correct its address: `toolfleet modules list` shows it. Try `curl -i ADDRESS/health` where {worker} runs.",
    )


def _fact(one: CanaryFlight) -> dict[str, object]:
    answer = one.answer
    return {
        "queue": one.queue,
        "fate": one.fate,
        "queued_seconds": one.queued,
        "total_seconds": one.total,
        "worker": None if answer is None else answer.worker,
        "release": None if answer is None else answer.release,
        "messages_version": None if answer is None else answer.version,
        "health": None if answer is None else answer.health,
        "health_seconds": None if answer is None else answer.health_seconds,
    }
