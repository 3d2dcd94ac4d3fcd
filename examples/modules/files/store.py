"""Where contents lie, under keys that nobody chose: a folder, or a bucket in S3. Knows neither users nor names."""

import asyncio
import contextlib
import logging
import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from obstore.exceptions import BaseError
from obstore.store import LocalStore, S3Store

from modules.files.errors import FilesUnavailable
from modules.files.settings import FileSettings

if TYPE_CHECKING:
    from obstore.store import S3Config

_REQUEST_SECONDS = 4  # of one try, a whole content included
_TRIES_SECONDS = 5  # no new try after that

logger = logging.getLogger(__name__)


class ContentMissing(Exception):
    """There is nothing under this key."""


class ContentStore:
    """Puts, gets and deletes whole contents. Raises `FilesUnavailable`; connects to nothing yet."""

    def __init__(self, settings: FileSettings) -> None:
        self._settings = settings
        self._folder = settings.folder
        self._opened: LocalStore | S3Store | None = None

    async def put(self, key: str, data: bytes) -> None:
        """Write a content; it is there as a whole or not at all, and stays there when the machine loses power."""
        try:
            store = await self._store()
            if self._folder is not None:
                await asyncio.to_thread(_make_folders, self._folder, key)
            await store.put_async(key, data, use_multipart=False)
            if self._folder is not None:
                await asyncio.to_thread(_make_safe, self._folder / key)
        except (BaseError, OSError) as exc:
            raise _unavailable(exc) from exc

    async def get(self, key: str, size: int) -> bytes:
        """A content of `size` bytes; no more is read if it is larger. Raises `ContentMissing`."""
        try:
            found = await (await self._store()).get_async(key)
            return bytes(await found.bytes_async()) if found.meta["size"] == size else b""
        except FileNotFoundError as exc:
            raise ContentMissing from exc
        except (BaseError, OSError) as exc:
            raise _unavailable(exc) from exc

    async def delete(self, key: str) -> None:
        """Remove a content, and what a process that died had written of it; neither need be there."""
        try:
            with contextlib.suppress(FileNotFoundError):
                await (await self._store()).delete_async(key)
            if self._folder is not None:
                await asyncio.to_thread(_remove_drafts, self._folder / key)
        except (BaseError, OSError) as exc:
            raise _unavailable(exc) from exc

    async def _store(self) -> LocalStore | S3Store:
        if self._opened is None:
            if self._folder is None:
                self._opened = _bucket(self._settings)
            else:
                self._opened = await asyncio.to_thread(_local, self._folder)
        return self._opened


def _local(folder: Path) -> LocalStore:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return LocalStore(prefix=folder)


def _make_folders(folder: Path, key: str) -> None:
    """Private ones: the folder itself may be somebody else's, and open."""
    for part in key.split("/")[:-1]:
        folder /= part
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def _bucket(settings: FileSettings) -> S3Store:
    place = urlsplit(settings.store or "")
    patience = timedelta(seconds=_REQUEST_SECONDS)
    config: S3Config = {"disable_bulk_delete": True}  # not all servers have it
    if settings.s3_endpoint:
        config["endpoint"] = settings.s3_endpoint
    return S3Store(
        place.netloc,
        prefix=place.path.strip("/") or None,
        config=config,
        client_options={
            "timeout": patience,
            "connect_timeout": patience,
            "allow_http": (settings.s3_endpoint or "").startswith("http://"),
        },
        retry_config={
            "max_retries": 2,
            "retry_timeout": timedelta(seconds=_TRIES_SECONDS),
            "backoff": {"max_backoff": timedelta(seconds=1)},
        },
    )


def _make_safe(path: Path) -> None:
    """Nobody else's to read, and on the disk, its name included."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        os.fchmod(file, 0o600)
        os.fsync(file)
    finally:
        os.close(file)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _remove_drafts(path: Path) -> None:
    """A local store writes beside a content, and renames that in the end."""
    for draft in path.parent.glob(f"{path.name}#*"):
        draft.unlink(missing_ok=True)


def _unavailable(exc: Exception) -> FilesUnavailable:
    """Without the exception's text: it may hold a bucket's address, or a path of this machine. The log has it."""
    # No traceback: its frames may hold contents, and do hold open sockets.
    logger.warning("the file store does not answer: %s", str(exc).partition("\n")[0])
    return FilesUnavailable(f"The file store does not answer ({type(exc).__name__}); try again later.")
