"""Describes one module as the fleet's directory has it: where it is, which lane serves it, and how long its calls may take."""

from typing import Any, Literal
from urllib.parse import urlsplit, urlunsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

from toolfleet_registry.contracts.message import DEFERS_BUILD
from toolfleet_registry.contracts.names import LOCAL, SCHEDULER, is_module_name
from toolfleet_registry.directory.replicas import Replica
from toolfleet_registry.redis.urls import is_http_url
from toolfleet_registry.settings import Settings

SETTINGS = "settings"
"""The origin of an entry that workers and beat have put there, out of their settings."""

ADDED = "added"
"""The origin of an entry that somebody has added while the fleet was running."""

ANNOUNCED = "announced"
"""The origin of an entry that nobody has stored: hosts say that they serve the module."""


class ModuleEntry(BaseModel):
    """The directory's entry of one module.

    A reader of an earlier version ignores the fields that a later one has added.

    `url` is `None` for a module whose tools run in the workers. `origin` is `settings`, `added` or `announced`.
    `timeout_seconds` is the limit of its calls, `None`: that of its lane. `scales_from_zero`: its lane may have no
    worker at times, and calls wait for one. `public_only`: it was added over HTTP, and may be at no loopback or private
    address that `module_networks` does not name. Times are seconds since the epoch; a module with `removed_at` takes no
    new calls, and waiting calls are run for `drain_seconds` after it.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True, defer_build=DEFERS_BUILD)

    module: str
    url: str | None = None
    origin: str = ADDED
    slow: bool = False
    timeout_seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    scales_from_zero: bool = False
    public_only: bool = False
    added_at: float | None = None
    removed_at: float | None = None
    drain_seconds: float = Field(default=0, ge=0, allow_inf_nan=False)

    @field_validator("module")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not is_module_name(name):
            raise ValueError("a module's name may have letters, digits, '_' and '-' only")
        return name

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str | None) -> str | None:
        if url is not None and not is_http_url(url):
            raise ValueError("a module needs an http:// or https:// URL with a host")
        return None if url is None else url.rstrip("/")

    @property
    def is_static(self) -> bool:
        """Whether the entry is from the settings of workers or beat."""
        return self.origin == SETTINGS

    @property
    def is_removed(self) -> bool:
        """Whether the module takes no new calls."""
        return self.removed_at is not None

    @property
    def lane(self) -> Literal["fast", "slow"]:
        """The lane whose workers run its calls."""
        return "slow" if self.slow else "fast"

    def is_over(self, now: float) -> bool:
        """Return whether the module is removed and its waiting calls are no longer run."""
        return self.removed_at is not None and now >= self.removed_at + self.drain_seconds

    def text(self) -> str:
        """As it is stored: the same text for the same entry, in every process."""
        return self.model_dump_json(exclude_defaults=True)


class AnnouncedModule(ModuleEntry):
    """A module whose hosts announce themselves. `url` is that of the deciding host, or of the last one that was.

    `replicas` are the hosts that count, none while the module is away. `digest` is one of what they offer.
    """

    origin: str = ANNOUNCED
    digest: str = ""
    replicas: tuple[Replica, ...] = ()


def static_entries(settings: Settings) -> dict[str, ModuleEntry]:
    """The modules of a worker's or beat's settings, as the directory has them: without the passwords of their addresses."""
    urls: dict[str, str | None] = {name: plain_url(url) for name, url in settings.module_services.items()}
    own: dict[str, Any] = {LOCAL: settings.local_tools, SCHEDULER: settings.scheduler}
    urls |= dict.fromkeys(name for name, is_on in own.items() if is_on)
    return {
        name: ModuleEntry(
            module=name,
            url=url,
            origin=SETTINGS,
            slow=name in settings.slow_modules,
            timeout_seconds=module_limit(name, settings),
        )
        for name, url in urls.items()
    }


def module_limit(module: str, settings: Settings) -> float:
    """The limit of a module's calls, in seconds: the setting for it, or its lane's."""
    if module in settings.module_timeouts:
        return settings.module_timeouts[module]
    is_slow = module in settings.slow_modules
    return settings.tool_execution_timeout if is_slow else settings.default_timeout


def plain_url(url: str) -> str:
    """The URL without a user and a password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
