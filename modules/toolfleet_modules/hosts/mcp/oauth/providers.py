"""Makes the SDK's providers: one for each run of a flow, with the known state."""

import logging
from collections.abc import Awaitable, Callable

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from mcp.client.auth import OAuthClientProvider
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata
from pydantic import AnyUrl

from toolfleet_modules.hosts.mcp.oauth.authorization_record import AuthorizationRecord, RecordStorage
from toolfleet_modules.hosts.mcp.oauth.oauth_options import OAuthOptions
from toolfleet_modules.hosts.mcp.oauth.person_port import PersonPort

# What a flow finds is worded by its caller; the SDK's own words may show what a server has sent.
logging.getLogger("mcp.client.auth").setLevel(logging.CRITICAL)

_NOWHERE = "http://127.0.0.1/callback"  # if there is no login
Show = Callable[[str], Awaitable[None]]
_CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}


def provider_of(
    options: OAuthOptions, record: AuthorizationRecord, storage: RecordStorage, person: PersonPort | None, show: Show
) -> OAuthClientProvider:
    """A provider that knows what the record says; `show` is called with the address where this person must go."""
    provider = _made(options, storage, person, show)
    context = provider.context
    context.protected_resource_metadata = record.resource
    context.oauth_metadata = record.server
    context.auth_server_url = record.server_url
    return provider


def known_client(
    options: OAuthOptions, record: AuthorizationRecord, person: PersonPort | None
) -> OAuthClientInformationFull | None:
    """The client that is registered; `None` if there is none, or it is for another address to come back to."""
    if options.client_id is not None:
        is_secret = options.client_secret is not None
        return OAuthClientInformationFull(
            client_id=options.client_id,
            client_secret=options.client_secret,
            token_endpoint_auth_method=f"client_secret_{options.client_auth}" if is_secret else "none",
            redirect_uris=None,
            issuer=options.issuer,
        )
    client = record.client
    if client is None or person is None:
        return client
    return client if person.redirect_uri in {str(uri) for uri in client.redirect_uris or ()} else None


def signing_algorithm(pem: str) -> str:
    """The algorithm for a private key. Raises `ValueError` for a text that is none, or of a kind that signs nothing here."""
    try:
        key = load_pem_private_key(pem.encode(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ValueError("it is no private key in PEM without a password") from None
    match key:
        case rsa.RSAPrivateKey():
            return "RS256"
        case ec.EllipticCurvePrivateKey() if key.curve.name in _CURVES:
            return _CURVES[key.curve.name]
        case ed25519.Ed25519PrivateKey():
            return "EdDSA"
        case _:
            raise ValueError("it is a key of another kind than RSA, P-256, P-384, P-521 and Ed25519")


def _made(options: OAuthOptions, storage: RecordStorage, person: PersonPort | None, show: Show) -> OAuthClientProvider:
    scope = " ".join(options.scopes) or None
    if options.has_person:
        return OAuthClientProvider(
            options.url,
            OAuthClientMetadata(
                client_name="toolfleet",
                redirect_uris=[AnyUrl(_NOWHERE if person is None else person.redirect_uri)],
                scope=scope,
            ),
            storage,
            show,
            None if person is None else person.answer,
            client_metadata_url=options.client_metadata_url,
        )
    client_id, issuer = options.client_id or "", options.issuer or ""
    if options.private_key is None:
        return ClientCredentialsOAuthProvider(
            options.url,
            storage,
            client_id,
            options.client_secret or "",
            token_endpoint_auth_method="client_secret_post" if options.client_auth == "post" else "client_secret_basic",
            scope=scope,
            issuer=issuer,
        )
    signed = SignedJWTParameters(
        issuer=client_id,
        subject=client_id,
        signing_key=options.private_key,
        signing_algorithm=signing_algorithm(options.private_key),
    )
    assertion = signed.create_assertion_provider()
    return PrivateKeyJWTOAuthProvider(options.url, storage, client_id, assertion, scope=scope, issuer=issuer)
