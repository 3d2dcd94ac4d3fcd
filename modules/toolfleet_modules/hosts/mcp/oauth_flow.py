"""Describes the login to one MCP server for the SDK's flow: its options, the person, and the record that is kept of the client and its tokens.

The record is a file that only its user can read, and that processes change one after another; one run of the SDK's flow
reads and changes it in a storage of its own.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from mcp.client.auth import OAuthClientProvider
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from pydantic import AnyUrl, BaseModel, ConfigDict, Field, ValidationError

from toolfleet_modules.hosts.child_process import take_lock
from toolfleet_registry.system import machine_clock

_log = logging.getLogger("toolfleet.host")

_MOST_BYTES = 2**20
_LOCK_SECONDS = 60.0  # another process renews within less

_NOWHERE = "http://127.0.0.1/callback"  # if there is no login
Show = Callable[[str], Awaitable[None]]
_CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}


class AuthorizationRefused(Exception):
    """There is no token for it, and there will be none until a person acts.

    The message says why, and shows no credential.
    """


class LoginNeeded(AuthorizationRefused):
    """A person has to log in, at first or again. The message says how."""


class AuthorizationAway(Exception):
    """There is no token for it now: the authorization server does not answer, or another process is renewing it.

    The message says which.
    """


@dataclass(frozen=True, slots=True)
class OAuthOptions:
    """The options of a host as a client of the server at `url`. Tokens are kept in `file`, which processes may share.

    `login` is the command by which a person logs in, for messages. `client_secret` and `private_key`, a PEM, are sent,
    or used, for `issuer` only, and need one. `scopes` are requested instead of all that the server lists.
    """

    url: str
    file: Path
    login: str
    grant: Literal["authorization_code", "client_credentials"] = "authorization_code"
    issuer: str | None = None
    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    client_auth: Literal["basic", "post"] = "basic"
    private_key: str | None = field(default=None, repr=False)
    client_metadata_url: str | None = None
    scopes: tuple[str, ...] = ()

    def from_file(self, config: Path | None) -> "OAuthOptions":
        """Return the options for a server that a file of servers describes."""
        return self if config is None else replace(self, login=f"{self.login} --config {config}")

    @property
    def has_person(self) -> bool:
        """Whether a person has to log in."""
        return self.grant == "authorization_code"

    @property
    def identity(self) -> str:
        """A digest of the tokens' owner: tokens for another server or client are not sent to this one."""
        whose = [self.url, self.grant, self.issuer, self.client_id, self.client_metadata_url]
        return hashlib.sha256(json.dumps(whose).encode()).hexdigest()


class PersonPort(Protocol):
    """Shows an address to a person, who comes back by another."""

    @property
    def redirect_uri(self) -> str:
        """The URL to which the person returns."""
        ...

    async def show(self, url: str) -> None:
        """Have the person go there."""
        ...

    async def answer(self) -> AuthorizationCodeResult:
        """Return the result of the person's login. Raises `AuthorizationRefused`."""
        ...


