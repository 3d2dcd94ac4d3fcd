"""Checks the modules: finds those whose manifest is missing, old, or not in effect, and those that calls do not reach."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from toolfleet_cli.console.output import age
from toolfleet_cli.doctor.check import CheckResult, Diagnosis, Patient, error, remark, warning
from toolfleet_registry.catalog.operator import Difference, operating
from toolfleet_tasks.operations.fleet_status import ModuleTrouble, read_status
from toolfleet_tasks.resources.agents import profile_notes

_COMMAND = "toolfleet modules list; see the log"

_APPLY = "Correct it as it says: `toolfleet up` says when it is applied, and `toolfleet status` shows what is left."


@dataclass(frozen=True, slots=True)
class ManifestCheck:
    """Goes by what workers have found, and asks no module itself."""

    name: str = "manifests"
    asks_redis: bool = True
    seconds: float = 15.0

    async def examine(self, patient: Patient) -> CheckResult:
        """See the module."""
        settings = patient.settings
        status = await read_status(settings)
        async with operating(settings) as operator:
            differences, closed = await operator.differences(), await operator.closed()
        lines = (error(one, "The fleet works as if that line were not there.", _APPLY) for one in status.not_applied)
        findings = [
            *lines,
            *(_trouble(one) for one in status.troubles),
            *_drift(differences),
            *_closed(closed, differences),
        ]
        findings += [
            remark(note.text, note.why, "toolfleet modules list; toolfleet tools list")
            for note in await profile_notes(settings)
        ]
        facts: dict[str, Any] = {
            # Neither a module's error nor the reason of a closed tool: both quote what a module has said.
            "troubles": [asdict(replace(one, error=None)) for one in status.troubles],
            "drifted": {one.tool_name: one.kind for one in differences},
            "closed": sorted(closed),
        }
        return CheckResult(tuple(findings), facts)


def _trouble(one: ModuleTrouble) -> Diagnosis:
    quoted = one.error or ""
    if one.trouble == "stale":
        return warning(
            f"The manifest of module {one.module} is {age(one.seconds)} old.",
            "Agents are offered tools as they were; those that it has lost fail.",
            "See that beat runs (`toolfleet beat`), and `toolfleet modules refresh` asks all modules at once.",
            quoted=quoted,
        )
    if one.trouble == "recovering":
        return remark(f"Module {one.module} is recovering: {one.reason}.", "Calls may wait for seconds.", _COMMAND)
    if one.trouble == "failing":
        return warning(
            f"Module {one.module} is failing: {one.reason}.", "Its calls fail.", f"{_COMMAND} of {one.module}"
        )
    if one.trouble == "not ready":
        return error(
            f"Module {one.module} is not ready.",
            "The fleet goes on without it, and uses it once it is ready.",
            f"toolfleet logs {one.module}; correct what it says",
            quoted=f"{quoted[:1].upper()}{quoted[1:].removesuffix('.')}.",
        )
    if one.trouble == "away":
        return error(
            f"Module {one.module} is left alone: {one.reason}.",
            "Its calls are refused until a worker reaches it.",
            f"Start {one.module}, or correct its address: toolfleet modules list",
            quoted=quoted,
        )
    return error(
        f"There is no manifest of module {one.module} ({one.trouble}).",
        "Agents are offered none of its tools.",
        "toolfleet modules refresh; if that finds nothing, start the module, and see that beat runs",
        quoted=quoted,
    )


def _drift(differences: Iterable[Difference]) -> Iterable[Diagnosis]:
    by_module = dict[tuple[str, bool], list[Difference]]()
    for one in differences:
        by_module.setdefault((one.tool_name.partition(".")[0], one.kind == "changed"), []).append(one)
    for (module, is_served), found in sorted(by_module.items()):
        names = ", ".join(sorted(one.tool_name for one in found)[:5])
        if is_served:
            yield warning(
                f"Module {module} serves {len(found)} tools that have changed since they were accepted: {names}.",
                "Models read what its server says of them now.",
                f"toolfleet tools diff {module}, then toolfleet tools approve TOOL; `pin = true` in [hosts.{module}] withholds changes",
            )
            continue
        yield warning(
            f"Module {module} offers {len(found)} tools otherwise than they are in effect: {names}.",
            "They are closed, or called as they were, until somebody approves the change.",
            f"toolfleet tools diff {module}, then toolfleet tools approve TOOL",
        )


def _closed(closed: Mapping[str, str], differences: Iterable[Difference]) -> Iterable[Diagnosis]:
    others = set(closed) - {one.tool_name for one in differences}
    if others:
        names = ", ".join(sorted(others)[:5])
        yield remark(
            f"{len(others)} tools are closed to everybody: {names}.",
            "Calls of them are refused.",
            "toolfleet tools list --closed",
        )
