"""Declares the settings of gateways, and of whose tokens they take; a part of `Settings`."""

from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode

from toolfleet_registry.config.setting_values import read_json
from toolfleet_registry.redis.urls import is_http_url

LOOPBACK_HOSTS: Final = frozenset({"127.0.0.1", "::1", "localhost"})
"""Those that only this machine reaches."""

Signature = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""How a token may be signed: by a private key. What its verifiers could sign as well, or nobody has signed, is none of them."""

ClaimUse = Literal["user_id", "permission", "modules", "role", "conversation_id"]
"""What a claim of a token can become."""

DEFAULT_CLAIMS: Final[dict[ClaimUse, str]] = {
    "user_id": "sub",
    "permission": "toolfleet_permission",
    "modules": "toolfleet_modules",
    "role": "toolfleet_role",
    "conversation_id": "toolfleet_conversation",
}


class GatewaySettings(BaseSettings):
    """Where a gateway is, and who issues tokens for it."""

    gateway_url: str | None = None
    """The gateway's URL as its clients know it, with its path if it is below one. It is in what is said of OAuth; None: the first audience."""
    oauth_issuer: str | None = None
    """The authorization server whose tokens gateways take: its issuer URL, letter for letter. None: they take API keys only."""
    oauth_audience: Annotated[tuple[str, ...], NoDecode] = ()
    """What must be in a token's `aud`: the URL of the gateway, by RFC 8707. One of several, comma-separated or JSON; needed with an issuer."""
    oauth_jwks_url: str | None = None
    """The issuer's public keys. None: where its metadata say, of RFC 8414 or of OpenID Connect."""
    oauth_claims: Annotated[dict[ClaimUse, str], NoDecode] = {}
    """JSON: which claims become `user_id` (`sub`), `permission`, `modules`, `role` and `conversation_id` (`toolfleet_permission` and so
    on), where they are others. Dots lead into objects: `realm_access.roles`."""
    oauth_algorithms: Annotated[frozenset[Signature], NoDecode] = frozenset({"RS256", "ES256", "EdDSA"})
    """How tokens may be signed. An issuer uses one or two of these; each other one is an attack."""
    oauth_scopes: Annotated[tuple[str, ...], NoDecode] = ()
    """What must be in a token's `scope`, all of them, comma-separated or JSON."""

    @property
    def oauth_claim_names(self) -> dict[ClaimUse, str]:
        """The claim of each use."""
        return {**DEFAULT_CLAIMS, **self.oauth_claims}

    @property
    def gateway_resource(self) -> str | None:
        """The gateway's URL, without a slash at its end, if it is known."""
        url = self.gateway_url or next(iter(self.oauth_audience), None)
        return url.rstrip("/") if url is not None and is_http_url(url) else None

    @field_validator("oauth_audience", "oauth_algorithms", "oauth_scopes", mode="before")
    @classmethod
    def _read_texts(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if value.lstrip().startswith("["):
            return read_json(value)
        return [part.strip() for part in value.split(",") if part.strip()]

    @field_validator("oauth_claims", mode="before")
    @classmethod
    def _read_claims(cls, value: Any) -> Any:
        return read_json(value) if isinstance(value, str) else value

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
    """Whether nobody on the way can change what comes from there: by TLS, or as it does not leave this machine."""
    return is_http_url(url) and (urlsplit(url).scheme == "https" or urlsplit(url).hostname in LOOPBACK_HOSTS)
