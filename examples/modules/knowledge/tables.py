"""The tables of notes, in either database. The words that are searched stand apart, for each database has its own way."""

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Connection,
    DateTime,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    event,
    text,
)

METADATA = MetaData()
NOTES = Table(
    "knowledge_notes",
    METADATA,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("user_id", Text, nullable=False),  # as `owner_of` writes it
    Column("title", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("tags", JSON, nullable=False),
    Column("created_at", DateTime, nullable=False),  # UTC
    Column("updated_at", DateTime, nullable=False),  # UTC
    UniqueConstraint("user_id", "title"),
)

# `owner` is one word for each user, so that a search reads nobody else's words.
_WORDS = {
    "sqlite": ("CREATE VIRTUAL TABLE knowledge_words USING fts5(owner, head, body, tokenize = 'unicode61')",),
    "postgresql": (
        "CREATE TABLE knowledge_words (note_id BIGINT PRIMARY KEY REFERENCES knowledge_notes (id), words TSVECTOR)",
        "CREATE INDEX knowledge_words_found ON knowledge_words USING gin (words)",
    ),
}


@event.listens_for(NOTES, "after_create")
def _make_words(_table: Table, connection: Connection, **_: Any) -> None:
    """In the transaction that makes the notes' table: there are both, or neither."""
    for statement in _WORDS[connection.dialect.name]:
        connection.execute(text(statement))
