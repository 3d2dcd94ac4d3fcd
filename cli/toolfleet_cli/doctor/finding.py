"""Describes what the doctor finds, and what a check brings home."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Severity(StrEnum):
    """How much a finding weighs. A note weighs nothing: the fleet works as it is."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One thing that is wrong: what, why it matters, and the command that mends it, or what is to be done.

    `quoted`: words of others about it, such as a module's, in which anything may stand: whoever asks is shown them, and no bundle has
    them.
    """

    severity: Severity
    what: str
    why: str
    mend: str
    quoted: str = ""

    @property
    def shown(self) -> str:
        """What is wrong, with what others say of it."""
        return f"{self.what} {self.quoted}" if self.quoted else self.what

    @property
    def weighs(self) -> bool:
        """Whether it is a reason to act."""
        return self.severity is not Severity.NOTE


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What one check has found, and `facts` that it has seen, as JSON: figures, versions and names, and no people's data."""

    findings: tuple[Diagnosis, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])


def error(what: str, why: str, mend: str, *, quoted: str = "") -> Diagnosis:
    """The fleet does not do its work, or will lose or double some."""
    return Diagnosis(Severity.ERROR, what, why, mend, quoted)


def warning(what: str, why: str, mend: str, *, quoted: str = "") -> Diagnosis:
    """It works, and something will go wrong."""
    return Diagnosis(Severity.WARNING, what, why, mend, quoted)


def remark(what: str, why: str, mend: str) -> Diagnosis:
    """It works, and might be better."""
    return Diagnosis(Severity.NOTE, what, why, mend)
