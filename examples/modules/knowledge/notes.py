"""The rows: which notes there are, each with its words in the index, written in one transaction."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, select, update

from modules.files.database import Database, turn_of
from modules.knowledge.index import INDEXES
from modules.knowledge.tables import NOTES
from toolfleet.sdk import ToolError


@dataclass(frozen=True, slots=True)
class Note:
    """What is remembered under a title."""

    title: str
    text: str
    tags: tuple[str, ...]
    updated_at: datetime  # UTC


class Notes:
    """All methods block, and raise `FilesUnavailable`. An `owner` is a user as `owner_of` writes it."""

    def __init__(self, database: Database, *, max_notes: int) -> None:
        self._database = database
        self._max_notes = max_notes

    def save(self, owner: str, title: str, text: str, tags: Sequence[str]) -> bool:
        """Write a note over one of the same title. Returns whether there was none.

        Raises `ToolError` where there is no room for it.
        """
        now = datetime.now(UTC).replace(tzinfo=None)
        fields: dict[str, Any] = {"text": text, "tags": list(tags), "updated_at": now}
        with self._database.writing(turn_of(f"notes of {owner}")) as connection:
            index = INDEXES[connection.dialect.name]
            present = _find(connection, owner, title)
            if present is None:
                self._check_room(connection, owner)
                row = {"user_id": owner, "title": title, "created_at": now, **fields}
                note_id = connection.execute(insert(NOTES).values(row).returning(NOTES.c.id)).scalar_one()
            else:
                note_id = present.id
                connection.execute(update(NOTES).where(NOTES.c.id == note_id).values(fields))
                index.remove(connection, note_id)
            index.write(connection, note_id, owner, " ".join([title, *tags]), text)
        return present is None

    def find(self, owner: str, title: str) -> Note | None:
        """The note of this title."""
        with self._database.reading() as connection:
            row = _find(connection, owner, title)
        return None if row is None else _note(row)

    def of(self, owner: str) -> list[Note]:
        """All notes, sorted by title, of each text only the first character: a listing shows none."""
        shown = select(NOTES.c.title, func.substr(NOTES.c.text, 1, 1).label("text"), NOTES.c.tags, NOTES.c.updated_at)
        with self._database.reading() as connection:
            rows = connection.execute(shown.where(NOTES.c.user_id == owner)).all()
        return sorted((_note(row) for row in rows), key=lambda note: note.title)

    def search(self, owner: str, words: Sequence[str], limit: int) -> list[Note]:
        """The notes that have any of the words, the best first."""
        with self._database.reading() as connection:
            ids = INDEXES[connection.dialect.name].search(connection, owner, words, limit)
            mine = NOTES.c.id.in_(ids) & (NOTES.c.user_id == owner)
            found = {row.id: row for row in connection.execute(select(NOTES).where(mine))}
        return [_note(found[note_id]) for note_id in ids if note_id in found]

    def remove(self, owner: str, title: str) -> bool:
        """Forget a note. Returns whether there was one."""
        with self._database.writing(turn_of(f"notes of {owner}")) as connection:
            present = _find(connection, owner, title)
            if present is not None:
                INDEXES[connection.dialect.name].remove(connection, present.id)
                connection.execute(delete(NOTES).where(NOTES.c.id == present.id))
        return present is not None

    def _check_room(self, connection: Connection, owner: str) -> None:
        mine = select(func.count()).select_from(NOTES).where(NOTES.c.user_id == owner)
        count = connection.execute(mine).scalar_one()
        if count >= self._max_notes:
            raise ToolError(f"There are {count} notes, the most allowed; delete one first.", effect_state="none")


def _find(connection: Connection, owner: str, title: str) -> Row[Any] | None:
    wanted = (NOTES.c.user_id == owner) & (NOTES.c.title == title)
    return connection.execute(select(NOTES).where(wanted)).first()


def _note(row: Any) -> Note:
    return Note(row.title, row.text, tuple(row.tags), row.updated_at.replace(tzinfo=UTC))
