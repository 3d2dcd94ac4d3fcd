"""Declares the settings of webhooks that tell of the registry's changes; a part of `Settings`."""

from typing import Annotated, Any, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode

from toolfleet_registry.config.job_settings import secret_fault
from toolfleet_registry.config.setting_values import Count, read_json
from toolfleet_registry.contracts.event_kinds import EVENT_KINDS, EventKind
from toolfleet_registry.redis.urls import is_http_url

MOST_WEBHOOKS = 20  # each has a queue and connections of its own, in every worker


class WebhookSettings(BaseSettings, defer_build=True):
    """Settings of the webhooks that are told of the fleet's tools."""

    # A URL may hold a token in its path: neither is shown anywhere.
    registry_webhooks: Annotated[dict[str, tuple[EventKind, ...]], NoDecode] = Field(default={}, repr=False)
    """URLs that get a `POST` for each event of the registry: comma-separated, or a JSON list; or JSON: URL -> kinds of event, none of
    them: all. At most 20."""
    registry_webhooks_secret: str | None = Field(default=None, repr=False)
    """Signs them, as Standard Webhooks does: `whsec_` and base64 of 24 to 64 random bytes. Needed with `registry_webhooks`; another one than
    the core's, or a receiver could wake the core."""
    dead_webhooks_kept: Count = 10_000
    """Events that a receiver did not accept within `wake_give_up_seconds`, kept for an operator, of 100 MB together at most; the oldest
    go first."""

    @field_validator("registry_webhooks", mode="before")
    @classmethod
    def _read_webhooks(cls, value: Any) -> Any:
        if isinstance(value, str):
            is_json = value.lstrip()[:1] in {"{", "["}
            value = read_json(value) if is_json else [url.strip() for url in value.split(",") if url.strip()]
        if isinstance(value, list | tuple) and all(isinstance(url, str) for url in value):
            return dict.fromkeys(value, ())
        if not isinstance(value, dict) or not all(_are_kinds(kinds) for kinds in value.values()):
            raise ValueError(f"must be URLs, or JSON: URL -> a list with any of {', '.join(EVENT_KINDS)}")
        return value

    @field_validator("registry_webhooks")
    @classmethod
    def _check_webhooks(cls, webhooks: dict[str, tuple[EventKind, ...]]) -> dict[str, tuple[EventKind, ...]]:
        if len(webhooks) > MOST_WEBHOOKS:
            raise ValueError(f"must be at most {MOST_WEBHOOKS} URLs")
        if not all(is_http_url(url) for url in webhooks):
            raise ValueError("must be http:// or https:// URLs with a host")
        return webhooks

    @field_validator("registry_webhooks_secret")
    @classmethod
    def _check_webhooks_secret(cls, secret: str | None) -> str | None:
        if secret is not None and (fault := secret_fault(secret)) is not None:
            raise ValueError(fault)
        return secret

    @model_validator(mode="after")
    def _check_webhooks_are_signed(self) -> Self:
        if self.registry_webhooks and self.registry_webhooks_secret is None:
            raise ValueError(
                "TOOLFLEET_REGISTRY_WEBHOOKS needs TOOLFLEET_REGISTRY_WEBHOOKS_SECRET, or its receivers could not know who sends"
            )
        if self.registry_webhooks_secret is not None and self.registry_webhooks_secret == getattr(
            self, "core_secret", None
        ):
            raise ValueError(
                "TOOLFLEET_REGISTRY_WEBHOOKS_SECRET must be another one than TOOLFLEET_CORE_SECRET, or a receiver could wake the core"
            )
        return self


def _are_kinds(value: object) -> bool:
    return isinstance(value, list | tuple) and all(kind in EVENT_KINDS for kind in value)
