"""The one way in and out for users' files, whoever brings them."""

import asyncio
import hashlib
import logging
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Self

from modules.files.database import Database
from modules.files.errors import FileRefused, FilesUnavailable
from modules.files.names import checked_name, key_of, media_type_of, owner_of
from modules.files.record import FileRecord, Source
from modules.files.records import Records
from modules.files.settings import FileSettings
from modules.files.store import ContentMissing, ContentStore

_PATIENCE_SECONDS = 12  # for all that one operation asks of store and database, well under a call's limit
_TIDYING_SECONDS = 5  # for what need not be done now
_SWEEP_SECONDS = 600  # between two looks for leftovers
_LEFTOVER_SECONDS = 3600  # what was announced so long ago is written by nobody any more: saving takes seconds
_SWEPT_AT_ONCE = 50
_READ_TRIES = 3  # a file may be replaced between the look at its record and that at its content

logger = logging.getLogger(__name__)


def open_pipeline(settings: FileSettings | None = None) -> "FilePipeline":
    """Users' files where the settings, or the environment, say. Connects to nothing yet.

    Raises `ValueError` for settings that cannot be right.
    """
    settings = settings or FileSettings()
    records = Records(Database(settings), max_files=settings.max_files)
    return FilePipeline(ContentStore(settings), records, settings.max_bytes)


@dataclass(slots=True)
class FilePipeline:
    """Each user's own files, by plain names. For any event loop, which it never blocks, and any number of processes.

    Everything may raise `FileRefused` and, after some seconds, `FilesUnavailable`.
    """

    store: ContentStore
    records: Records
    max_bytes: int
    _swept_at: float = field(default=float("-inf"), init=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def save(
        self,
        user_id: str | None,
        name: str,
        content: bytes | AsyncIterable[bytes],
        source: Source,
        *,
        media_type: str | None = None,
    ) -> FileRecord:
        """Create or replace a file in one step: readers see the old content or the new one, whatever dies here.

        A stream is read at its own pace, and not beyond the limit of a file's size.
        """
        owner, name = owner_of(user_id), checked_name(name)
        data = await self._collected(name, content)
        record = _new_record(user_id or "", name, data, source, media_type)
        async with _patience():
            await asyncio.to_thread(self.records.announce, owner, record)
            await self.store.put(record.key, data)
            try:
                record, replaced = await asyncio.to_thread(self.records.settle, owner, record)
            except FileRefused:
                await self._drop(record.key)
                raise
        await self._tidy(replaced)
        return record

    async def find(self, user_id: str | None, name: str) -> FileRecord:
        """What is known of a file, by its name or by its id."""
        owner, name = owner_of(user_id), checked_name(name)
        async with _patience():
            record = await asyncio.to_thread(self.records.find, owner, name)
        if record is None:
            raise FileRefused(f"There is no file {name!r}; list the files to see which there are.")
        return record

    async def read(self, user_id: str | None, name: str) -> bytes:
        """A file's content."""
        return (await self.open(user_id, name))[1]

    async def open(self, user_id: str | None, name: str) -> tuple[FileRecord, bytes]:
        """A file, by its name or by its id, with its content, which is what was saved: one that was changed in the store is refused."""
        for _ in range(_READ_TRIES):
            record = await self.find(user_id, name)
            if record.size > self.max_bytes:  # saved when more was allowed
                raise FileRefused(f"{record.name!r} has {record.size} bytes; {self.max_bytes} are allowed.")
            try:
                async with _patience():
                    data = await self.store.get(record.key, record.size)
            except ContentMissing:
                continue
            if hashlib.sha256(data).hexdigest() != record.sha256:
                raise FileRefused(f"The content of {record.name!r} was damaged in the store; save it anew.")
            return record, data
        raise FileRefused(f"The content of {name!r} is not in the store any more; save it anew.")

    async def list(self, user_id: str | None) -> list[FileRecord]:
        """All files of the user, sorted by name."""
        owner = owner_of(user_id)
        async with _patience():
            return await asyncio.to_thread(self.records.of, owner)

    async def delete(self, user_id: str | None, name: str) -> bool:
        """Remove a file. Returns whether there was one."""
        owner, name = owner_of(user_id), checked_name(name)
        async with _patience():
            removed = await asyncio.to_thread(self.records.remove, owner, name)
        await self._tidy(removed.key if removed else None)
        return removed is not None

    async def sweep(self, *, older_than_seconds: float = _LEFTOVER_SECONDS) -> int:
        """Delete contents that no record names, some of them if there are many; returns how many were deleted."""
        async with _patience():
            keys = await asyncio.to_thread(
                lambda: self.records.doomed(older_than_seconds=older_than_seconds, limit=_SWEPT_AT_ONCE)
            )
        for done, key in enumerate(keys):
            if not await self._drop(key):
                return done
        return len(keys)

    async def close(self) -> None:
        """Let go of what is open."""
        await asyncio.to_thread(self.records.close)

    async def _collected(self, name: str, content: bytes | AsyncIterable[bytes]) -> bytes:
        if isinstance(content, bytes):
            if len(content) > self.max_bytes:
                raise FileRefused(f"{name!r} would have {len(content)} bytes; {self.max_bytes} are allowed.")
            return content
        data = bytearray()
        async for chunk in content:
            data += chunk
            if len(data) > self.max_bytes:
                raise FileRefused(f"{name!r} would have more than the {self.max_bytes} bytes that are allowed.")
        return bytes(data)

    async def _drop(self, key: str) -> bool:
        """Delete a content that no record names. What does not succeed is left to a later sweep."""
        try:
            async with _patience():
                await self.store.delete(key)
                await asyncio.to_thread(self.records.forget, key)
        except FilesUnavailable as exc:
            logger.warning("a content could not be deleted now: %s", exc)
            return False
        return True

    async def _tidy(self, key: str | None) -> None:
        """Delete a content that was replaced, and sweep now and then. What is not done now is left to a later sweep."""
        is_due = time.monotonic() - self._swept_at > _SWEEP_SECONDS
        if is_due:
            self._swept_at = time.monotonic()
        try:
            async with _patience(_TIDYING_SECONDS):
                if key is not None:
                    await self._drop(key)
                if is_due:
                    await self.sweep(older_than_seconds=_LEFTOVER_SECONDS)
        except FilesUnavailable as exc:
            logger.warning("leftovers could not be deleted now: %s", exc)


def _new_record(user_id: str, name: str, data: bytes, source: Source, media_type: str | None) -> FileRecord:
    file_id = uuid.uuid4().hex
    return FileRecord(
        file_id=file_id,
        user_id=user_id,
        name=name,
        media_type=media_type_of(name, media_type),
        size=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        created_at=datetime.now(UTC),
        source=source,
        key=key_of(user_id, file_id),
    )


@asynccontextmanager
async def _patience(seconds: float = _PATIENCE_SECONDS) -> AsyncGenerator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise FilesUnavailable(f"The files could not be reached within {seconds} s; try again later.") from None
