"""Finds out who has sent a request, by its API key or its OAuth token."""

from collections.abc import Iterable

from toolfleet_gateway.auth.credentials import SentCredential, read_credential
from toolfleet_gateway.auth.generated_key import GeneratedKey
from toolfleet_gateway.auth.identity import Identity
from toolfleet_gateway.auth.protected_resource import ProtectedResource, challenge_of
from toolfleet_gateway.auth.refusals import AuthRefused, unavailable
from toolfleet_gateway.auth.tokens import TokenVerifier
from toolfleet_registry.access.live_keys import LiveKeys
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.time import fleet_clock


class Authenticator:
    """Takes the keys of the registry and, where there are, an issuer's tokens and the gateway's `generated` key.

    `resource` says where tokens come from. It keeps nothing of a key or a token.
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
