"""Which notes have which words: full text search of SQLite (FTS5) and of PostgreSQL (tsvector).

Both get nothing but letters and digits as `words_of` cuts them, so that no query is a mistake in their own languages.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Protocol

from sqlalchemy import Connection, text

from modules.knowledge.words import is_beginning, words_of


class Index(Protocol):
    """Works within the caller's transaction. An `owner` is a user as `owner_of` writes it."""

    def write(self, connection: Connection, note_id: int, owner: str, head: str, body: str) -> None:
        """Index a note that is not in the index; its `head` counts for more than its `body`."""
        ...

    def remove(self, connection: Connection, note_id: int) -> None:
        """Take a note out of the index."""
        ...

    def search(self, connection: Connection, owner: str, words: Sequence[str], limit: int) -> list[int]:
        """The ids of the owner's notes that have any of the words, the best first."""
        ...


class SQLiteIndex:
    """FTS5, ranked by BM25."""

    def write(self, connection: Connection, note_id: int, owner: str, head: str, body: str) -> None:
        """As the protocol says."""
        insert = "INSERT INTO knowledge_words (rowid, owner, head, body) VALUES (:id, :owner, :head, :body)"
        words = {"head": " ".join(words_of(head)), "body": " ".join(words_of(body))}
        connection.execute(text(insert), {"id": note_id, "owner": _one_word(owner), **words})

    def remove(self, connection: Connection, note_id: int) -> None:
        """As the protocol says."""
        connection.execute(text("DELETE FROM knowledge_words WHERE rowid = :id"), {"id": note_id})

    def search(self, connection: Connection, owner: str, words: Sequence[str], limit: int) -> list[int]:
        """As the protocol says."""
        any_of = " OR ".join(f'"{word}" *' if is_beginning(word) else f'"{word}"' for word in words)
        select = (
            "SELECT note.id FROM knowledge_words JOIN knowledge_notes AS note ON note.id = knowledge_words.rowid "
            "WHERE knowledge_words MATCH :match AND note.user_id = :user "
            "ORDER BY bm25(knowledge_words, 0, 8, 1), note.title LIMIT :limit"
        )
        match = f'owner : "{_one_word(owner)}" AND {{head body}} : ({any_of})'
        found = connection.execute(text(select), {"match": match, "user": owner, "limit": limit})
        return list(found.scalars())


class PostgreSQLIndex:
    """A column of words with their weights, ranked by how many and how weighty those are that were found."""

    def write(self, connection: Connection, note_id: int, owner: str, head: str, body: str) -> None:
        """As the protocol says."""
        del owner  # its notes are found by their own index
        insert = (
            "INSERT INTO knowledge_words (note_id, words) VALUES (:id, "
            "setweight(to_tsvector('simple', CAST(:head AS text)), 'A') || to_tsvector('simple', CAST(:body AS text)))"
        )
        words = {"head": " ".join(words_of(head)), "body": " ".join(words_of(body))}
        connection.execute(text(insert), {"id": note_id, **words})

    def remove(self, connection: Connection, note_id: int) -> None:
        """As the protocol says."""
        connection.execute(text("DELETE FROM knowledge_words WHERE note_id = :id"), {"id": note_id})

    def search(self, connection: Connection, owner: str, words: Sequence[str], limit: int) -> list[int]:
        """As the protocol says."""
        any_of = " | ".join(f"'{word}':*" if is_beginning(word) else f"'{word}'" for word in words)
        select = (
            "SELECT note.id FROM knowledge_words JOIN knowledge_notes AS note ON note.id = knowledge_words.note_id, "
            "to_tsquery('simple', CAST(:match AS text)) AS wanted "
            "WHERE knowledge_words.words @@ wanted AND note.user_id = :user "
            "ORDER BY ts_rank(knowledge_words.words, wanted) DESC, note.title LIMIT :limit"
        )
        found = connection.execute(text(select), {"match": any_of, "user": owner, "limit": limit})
        return list(found.scalars())


INDEXES: Mapping[str, Index] = {"sqlite": SQLiteIndex(), "postgresql": PostgreSQLIndex()}
"""By the name of SQLAlchemy's dialect."""


def _one_word(owner: str) -> str:
    return hashlib.sha256(owner.encode()).hexdigest()
