"""Keeps documents in SQLite or PostgreSQL, in the registry's database."""

from collections.abc import Mapping

from sqlalchemy import Connection, delete, func, insert, select, update

from toolfleet_registry.documents.port import NOTED_SECONDS, NOTHING_KEPT, Changed, DocumentKind, Documents
from toolfleet_registry.store.sql_engines import Database
from toolfleet_registry.store.sql_tables import METADATA
from toolfleet_registry.system import randomness


class SQLDocuments:
    """A store of documents in the database of a SQLAlchemy URL. Raises `SettingsError`; does not connect yet."""

    def __init__(self, url: str, kind: DocumentKind) -> None:
        self._database, self._most = Database(url), kind.most
        self._table, self._state = METADATA.tables[kind.table], METADATA.tables[f"{kind.table}_state"]
        (self._name,) = self._table.primary_key
        self._entry = self._table.c.entry
        self._history = self._table.c.history if kind.has_history else self._entry

    def read(self, known: str = "") -> Documents | None:
        """Implements `DocumentStore.read`."""
        with self._database.reading() as connection:
            revision: str = connection.execute(select(self._state.c.revision)).scalar_one() or NOTHING_KEPT
            if revision == known:
                return None
            in_force = select(self._name, self._entry).where(self._entry != "")
            return Documents(revision, dict(connection.execute(in_force).all()))

    def histories(self) -> dict[str, str]:
        """Implements `DocumentStore.histories`."""
        with self._database.reading() as connection:
            return dict(connection.execute(select(self._name, self._history)).all())

    def history(self, name: str) -> str:
        """Implements `DocumentStore.history`."""
        with self._database.reading() as connection:
            return self._history_of(connection, name)

    def change(
        self, name: str, *, expected: str, entry: str, history: str | None = None, is_silent: bool = False
    ) -> Changed:
        """Implements `DocumentStore.change`."""
        history = entry if history is None else history
        with self._database.writing() as connection:
            connection.execute(select(self._state).with_for_update()).one()  # locks out every other change
            if self._history_of(connection, name) != expected:
                return Changed.CONFLICT
            if history and not expected:
                count = connection.execute(select(func.count()).select_from(self._table)).scalar_one()
                if count >= self._most:
                    return Changed.FULL
            self._write(connection, name, {self._history.name: history, self._entry.name: entry}, is_kept=bool(history))
            if not is_silent:
                connection.execute(update(self._state).values(revision=randomness.uuid4().hex))
            return Changed.DONE

    def used(self) -> dict[str, int]:
        """Implements `DocumentStore.used`."""
        used_at = self._table.c.used_at
        with self._database.reading() as connection:
            return dict(connection.execute(select(self._name, used_at).where(used_at > 0)).all())

    def note_used(self, used: Mapping[str, int]) -> None:
        """Implements `DocumentStore.note_used`."""
        with self._database.writing() as connection:
            for name, at in sorted(used.items()):  # in one order, so that two gateways never wait for each other
                due = (self._name == name) & (self._table.c.used_at <= at - NOTED_SECONDS)
                connection.execute(update(self._table).where(due).values(used_at=at))

    def close(self) -> None:
        """Implements `DocumentStore.close`."""
        self._database.close()

    def _history_of(self, connection: Connection, name: str) -> str:
        return connection.execute(select(self._history).where(self._name == name)).scalar_one_or_none() or ""

    def _write(self, connection: Connection, name: str, texts: Mapping[str, str], *, is_kept: bool) -> None:
        is_it = self._name == name
        if not is_kept:
            connection.execute(delete(self._table).where(is_it))
        elif not connection.execute(update(self._table).where(is_it).values(**texts)).rowcount:
            unused = {"used_at": 0} if "used_at" in self._table.c else {}
            connection.execute(insert(self._table).values(**{self._name.name: name}, **texts, **unused))
