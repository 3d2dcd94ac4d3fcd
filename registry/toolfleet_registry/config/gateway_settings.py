"""Declares the settings of gateways: accepted tokens, accepted hosts and origins, and limits of requests; a part of `Settings`."""

import re
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode

from toolfleet_registry.config.setting_values import Count, Mapped, Names, Networks, Ordered, read_list
from toolfleet_registry.redis.urls import is_http_url

LOOPBACK_HOSTS: Final = frozenset({"127.0.0.1", "::1", "localhost"})
"""Those that only this machine reaches."""

DEFAULT_PORT: Final = 8484
"""Where a gateway listens that was told nothing else."""

GATEWAY_LEAVE_SECONDS: Final = 1.0
"""How long a gateway that was told to stop still accepts requests, while `/readyz` says that it is not ready: load balancers notice."""

GATEWAY_STOP_SECONDS: Final = 30.0
"""How long requests that are still running then can take to end: as long as a call's request is held open by default."""

Signature = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""The algorithms that tokens can be signed with. All need a private key: a verifier cannot sign with them, and `none` is not among them."""


def _read_hosts(value: Any) -> Any:
    """Read a list as `read_list` does; `[::1]` is an address."""
    try:
        return read_list(value)
    except ValueError:
        return [name.strip() for name in value.split(",") if name.strip()]


_Hosts = Annotated[frozenset[str], NoDecode, BeforeValidator(_read_hosts)]

ClaimUse = Literal[
    "user_id",
    "permission",
    "modules",
    "role",
    "agent",
    "conversation_id",
    "acts_for_others",
    "requests_per_second",
    "streams",
]
"""What a claim of a token can become."""

DEFAULT_CLAIMS: Final[dict[ClaimUse, str]] = {
    "user_id": "sub",
    "permission": "toolfleet_permission",
    "modules": "toolfleet_modules",
    "role": "toolfleet_role",
    "agent": "toolfleet_agent",
    "conversation_id": "toolfleet_conversation",
    "acts_for_others": "toolfleet_acts_for_others",
    "requests_per_second": "toolfleet_requests_per_second",
    "streams": "toolfleet_streams",
}


class GatewaySettings(BaseSettings, defer_build=True):
    """Settings of a gateway: its address, its token issuer, and limits of requests."""

    gateway_url: str | None = None
    """The URL of the gateway as its clients know it, with its path if it has one. It appears in the OAuth metadata.
    None: the first audience."""
    oauth_issuer: str | None = None
    """The issuer URL of the authorization server whose tokens gateways accept, exactly as the tokens have it. None:
    gateways accept API keys only."""
    oauth_audience: Ordered[str] = ()
    """The URL of the gateway that a token must have in `aud` (RFC 8707), or several URLs of which it must have one:
    comma-separated or JSON. Required with an issuer."""
    oauth_jwks_url: str | None = None
    """The URL of the issuer's public keys. None: it is read from the issuer's metadata, as RFC 8414 or OpenID Connect
    define them."""
    oauth_claims: Mapped[ClaimUse, str] = {}
    """JSON: use -> claim, for claims with other names than the default ones. The uses are `user_id` (by default the
    claim `sub`), `permission`, `modules`, `role`, `agent`, `conversation_id`, `acts_for_others`,
    `requests_per_second` and `streams` (`toolfleet_permission` and so on; each means what it means in an API key). A
    dot selects a member of an object: `realm_access.roles`."""
    oauth_algorithms: Names[Signature] = frozenset({"RS256", "ES256", "EdDSA"})
    """The algorithms that tokens can be signed with. Name only the one or two that your issuer uses: a token with any
    other algorithm is an attack."""
    oauth_scopes: Ordered[str] = ()
    """Scopes that a token must have in `scope`, all of them: comma-separated or JSON."""

    gateway_port: int | None = Field(default=None, ge=0, lt=2**16)
    """The port of the gateway; 0: any free port. None: 8484, or for the gateway of `toolfleet up` another port if
    that is taken."""
    gateway_key: str | None = Field(default=None, repr=False)
    """The API key that gateways on a loopback address accept, in the form in which a gateway prints its own. Set it
    to give several gateways on one machine the same key. None: a gateway without an issuer and without API keys
    creates a key at start, and prints it."""
    gateway_hosts: _Hosts = frozenset({"localhost", "127.0.0.1", "[::1]"})
    """Host names, without ports, that the gateway accepts in the header `Host`: comma-separated or JSON. `*`: any
    name; then a website can reach a gateway on its visitor's machine by a name that it controls."""
    gateway_origins: _Hosts = frozenset()
    """Websites whose scripts can use the gateway, such as `https://console.example.com`, in addition to those of
    `gateway_hosts`: comma-separated or JSON."""
    gateway_root_path: str = ""
    """The path, such as `/toolfleet`, under which a proxy serves the gateway, if the proxy removes it from
    requests."""
    gateway_connections: Count = 4_000
    """Connections that a gateway can have open at once, each with a file descriptor. Above that, a few more are
    accepted for health checks. At most a quarter of them, from one address, can be without a request yet; at most
    half of them can be streams of events."""
    gateway_trusted_proxies: Networks = ()
    """CIDRs of the proxies in front of a gateway, comma-separated or JSON. Many clients share their addresses, so the
    limit on connections without a request does not apply to them."""

    mcp_task_tools: Names[str] = frozenset()
    """Tools, as `module.tool`, whose calls take too long to wait for. An MCP client without support for tasks gets an
    error that names what it lacks. Without this setting such a client is told that its call runs, and how to ask for
    the result."""
    mcp_repeat_window_seconds: float = Field(default=0, ge=0, le=3600, allow_inf_nan=False)
    """How long a second call with the same arguments counts as a repeat of the first one, if the tool is not safe to
    run twice and the MCP client sends no idempotency key. 0: never. Two calls within this time that are both intended
    are executed once."""

    @property
    def oauth_claim_names(self) -> dict[ClaimUse, str]:
        """The claim of each use."""
        return {**DEFAULT_CLAIMS, **self.oauth_claims}

    @property
    def gateway_resource(self) -> str | None:
        """The gateway's URL, without a slash at its end, if it is known."""
        url = self.gateway_url or next(iter(self.oauth_audience), None)
        return url.rstrip("/") if url is not None and is_http_url(url) else None

    @field_validator("gateway_url")
    @classmethod
    def _check_gateway_url(cls, url: str | None) -> str | None:
        if url is not None and (not is_http_url(url) or set("?#@") & set(url)):
            raise ValueError("must be an http:// or https:// URL with a host, and no query")
        return url

    @field_validator("oauth_issuer", "oauth_jwks_url")
    @classmethod
    def _check_private_urls(cls, url: str | None) -> str | None:
        if url is not None and not is_private_url(url):
            raise ValueError("must be an https:// URL; or http://, on this machine only")
        return url

    @field_validator("oauth_algorithms")
    @classmethod
    def _check_algorithms(cls, algorithms: frozenset[Signature]) -> frozenset[Signature]:
        if not algorithms:
            raise ValueError("must name one at least")
        return algorithms

    @field_validator("gateway_origins")
    @classmethod
    def _check_origins(cls, origins: frozenset[str]) -> frozenset[str]:
        for origin in origins:
            if origin != "*" and not re.fullmatch(r"https?://[^/\s]+/?", origin):
                raise ValueError(
                    f"{origin[:80]!r} is no origin: give scheme and host, such as https://console.example.com"
                )
        return origins

    @field_validator("gateway_root_path")
    @classmethod
    def _check_root_path(cls, path: str) -> str:
        if path and not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", path):
            raise ValueError("must begin with '/' and end without one, such as /toolfleet")
        return path

    @model_validator(mode="after")
    def _check_oauth(self) -> Self:
        if self.oauth_issuer is None:
            return self
        if not self.oauth_audience:
            raise ValueError(
                "TOOLFLEET_OAUTH_ISSUER needs TOOLFLEET_OAUTH_AUDIENCE, or a token for any other service would be let in"
            )
        if self.gateway_resource is None:
            raise ValueError(
                "TOOLFLEET_GATEWAY_URL must be set, as no TOOLFLEET_OAUTH_AUDIENCE comes first that is a URL"
            )
        return self


def is_private_url(url: str) -> bool:
    """Return whether the URL is safe from changes in transit: it uses TLS, or stays on this machine."""
    return is_http_url(url) and (urlsplit(url).scheme == "https" or urlsplit(url).hostname in LOOPBACK_HOSTS)
