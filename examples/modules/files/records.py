"""The rows: which files there are, and which contents are on their way in or out.

A content is announced before it is written, and its row is made after that, in the transaction that takes the
announcement away. So whatever dies in between leaves an announcement, and with it all that is needed to clean up.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update

from modules.files.database import LOOSE, RECORDS, Database, turn_of
from modules.files.errors import FileRefused, FilesUnavailable
from modules.files.names import user_of
from modules.files.record import FileRecord


class Records:
    """All methods block, and raise `FilesUnavailable`. An `owner` is a user as `owner_of` writes it."""

    def __init__(self, database: Database, *, max_files: int) -> None:
        self._database = database
        self._max_files = max_files

    def announce(self, owner: str, record: FileRecord) -> None:
        """A content will be written under the record's key. Raises `FileRefused` where there is no room for it."""
        with self._database.writing(turn_of(owner)) as connection:
            self._present(connection, owner, record.name)
            connection.execute(insert(LOOSE).values(key=record.key, since=int(time.time()), is_doomed=False))

    def settle(self, owner: str, record: FileRecord) -> tuple[FileRecord, str | None]:
        """The content is there: record it. Returns the record, and the key of the content that it replaces.

        Raises `FileRefused` if there is no room any more.
        """
        with self._database.writing(turn_of(owner)) as connection:
            mine = (LOOSE.c.key == record.key) & ~LOOSE.c.is_doomed
            if connection.execute(delete(LOOSE).where(mine)).rowcount != 1:
                raise FilesUnavailable(f"Saving {record.name!r} took too long, and was given up; try again.")
            present = self._present(connection, owner, record.name)
            if present is not None:
                record = replace(record, version=present.version + 1)
                connection.execute(delete(RECORDS).where(RECORDS.c.file_id == present.file_id))
                _doom(connection, present.key)
            connection.execute(insert(RECORDS).values(_row(owner, record)))
        return record, present.key if present else None

    def find(self, owner: str, name: str) -> FileRecord | None:
        """The file of this name, or else with this id."""
        with self._database.reading() as connection:
            return _find(connection, owner, name) or _find_by_id(connection, owner, name)

    def of(self, owner: str) -> list[FileRecord]:
        """All files, sorted by name."""
        with self._database.reading() as connection:
            rows = connection.execute(select(RECORDS).where(RECORDS.c.user_id == owner)).all()
        return sorted((_record(row) for row in rows), key=lambda record: record.name)

    def remove(self, owner: str, name: str) -> FileRecord | None:
        """Forget a file; its content is to be deleted then. `None` if there was none."""
        with self._database.writing(turn_of(owner)) as connection:
            present = _find(connection, owner, name)
            if present is not None:
                connection.execute(delete(RECORDS).where(RECORDS.c.file_id == present.file_id))
                _doom(connection, present.key)
            return present

    def doomed(self, *, older_than_seconds: float, limit: int) -> Sequence[str]:
        """Keys of contents to delete: what a record has let go of, and what was announced long ago and never recorded."""
        too_old = LOOSE.c.since < int(time.time() - older_than_seconds)
        with self._database.writing(0) as connection:
            connection.execute(update(LOOSE).where(too_old).values(is_doomed=True))
            # In any order: one that cannot be deleted must not keep the others waiting for ever.
            some = select(LOOSE.c.key).where(LOOSE.c.is_doomed).order_by(func.random()).limit(limit)
            return connection.execute(some).scalars().all()

    def forget(self, key: str) -> None:
        """The content under this key is gone."""
        with self._database.writing(0) as connection:
            connection.execute(delete(LOOSE).where(LOOSE.c.key == key))

    def close(self) -> None:
        """Let go of what is open."""
        self._database.close()

    def _present(self, connection: Connection, owner: str, name: str) -> FileRecord | None:
        present = _find(connection, owner, name)
        if present is None:
            mine = select(func.count()).select_from(RECORDS).where(RECORDS.c.user_id == owner)
            count = connection.execute(mine).scalar_one()
            if count >= self._max_files:
                raise FileRefused(f"There are {count} files, the most allowed; delete one first.")
        return present


def _find(connection: Connection, owner: str, name: str) -> FileRecord | None:
    wanted = (RECORDS.c.user_id == owner) & (RECORDS.c.name == name)
    row = connection.execute(select(RECORDS).where(wanted)).first()
    return None if row is None else _record(row)


def _find_by_id(connection: Connection, owner: str, file_id: str) -> FileRecord | None:
    wanted = (RECORDS.c.user_id == owner) & (RECORDS.c.file_id == file_id)
    row = connection.execute(select(RECORDS).where(wanted)).first()
    return None if row is None else _record(row)


def _doom(connection: Connection, key: str) -> None:
    connection.execute(insert(LOOSE).values(key=key, since=int(time.time()), is_doomed=True))


def _row(owner: str, record: FileRecord) -> dict[str, Any]:
    return {**asdict(record), "user_id": owner, "created_at": record.created_at.replace(tzinfo=None)}


def _record(row: Any) -> FileRecord:
    fields: dict[str, Any] = row._asdict()
    fields |= {"user_id": user_of(row.user_id), "created_at": row.created_at.replace(tzinfo=UTC)}
    return FileRecord(**fields)
