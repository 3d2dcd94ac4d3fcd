"""Keeps the state of a client and its tokens, so that another process, or the next one, can continue with it.

The record is a file that only its user can read, and that processes change one after another; one run of the SDK's flow
reads and changes it in a storage of its own.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from mcp.shared.auth import OAuthClientInformationFull, OAuthMetadata, OAuthToken, ProtectedResourceMetadata
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from toolfleet_modules.hosts.mcp.oauth.oauth_errors import AuthorizationAway, AuthorizationRefused
from toolfleet_registry.time import machine_clock


class AuthorizationRecord(BaseModel):
    """The stored state of a client.

    `identity` says whose it is. `lasts_until`: seconds since the epoch, when the token must be renewed.

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


_log = logging.getLogger("toolfleet.host")

_MOST_BYTES = 2**20
_LOCK_SECONDS = 60.0  # another process renews within less
_CHECK_SECONDS = 0.05


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
                async with asyncio.timeout(_LOCK_SECONDS):
                    while not _is_taken(lock):  # noqa: ASYNC110 - of another process
                        await asyncio.sleep(_CHECK_SECONDS)
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


def _is_taken(descriptor: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


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
        """The client, if it is registered."""
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Take what a registration came to. One that names no way to send its secret has the way that RFC 7591 names."""
        if client_info.client_secret is not None and client_info.token_endpoint_auth_method is None:
            client_info.token_endpoint_auth_method = "client_secret_basic"  # noqa: S105 - a method
        self.client = client_info