class AuthorizationRecord(BaseModel):
    """The stored state of a client.

    `identity` names its owner. `lasts_until`: seconds since the epoch, when the token must be renewed.

    `asked_scope` is the scope that was requested with it, `wanted_scope` the one that the server demanded since, for
    which a person must log in.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    identity: str
    tokens: OAuthToken | None = Field(default=None, repr=False)
    lasts_until: float | None = None
    asked_scope: str | None = None
    wanted_scope: str | None = None
    client: OAuthClientInformationFull | None = Field(default=None, repr=False)
    resource: ProtectedResourceMetadata | None = None
    server: OAuthMetadata | None = None
    server_url: str | None = None

    @property
    def token(self) -> str | None:
        """The token that is sent with requests."""
        return None if self.tokens is None else self.tokens.access_token

    @property
    def is_over(self) -> bool:
        """Whether the token must be renewed."""
        return self.lasts_until is not None and machine_clock.wall() >= self.lasts_until

    @property
    def can_refresh(self) -> bool:
        """Whether it has all that a renewal needs."""
        return self.server is not None and self.tokens is not None and self.tokens.refresh_token is not None

    def has_asked_for(self, scope: str | None) -> bool:
        """Return whether all of these scopes were requested, or given, already."""
        given = self.tokens.scope if self.tokens is not None else None
        return {*(scope or "").split()} <= {*(self.asked_scope or "").split(), *(given or "").split()}


class RecordFile:
    """The record at `path` with this `identity`. One of another identity is ignored."""

    def __init__(self, path: Path, identity: str) -> None:
        self.path = path
        self._identity = identity

    async def read(self) -> AuthorizationRecord:
        """Return the record; an empty one if there is none, or none of ours."""
        return await asyncio.to_thread(self._read)

    async def write(self, record: AuthorizationRecord) -> None:
        """Put it there in one step. Raises `AuthorizationRefused` where that cannot be done."""
        try:
            await asyncio.to_thread(self._write, record)
        except OSError as exc:
            raise self._failure(exc) from None

    @asynccontextmanager
    async def locked(self) -> AsyncGenerator[None]:
        """Have no other process change it meanwhile. Raises `AuthorizationAway` and `AuthorizationRefused`."""
        with contextlib.ExitStack() as stack:
            try:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                lock = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
            except OSError as exc:
                raise self._failure(exc) from None
            stack.callback(os.close, lock)
            try:
                await take_lock(lock, seconds=_LOCK_SECONDS)
            except TimeoutError:
                raise AuthorizationAway("another process has been renewing its tokens for too long") from None
            yield

    def _read(self) -> AuthorizationRecord:
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_mode & 0o077:
                    os.fchmod(file.fileno(), 0o600)
                record = AuthorizationRecord.model_validate_json(file.read(_MOST_BYTES))
        except FileNotFoundError:
            return AuthorizationRecord(identity=self._identity)
        except (OSError, ValidationError) as exc:
            _log.warning("The tokens in %s cannot be read (%s): there are none.", self.path, type(exc).__name__)
            return AuthorizationRecord(identity=self._identity)
        return record if record.identity == self._identity else AuthorizationRecord(identity=self._identity)

    def _write(self, record: AuthorizationRecord) -> None:
        draft = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        draft.unlink(missing_ok=True)  # of a process that died here, and had our number
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(record.model_dump_json(exclude_none=True))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.path)

    def _failure(self, error: OSError) -> AuthorizationRefused:
        return AuthorizationRefused(f"its tokens cannot be kept in {self.path}: {error.strerror}")


class RecordStorage:
    """The SDK's `TokenStorage`, for one run of its flow. `is_changed`: there are new tokens."""

    def __init__(self, tokens: OAuthToken | None, client: OAuthClientInformationFull | None) -> None:
        self.tokens, self.client = tokens, client
        self.is_changed = False

    async def get_tokens(self) -> OAuthToken | None:
        """Return the present tokens, if any."""
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Take those that came."""
        self.tokens, self.is_changed = tokens, True

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Return the client, if it is registered."""
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Take what a registration came to. One that names no way to send its secret has the way that RFC 7591 names."""
        if client_info.client_secret is not None and client_info.token_endpoint_auth_method is None:
            client_info.token_endpoint_auth_method = "client_secret_basic"  # noqa: S105 - a method
        self.client = client_info


# What a flow finds is worded by its caller; the SDK's own words may show what a server has sent.
logging.getLogger("mcp.client.auth").setLevel(logging.CRITICAL)


def provider_of(
    options: OAuthOptions, record: AuthorizationRecord, storage: RecordStorage, person: PersonPort | None, show: Show
) -> OAuthClientProvider:
    """Return a provider that knows what the record says; `show` is called with the address where this person must go."""
    provider = _made(options, storage, person, show)
    context = provider.context
    context.protected_resource_metadata = record.resource
    context.oauth_metadata = record.server
    context.auth_server_url = record.server_url
    return provider


def known_client(
    options: OAuthOptions, record: AuthorizationRecord, person: PersonPort | None
) -> OAuthClientInformationFull | None:
    """Return the registered client; `None` if there is none, or it has another redirect address."""
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
    """Return the algorithm for a private key. Raises `ValueError` for another text, and for a key that cannot sign here."""
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
