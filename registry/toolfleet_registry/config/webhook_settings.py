"""Declares the settings of what the fleet sends over HTTP: wake-ups of the agent's core at the end of jobs, and webhooks; a part of `Settings`."""

import re
from base64 import b64decode
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode

from toolfleet_registry.config.host_settings import SecretName
from toolfleet_registry.config.setting_values import Count, Mapped, read_json, read_list
from toolfleet_registry.contracts import Level
from toolfleet_registry.contracts.message import DEFERS_BUILD, Seconds
from toolfleet_registry.contracts.names import SCHEDULER
from toolfleet_registry.contracts.tool_definition import EVENT_KINDS, EventKind
from toolfleet_registry.redis.urls import is_http_url

_SECRET_BYTES, _LONGEST_SECRET_BYTES = 24, 64  # as Standard Webhooks has it

ApprovalNotice = Literal["asked", "voted", "edited", "approved", "rejected", "expired", "withdrawn"]
"""What may happen to an approval."""

MOST_WEBHOOKS = 20  # each has a queue and connections of its own, in every worker
_MOST_APPROVERS = 20  # each one's secrets are tried for a request
_APPROVER_NAME = r"[A-Za-z0-9_.-]{1,100}"
_ASKED_AND_DECIDED: tuple[ApprovalNotice, ...] = ("asked", "approved", "rejected", "expired", "withdrawn")


class JobSettings(BaseSettings, defer_build=True):
    """Settings of jobs, and of the delivery of their wake-ups."""

    core_url: str | None = Field(default=None, repr=False)
    """The agent's core: `POST {core_url}/continue` wakes a conversation. None: wake-ups are read with
    `fleet.wakeups.completions`."""
    core_secret: str | None = Field(default=None, repr=False)
    """The secret that signs requests to the core, as Standard Webhooks defines it: `whsec_` and base64 of 24 to 64
    random bytes. Required with `core_url`."""
    wake_give_up_seconds: Seconds = 3 * 86_400
    """How long a wake-up is sent again to a core that does not accept it, before it becomes a dead letter: a long
    weekend. The idempotency keys of calls that follow from a wake-up (`Delivery.key`) are remembered for an hour
    longer. Use one value for all processes."""
    jobs_interval_seconds: float = Field(default=1, ge=0.1, le=60)
    """How often beat looks for jobs that are due, and so how late a poll can be. A job can poll once a second at
    most, or once in this interval if it is shorter."""
    jobs_per_user: Count = 100
    """Unfinished jobs that a user can have. More of them come from a model in a loop."""
    scheduler: bool = False
    """Whether the fleet has the module `scheduler`, with which a model creates jobs. Use one value for agents and
    workers."""
    scheduler_permission: Literal["guest", "user", "admin", "owner"] = "admin"
    """The permission that the tools of `scheduler` need."""

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


class WebhookSettings(BaseSettings, defer_build=True):
    """Settings of the webhooks that are told of the fleet's tools."""

    # A URL may hold a token in its path: neither is shown anywhere.
    registry_webhooks: Mapped[str, tuple[EventKind, ...]] = Field(default={}, repr=False)
    """URLs that get a `POST` for each event of the registry, at most 20: comma-separated, or a JSON list, or a JSON
    object of URL -> kinds of events (an empty list: all kinds)."""
    registry_webhooks_secret: str | None = Field(default=None, repr=False)
    """The secret that signs requests to the webhooks, as Standard Webhooks defines it: `whsec_` and base64 of 24 to
    64 random bytes. Required with `registry_webhooks`. It must differ from `core_secret`, or a receiver could wake
    the core."""

    @field_validator("registry_webhooks", mode="before")
    @classmethod
    def _read_webhooks(cls, value: Any) -> Any:
        value = read_json(value) if isinstance(value, str) and value.lstrip().startswith("{") else read_list(value)
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


class ApprovalWebhook(BaseModel):
    """One URL that is told of approvals."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, defer_build=DEFERS_BUILD)

    url: str = Field(repr=False)
    """The URL that it is sent to. Only the settings can name it."""
    secret: SecretName
    """The secret that signs it, by its name in `[secrets]`, or of an environment variable: `whsec_` and base64 of 24 to 64 bytes."""
    events: tuple[ApprovalNotice, ...] = _ASKED_AND_DECIDED
    """Of what it is told."""

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        if not is_http_url(url):
            raise ValueError("must be an http:// or https:// URL with a host")
        return url


class WebhookApprover(BaseModel):
    """One outside system that may decide, as a user of the fleet."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, defer_build=DEFERS_BUILD)

    secrets: Annotated[tuple[SecretName, ...], Field(min_length=1, max_length=5)]
    """Name of a secret -> where hosts read it: `[secrets.GITHUB_TOKEN]` with `variable`, `file` or `command`. A
    secret without an entry is read from the environment variable of its name."""
    user_id: Annotated[str, Field(min_length=1, max_length=256)]
    """The user in whose name it decides."""
    permission: Level = "user"
    """What that user may do: with `users` of a rule the name is enough."""


class ApprovalChannels(BaseModel):
    """Channels of approvals other than commands, REST and MCP."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, defer_build=DEFERS_BUILD)

    webhooks: tuple[ApprovalWebhook, ...] = ()
    """Who is told, at most 20."""
    approvers: dict[str, WebhookApprover] = {}
    """Name -> an outside system that decides by signed requests, at most 20."""

    @model_validator(mode="before")
    @classmethod
    def _take_one_secret(cls, value: Any) -> Any:
        """`secret = "NAME"` of an approver stands for one in `secrets`."""
        if not isinstance(value, dict) or not isinstance(value.get("approvers"), dict):
            return value
        approvers = {name: _with_list(one) for name, one in value["approvers"].items()}
        return {**value, "approvers": approvers}

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.webhooks) > MOST_WEBHOOKS or len(self.approvers) > _MOST_APPROVERS:
            raise ValueError(f"at most {MOST_WEBHOOKS} webhooks, and {_MOST_APPROVERS} approvers")
        if len({each.url for each in self.webhooks}) < len(self.webhooks):
            raise ValueError("each webhook has a URL of its own")
        if wrong := [name for name in self.approvers if not re.fullmatch(_APPROVER_NAME, name)]:
            raise ValueError(f"an approver cannot be named {wrong[0][:80]!r}: letters, digits, '_', '.' and '-'")
        names = [name for each in self.approvers.values() for name in each.secrets]
        if len(set(names)) < len(names) or {each.secret for each in self.webhooks} & set(names):
            raise ValueError("each approver has secrets of its own, which sign nothing else: who is told could decide")
        return self


def _with_list(approver: Any) -> Any:
    if not isinstance(approver, dict) or "secret" not in approver or "secrets" in approver:
        return approver
    return {**{name: value for name, value in approver.items() if name != "secret"}, "secrets": [approver["secret"]]}


class ApprovalSettings(BaseSettings, defer_build=True):
    """Settings of the people outside of the fleet who hear of approvals and decide them."""

    approvals: Annotated[ApprovalChannels, NoDecode, BeforeValidator(read_json)] = Field(
        default=ApprovalChannels.model_construct(), repr=False
    )
    """`[approvals]` with `webhooks` (each with `url`, `secret` and perhaps `events`) and `approvers` (name ->
    `secret`, `user_id` and `permission`); or JSON. Workers need the webhooks, gateways the approvers. Secrets are
    given by name, and read like those of hosts."""
