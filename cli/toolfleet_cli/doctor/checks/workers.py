"""Finds workers that live and are deaf: they say that they are there, and answer nothing."""

from collections.abc import Iterable
from dataclasses import dataclass

from toolfleet_cli.doctor.check import Patient
from toolfleet_cli.doctor.finding import CheckResult, Diagnosis, error, warning
from toolfleet_tasks.operations.worker_answers import WorkerAnswers, ask_workers

_ASK_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class WorkerCheck:
    """Asks by Celery's remote control, which each worker answers on its loop."""

    name: str = "workers"
    asks_redis: bool = True
    seconds: float = 12.0

    async def examine(self, patient: Patient) -> CheckResult:
        """See the module."""
        found = await ask_workers(patient.settings, seconds=_ASK_SECONDS)
        facts = {
            "noted": [one.name for one in found.noted],
            "answering": sorted(found.answering),
            "listening": found.listening,
        }
        return CheckResult(tuple(_findings(found)), facts)


def _findings(found: WorkerAnswers) -> Iterable[Diagnosis]:
    if not found.noted and not found.listening:
        yield error("There is no worker.", "No call is executed.", "toolfleet worker")
    for name in found.deaf:
        host, _, pid = name.rpartition(":")
        yield error(
            f"Worker {name} says that it lives, and does not answer within {_ASK_SECONDS:g} s.",
            "It is frozen, or its loop stands still. What it holds goes to others when its lease is over.",
            f"On {host}: kill -CONT {pid} if somebody has stopped it, else kill -ABRT {pid} shows in its log where it stands; start another.",
        )
    silent = (found.listening or 0) - len(found.noted)
    if silent > 0:
        yield warning(
            f"{silent} worker processes are connected, and have said nothing of themselves for 20 s.",
            "They are frozen, or cut off from half of Redis: what they take is only found when their leases end.",
            "toolfleet redis-cli client list shows their addresses; end these processes.",
        )
