"""Counts what the suite has found: exit codes say nothing of extensions, each scenario's `checks.json` says it all."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_SHOWN = {"FAILURE": "failed", "SKIPPED": "skipped", "WARNING": "warned"}
_MOMENT = re.compile(r"-\d{4}-\d{2}-\d{2}T[\d-]+Z$")


@dataclass(frozen=True, slots=True)
class Check:
    """One requirement that was tried. `status` is the suite's word, such as `SUCCESS`."""

    id: str
    status: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Scenario:
    """The checks of one scenario."""

    name: str
    checks: tuple[Check, ...]


@dataclass(frozen=True)
class Report:
    """What one set of requirements came to: `title` names it. Scenarios that had to run and did not are failed checks."""

    title: str
    scenarios: tuple[Scenario, ...]
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, title: str, found: Mapping[str, Scenario], wanted: Iterable[str], seconds: float) -> "Report":
        """The report on the wanted scenarios."""
        missing = Check("ran", "FAILURE", "the scenario did not run to its end")
        scenarios = tuple(found.get(name) or Scenario(name, (missing,)) for name in wanted)
        counts = Counter(check.status for scenario in scenarios for check in scenario.checks)
        return cls(title, scenarios, seconds, counts)

    @property
    def failed(self) -> list[str]:
        """Each failed check in a line."""
        return self._lines("FAILURE")

    def text(self) -> str:
        """The counts, and a line for each check that did not simply pass."""
        counts = self.counts
        head = (
            f"{self.title}: {counts['SUCCESS']} passed, {counts['FAILURE']} failed, {counts['SKIPPED']} skipped, "
            f"{counts['WARNING']} warned, in {len(self.scenarios)} scenarios"
        )
        words = {"FAILURE": "failed", "SKIPPED": "skipped", "WARNING": "warned"}
        return "\n".join(
            [head, *(f"  {word} {line}" for status, word in words.items() for line in self._lines(status))]
        )

    def facts(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "set": self.title,
            "seconds": round(self.seconds, 1),
            "passed": self.counts["SUCCESS"],
            "failed": self.counts["FAILURE"],
            "skipped": self.counts["SKIPPED"],
            "warned": self.counts["WARNING"],
            "scenarios": {
                each.name: [
                    {"id": check.id, "status": check.status, **({"message": check.message} if check.message else {})}
                    for check in each.checks
                ]
                for each in self.scenarios
            },
        }

    def _lines(self, status: str) -> list[str]:
        return [
            f"{scenario.name}: {check.id}: {check.message}"
            for scenario in self.scenarios
            for check in scenario.checks
            if check.status == status
        ]


def read(folder: Path) -> dict[str, Scenario]:
    """The scenarios whose results are in a folder, by their names."""
    found = dict[str, Scenario]()
    for path in sorted(folder.rglob("checks.json")):
        name = _MOMENT.sub("", str(path.parent.relative_to(folder))).removeprefix(
            "server-",
        )
        checks = json.loads(path.read_text())
        found[name] = Scenario(name, tuple(_check(each) for each in checks))
    return found


def _check(raw: Mapping[str, Any]) -> Check:
    status = str(raw["status"])
    message = raw.get("errorMessage") or (raw.get("description") if status in _SHOWN else None)
    return Check(str(raw["id"]), status, " ".join(str(message or "").split()))
