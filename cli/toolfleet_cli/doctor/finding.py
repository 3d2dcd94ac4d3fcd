"""Describes what the doctor finds, and what a check brings home."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Severity(StrEnum):
    """The weight of a finding. A note weighs nothing: the fleet works as it is."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One problem: what is wrong, why it matters, and the command that fixes it, or the steps to take.

    `quoted`: text of others about it, such as a module's, with any content: the user of the command is shown it, and no
    bundle has it.
    """

    severity: Severity
    what: str
    why: str
    mend: str
    quoted: str = ""

    @property
    def shown(self) -> str:
        """The text of the problem, with the quoted text."""
        return f"{self.what} {self.quoted}" if self.quoted else self.what

    @property
    def weighs(self) -> bool:
        """Whether it is a reason to act."""
        return self.severity is not Severity.NOTE


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The findings of one check, and `facts` that it has seen, as JSON: figures, versions and names, and no personal data."""

    findings: tuple[Diagnosis, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])


def error(what: str, why: str, mend: str, *, quoted: str = "") -> Diagnosis:
    """The fleet does not do its work, or will lose or double some."""
    return Diagnosis(Severity.ERROR, what, why, mend, quoted)


def warning(what: str, why: str, mend: str, *, quoted: str = "") -> Diagnosis:
    """Make a warning: it works, and something will go wrong."""
    return Diagnosis(Severity.WARNING, what, why, mend, quoted)


def remark(what: str, why: str, mend: str) -> Diagnosis:
    """Make a note: it works, and might be better."""
    return Diagnosis(Severity.NOTE, what, why, mend)
