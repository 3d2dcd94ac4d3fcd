"""Says which versions of messages the workers read, where they differ from each other or from this process."""

from collections.abc import Sequence
from dataclasses import dataclass

from toolfleet_cli.doctor.check import Patient
from toolfleet_cli.doctor.finding import CheckResult, Diagnosis, remark, warning
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.presence.worker_notes import LiveWorker, live_workers, mixed_versions

_ORDER = "Upgrade what is older: docs/operations/upgrade.md says in which order."


@dataclass(frozen=True, slots=True)
class VersionCheck:
    """Two versions work together: what mixes for long is the trouble."""

    name: str = "versions"
    asks_redis: bool = True
    seconds: float = 8.0

    async def examine(self, patient: Patient) -> CheckResult:
        """See the module."""
        workers = {*await live_workers(patient.settings, "fast"), *await live_workers(patient.settings, "slow")}
        ordered = sorted(workers, key=lambda one: one.name)
        facts = {"this_process": json_text.VERSION, "workers": {one.name: one.version for one in ordered}}
        return CheckResult(tuple(_findings(ordered)), facts)


def _findings(workers: Sequence[LiveWorker]) -> list[Diagnosis]:
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
