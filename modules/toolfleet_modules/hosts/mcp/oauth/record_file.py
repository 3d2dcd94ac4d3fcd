"""Keeps a record in a file that only its user can read, and that processes change one after another."""

import asyncio
import contextlib
import fcntl
import logging
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from pydantic import ValidationError

from toolfleet_modules.hosts.mcp.oauth.authorization_record import AuthorizationRecord
from toolfleet_modules.hosts.mcp.oauth.oauth_errors import AuthorizationAway, AuthorizationRefused

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
