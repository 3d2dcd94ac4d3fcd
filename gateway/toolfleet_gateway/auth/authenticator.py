"""Finds the sender of a request by its API key or OAuth token, and tells clients where tokens come from (RFC 9728)."""

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from toolfleet_gateway.auth.identity import AuthRefused, Identity, SentCredential, read_credential, unavailable
from toolfleet_gateway.auth.own_secrets import GeneratedKey, generate_key
from toolfleet_gateway.auth.tokens import IssuerKeys, TokenVerifier
from toolfleet_registry.api_keys import LiveKeys
from toolfleet_registry.config.gateway_settings import LOOPBACK_HOSTS
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock
from toolfleet_registry.system.loggers import get_logger

_log = get_logger(__name__)

WELL_KNOWN = "/.well-known/oauth-protected-resource"
"""The path of its metadata, below its origin; its own path follows."""

_ERRORS = {"invalid-key": "invalid_token", "invalid-token": "invalid_token", "insufficient-scope": "insufficient_scope"}


@dataclass(frozen=True, slots=True)
class ProtectedResource:
    """A gateway that takes the tokens of `issuer`, with all of these `scopes`. `url` is the gateway's, without a final slash."""

    url: str
    issuer: str
    scopes: Sequence[str] = ()

    def metadata(self, endpoint: str = "") -> dict[str, Any]:
        """Return the metadata of the resource, or of an endpoint below it such as `/mcp`, as JSON."""
        document: dict[str, Any] = {
            "resource": f"{self.url}{endpoint}",
            "authorization_servers": [self.issuer],
            "bearer_methods_supported": ["header"],
            "resource_name": "Toolfleet",
        }
        return {**document, "scopes_supported": [*self.scopes]} if self.scopes else document

    def covering(self, endpoint: str) -> frozenset[str]:
        """Return the audiences of a token that is valid at an endpoint below the gateway: the endpoint, and each parent of it."""
        parts = endpoint.split("/")[1:]
        return frozenset(f"{self.url}/{'/'.join(parts[:count])}" for count in range(1, len(parts) + 1))

    def metadata_path(self, endpoint: str = "") -> str:
        """Return the path of that document at the gateway's origin."""
        return f"{WELL_KNOWN}{urlsplit(self.url).path}{endpoint}"

    def metadata_url(self, endpoint: str = "") -> str:
        """Return the URL of its metadata."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}{self.metadata_path(endpoint)}"


def challenge_of(refused: AuthRefused, resource: ProtectedResource | None, endpoint: str = "") -> str | None:
    """Return the `WWW-Authenticate` header of a refusal, or `None` if other credentials would not help."""
    if refused.status != 401 and refused.problem != "insufficient-scope":  # noqa: PLR2004 - HTTP's
        return None
    fields = {"realm": "toolfleet"}
    if error := _ERRORS.get(refused.problem):
        fields |= {"error": error, "error_description": _quotable(str(refused))}
    if resource is not None:
        fields["resource_metadata"] = resource.metadata_url(endpoint)
        if scopes := refused.scopes or tuple(resource.scopes):
            fields["scope"] = " ".join(scopes)
    return "Bearer " + ", ".join(f'{name}="{value}"' for name, value in fields.items())


def _quotable(text: str) -> str:
    """Return the characters that RFC 6750 allows in a description."""
    return "".join(each if " " <= each <= "~" and each not in '"\\' else "'" for each in text)


class Authenticator:
    """Takes the keys of the registry and, where there are, an issuer's tokens and the gateway's `generated` key.

    `resource` says where tokens come from. No key and no token is stored.
    """

    def __init__(
        self,
        keys: LiveKeys,
        *,
        tokens: TokenVerifier | None = None,
        resource: ProtectedResource | None = None,
        generated: GeneratedKey | None = None,
    ) -> None:
        self.keys = keys
        self.resource = resource
        self._tokens = tokens
        self._generated = generated

    async def identify(
        self, headers: Iterable[tuple[bytes, bytes]], query: bytes = b"", *, endpoint: str = ""
    ) -> Identity:
        """Return the sender of a request with these headers and this query, in ASGI's form.

        Raises `AuthRefused`, with the headers of the answer: `WWW-Authenticate`, in which `endpoint`, such as `/mcp`,
        is the requested one, and `Retry-After`.
        """
        try:
            return await self._identify(read_credential(headers, query), endpoint)
        except AuthRefused as exc:
            if challenge := challenge_of(exc, self.resource, endpoint):
                exc.headers["WWW-Authenticate"] = challenge
            raise

    async def is_live(self, identity: Identity) -> bool:
        """Return whether it would be let in now: for connections that outlast a request. Raises `AuthRefused`, 503."""
        if identity.expires_at is not None and fleet_clock.now() >= identity.expires_at:
            return False
        if identity.key_id is None or (self._generated is not None and identity.key_id == self._generated.key.id):
            return True
        try:
            return await self.keys.is_live(identity.key_id)
        except FleetUnavailable as exc:
            raise unavailable("The API keys cannot be read") from exc

    async def _identify(self, credential: SentCredential | None, endpoint: str) -> Identity:
        if credential is None:
            raise AuthRefused("missing-credentials", "Send an API key or a token: Authorization: Bearer …")
        if credential.kind == "token":
            if self._tokens is None:
                raise AuthRefused("invalid-token", "This gateway takes API keys only, and this is none.")
            resources = frozenset[str]() if self.resource is None else self.resource.covering(endpoint)
            return await self._tokens.verify(credential.text, resources=resources)
        if self._generated is not None and self._generated.is_sent_as(credential.text):
            return Identity.of_key(self._generated.key)
        try:
            key = await self.keys.find(credential.text)
        except FleetUnavailable as exc:
            raise unavailable("The API keys cannot be read") from exc
        if key is None:
            raise AuthRefused("invalid-key", "There is no such API key: it is mistyped, was revoked, or has expired.")
        return Identity.of_key(key)


@asynccontextmanager
async def authenticating(settings: Settings, generated: GeneratedKey | None = None) -> AsyncGenerator[Authenticator]:
    """Yield the authenticator of a gateway. `generated` is the key that `key_to_generate` made. Raises `SettingsError`."""
    async with AsyncExitStack() as stack:
        keys = LiveKeys.of(settings)
        stack.push_async_callback(keys.aclose)
        tokens, resource = None, None
        if settings.oauth_issuer is not None:
            issuer, scopes = settings.oauth_issuer, settings.oauth_scopes
            issuer_keys = IssuerKeys(issuer, jwks_url=settings.oauth_jwks_url, algorithms=settings.oauth_algorithms)
            stack.push_async_callback(issuer_keys.aclose)
            tokens = TokenVerifier(
                issuer_keys,
                issuer,
                frozenset(settings.oauth_audience),
                frozenset(settings.oauth_algorithms),
                scopes,
                settings.oauth_claim_names,
            )
            resource = ProtectedResource(str(settings.gateway_resource), issuer, scopes)
        yield Authenticator(keys, tokens=tokens, resource=resource, generated=generated)


async def key_to_generate(settings: Settings, host: str, text: str | None = None) -> GeneratedKey | None:
    """Make the one key of a gateway that would otherwise let no one in: there is no issuer, and no API key.

    `None`: there is one.

    `host` is where the gateway listens. `text`: the key, if the process that starts several has made it. None is made
    if other machines could connect: there no one is let in until there is an API key. Raises `SettingsError` for an
    invalid `text`, and `FleetUnavailable` if it is unknown whether there are keys.
    """
    if text is None and settings.oauth_issuer is not None:
        return None
    if text is None:
        keys = LiveKeys.of(settings)
        try:
            if await keys.has_any():
                return None
        finally:
            await keys.aclose()
    if host not in LOOPBACK_HOSTS:
        _log.warning(
            "gateway_without_keys",
            host=host,
            hint="All requests are refused until `toolfleet keys create` has made a key.",
        )
        return None
    return generate_key(text)
