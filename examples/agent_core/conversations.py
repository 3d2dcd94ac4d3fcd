"""Conversations in an SQL database: what was said is there after a restart, and each message is there once."""

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection, Engine, Row, create_engine, insert, make_url, select
from sqlalchemy.exc import IntegrityError

from agent_core.history import History, Said
from agent_core.tables import CONVERSATIONS, MESSAGES, METADATA
from toolfleet import Conversation, ToolCall

_LOCK_SECONDS = 10  # SQLite has one writer at a time

Finish = Callable[[Connection], None]
"""Done in the transaction that writes the last message of a turn."""


class ConversationMoved(Exception):
    """Another process has written in this conversation in the meantime: begin anew, with what it has written."""


@dataclass(frozen=True, slots=True)
class Talk:
    """A conversation: whose it is, and where it takes place."""

    id: str
    user_id: str
    place: Conversation


class Conversations:
    """The conversations of one database. Its calls are made in threads, for a disk or a server may be slow."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def make_tables(self) -> None:
        """Once, at the start."""
        await asyncio.to_thread(METADATA.create_all, self._engine)

    async def at(self, user_id: str, place: Conversation) -> Talk:
        """The conversation of this user at this place (platform, channel, thread); a new one if there is none."""
        return await asyncio.to_thread(self._at, user_id, place)

    async def get(self, conversation_id: str) -> Talk | None:
        """The conversation of this id."""
        return await asyncio.to_thread(self._get, conversation_id)

    async def history(self, conversation_id: str) -> History:
        """What was said in it."""
        return await asyncio.to_thread(self._history, conversation_id)

    async def append(
        self, conversation_id: str, history: History, said: Sequence[Said], finish: Finish | None = None
    ) -> History:
        """Write messages after `history`, and whatever `finish` writes, in one transaction: all of it or nothing.

        Returns the history with them. Raises `ConversationMoved` if others have written there, or the same.
        """
        return await asyncio.to_thread(self._append, conversation_id, history, said, finish)

    def _at(self, user_id: str, place: Conversation) -> Talk:
        digest = _digest(user_id, place)
        found = select(CONVERSATIONS).where(CONVERSATIONS.c.place == digest)
        fields = place.model_dump(include={"platform", "platform_channel_id", "platform_thread_id"})
        for _ in range(2):  # another process may make it at the same time
            with self._engine.connect() as connection:
                if row := connection.execute(found).first():
                    return _talk(row)
            row_values = {"id": uuid4().hex, "place": digest, "user_id": user_id, "created_at": time.time(), **fields}
            try:
                with self._engine.begin() as connection:
                    connection.execute(insert(CONVERSATIONS).values(row_values))
            except IntegrityError:
                continue
        with self._engine.connect() as connection:
            return _talk(connection.execute(found).one())

    def _get(self, conversation_id: str) -> Talk | None:
        with self._engine.connect() as connection:
            row = connection.execute(select(CONVERSATIONS).where(CONVERSATIONS.c.id == conversation_id)).first()
        return _talk(row) if row else None

    def _history(self, conversation_id: str) -> History:
        mine = select(MESSAGES).where(MESSAGES.c.conversation_id == conversation_id).order_by(MESSAGES.c.position)
        with self._engine.connect() as connection:
            return History(tuple(_said(row) for row in connection.execute(mine)))

    def _append(self, conversation_id: str, history: History, said: Sequence[Said], finish: Finish | None) -> History:
        now = time.time()
        stamped = [replace(message, at=now) for message in said]
        rows = [
            {"conversation_id": conversation_id, "position": position, **_columns(message)}
            for position, message in enumerate(stamped, start=len(history.said))
        ]
        with self._engine.begin() as connection:
            if rows:
                try:
                    connection.execute(insert(MESSAGES), rows)
                except IntegrityError as exc:
                    raise ConversationMoved(conversation_id) from exc
            if finish is not None:
                finish(connection)
        return History((*history.said, *stamped))


def open_engine(url: str) -> Engine:
    """The engine of a database by its URL."""
    place = make_url(url)
    is_sqlite = place.get_backend_name() == "sqlite"
    if is_sqlite and place.database and place.database != ":memory:":
        Path(place.database).parent.mkdir(parents=True, exist_ok=True)
    return create_engine(url, connect_args={"timeout": _LOCK_SECONDS} if is_sqlite else {}, hide_parameters=True)


def _digest(user_id: str, place: Conversation) -> str:
    where = [user_id, place.platform, place.platform_channel_id, place.platform_thread_id]
    return hashlib.sha256(json.dumps(where).encode()).hexdigest()


def _talk(row: Row[Any]) -> Talk:
    fields = ("platform", "platform_channel_id", "platform_thread_id")
    place = Conversation(conversation_id=row.id, **{field: getattr(row, field) for field in fields})
    return Talk(row.id, row.user_id, place)


def _said(row: Row[Any]) -> Said:
    calls = tuple(ToolCall.model_validate(call) for call in row.calls)
    return Said(row.source, row.body, calls, row.source_id, row.at)


def _columns(message: Said) -> dict[str, Any]:
    return {
        "source": message.source,
        "source_id": message.source_id,
        "body": message.body,
        "calls": [call.model_dump() for call in message.calls],
        "at": message.at,
    }
