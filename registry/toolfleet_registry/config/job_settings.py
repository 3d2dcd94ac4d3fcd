"""Declares the settings of jobs, and of the agent's core that their ends wake; a part of `Settings`."""

from base64 import b64decode
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings

from toolfleet_registry.config.setting_values import Count, Seconds
from toolfleet_registry.contracts.names import SCHEDULER
from toolfleet_registry.redis.urls import is_http_url

_SECRET_BYTES, _LONGEST_SECRET_BYTES = 24, 64  # as Standard Webhooks has it


class JobSettings(BaseSettings, defer_build=True):
    """Settings of jobs, and of the delivery of their wake-ups."""

    core_url: str | None = Field(default=None, repr=False)
    """The agent's core: `POST {core_url}/continue` wakes a conversation. None: `fleet.wakeups.completions` has the wake-ups."""
    core_secret: str | None = Field(default=None, repr=False)
    """Signs what is sent there, as Standard Webhooks does: `whsec_` and base64 of 24 to 64 random bytes. Needed with `core_url`."""
    wake_give_up_seconds: Seconds = 3 * 86_400
    """How long a core that does not accept is tried, before the wake-up becomes a dead letter: a long weekend.

    And, with an hour more, how long the keys of calls hold that follow from it (`Delivery.key`): one value for all."""
    jobs_interval_seconds: float = Field(default=1, ge=0.1, le=60)
    """How often beat has a worker look for jobs that are due: how late a poll may be. No job may poll more often than once a
    second, or than that if it is less."""
    jobs_per_user: Count = 100
    """Jobs of one user that have not ended; a model in a loop makes more."""
    scheduler: bool = False
    """Whether the fleet offers the module `scheduler`, with which a model makes jobs; one value for agents and workers."""
    scheduler_permission: Literal["guest", "user", "admin", "owner"] = "admin"
    """Who may use it."""

    @field_validator("core_url")
    @classmethod
    def _check_core_url(cls, url: str | None) -> str | None:
        if url is None:
            return None
        if not is_http_url(url):
            raise ValueError("must be an http:// or https:// URL with a host")
        return url.rstrip("/")

    @field_validator("core_secret")
    @classmethod
    def _check_core_secret(cls, secret: str | None) -> str | None:
        if secret is None:
            return None
        if (fault := secret_fault(secret)) is not None:
            raise ValueError(fault)
        return secret

    @model_validator(mode="after")
    def _check_scheduler(self) -> Self:
        if self.scheduler and SCHEDULER in getattr(self, "module_services", ()):
            raise ValueError(
                f"TOOLFLEET_SCHEDULER: its tools are the module {SCHEDULER!r}; the one at an address needs another name"
            )
        return self

    @model_validator(mode="after")
    def _check_core(self) -> Self:
        if self.core_url is not None and self.core_secret is None:
            raise ValueError("TOOLFLEET_CORE_URL needs TOOLFLEET_CORE_SECRET, or its core could not know who wakes it")
        return self


def secret_fault(secret: str) -> str | None:
    """Return what is wrong with a Standard Webhooks secret, or `None` if it is valid."""
    kind, _, text = secret.partition("_")
    try:
        key = b64decode(text, validate=True)
    except ValueError:
        key = b""
    if kind == "whsec" and _SECRET_BYTES <= len(key) <= _LONGEST_SECRET_BYTES:
        return None
    return (
        f"must be whsec_ and base64 of {_SECRET_BYTES} to {_LONGEST_SECRET_BYTES} random bytes: "
        '`echo "whsec_$(openssl rand -base64 32)"` makes one'
    )
