"""Defines what a check of the doctor is, and what it is given."""

import os
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from redis.asyncio import Redis

from toolfleet_cli.doctor.finding import CheckResult
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.redis.urls import fleet_url, is_redis_url
from toolfleet_registry.settings import Settings

_ANSWER_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Patient:
    """The fleet that is examined, as this process sees it. `canary_seconds`: how long a canary is waited for."""

    settings: Settings
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    folder: Path = field(default_factory=Path.cwd)
    canary_seconds: float = 5.0

    def redis(self) -> AbstractAsyncContextManager[Redis]:
        """A client of the fleet's Redis; each answer is waited for at most 3 s. Raises `SettingsError` without an address."""
        url = fleet_url(self.settings.redis_url)
        return async_client(url, master=self.settings.sentinel_master, timeout_seconds=_ANSWER_SECONDS)

    def servers(self) -> dict[str, str]:
        """The URLs of the Redis servers that the fleet has, each with the name that people are shown."""
        settings = self.settings
        found = {"The broker's Redis": settings.broker, "Redis": settings.redis_url}
        urls = {url: name for name, url in found.items() if url is not None and is_redis_url(url)}
        return {name: url for url, name in urls.items()}


class Check(Protocol):
    """One thing that the doctor examines.

    `seconds`: after so long it is given up, and that is a finding. `asks_redis`: it is left out where Redis does not answer.
    """

    @property
    def name(self) -> str:
        """The name that people are shown."""
        ...

    @property
    def seconds(self) -> float:
        """The seconds that it may take."""
        ...

    @property
    def asks_redis(self) -> bool:
        """Whether it needs the fleet's Redis."""
        ...

    async def examine(self, patient: Patient) -> CheckResult:
        """Look. May raise redis-py's errors, `OSError` and `FleetError`, each of which means that it could not look."""
        ...
