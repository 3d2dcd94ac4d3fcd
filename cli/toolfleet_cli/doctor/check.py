"""Defines what a check of the doctor is, what it is given, and what it finds."""

import os
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeAlias

from redis.asyncio import Redis

from toolfleet_registry.redis.urls import is_redis_url
from toolfleet_registry.settings import Settings

_ANSWER_SECONDS = 3.0


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
    fix: str
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


def error(what: str, why: str, fix: str, *, quoted: str = "") -> Diagnosis:
    """Make an error: the fleet does not do its work, or will lose or double some."""
    return Diagnosis(Severity.ERROR, what, why, fix, quoted)


def warning(what: str, why: str, fix: str, *, quoted: str = "") -> Diagnosis:
    """Make a warning: it works, and something will go wrong."""
    return Diagnosis(Severity.WARNING, what, why, fix, quoted)


def remark(what: str, why: str, fix: str) -> Diagnosis:
    """Make a note: it works, and might be better."""
    return Diagnosis(Severity.NOTE, what, why, fix)


@dataclass(frozen=True, slots=True)
class Patient:
    """The fleet that is examined, as this process sees it. `canary_seconds`: how long a canary is waited for."""

    settings: Settings
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    folder: Path = field(default_factory=Path.cwd)
    canary_seconds: float = 5.0

    def redis(self) -> AbstractAsyncContextManager[Redis]:
        """Return a client of the fleet's Redis; each answer is waited for at most 3 s. Raises `SettingsError` without an address."""
        return self.settings.redis_client(timeout_seconds=_ANSWER_SECONDS)

    def servers(self) -> dict[str, str]:
        """Return the URLs of the Redis servers that the fleet has, each with the name that people are shown."""
        settings = self.settings
        found = {"The broker's Redis": settings.broker, "Redis": settings.redis_url}
        urls = {url: name for name, url in found.items() if url is not None and is_redis_url(url)}
        return {name: url for url, name in urls.items()}


Examine: TypeAlias = Callable[[Patient], Coroutine[Any, Any, CheckResult]]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that the doctor examines.

    `examine` may raise redis-py's errors, `OSError` and `FleetError`: each means that it could not examine. `seconds`: it is given
    up after so long, and that is a finding. `asks_redis`: it is left out if Redis does not answer.
    """

    name: str
    examine: Examine
    seconds: float
    asks_redis: bool = True
