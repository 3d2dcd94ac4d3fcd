"""Keeps API keys in SQLite or PostgreSQL, in the registry's database."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

from sqlalchemy import Connection, delete, func, insert, select, update

from toolfleet_registry.access.port import MOST_KEYS, NOTED_SECONDS, StoredKeys
from toolfleet_registry.store.sql_engines import Database
from toolfleet_registry.store.sql_tables import API_KEYS, API_KEYS_STATE
from toolfleet_registry.system import randomness


class SQLKeyStore:
    """A key store in the database of a SQLAlchemy URL. Raises `SettingsError`; does not connect yet."""

    def __init__(self, url: str) -> None:
        self._database = Database(url)

    def add(self, key_id: str, entry: str) -> bool:
        """Implements `KeyStore.add`."""
        with self._changing() as connection:
            count = connection.execute(select(func.count()).select_from(API_KEYS)).scalar_one()
            is_there = connection.execute(select(API_KEYS.c.id).where(API_KEYS.c.id == key_id)).first() is not None
            if is_there or count >= MOST_KEYS:
                return False
            connection.execute(insert(API_KEYS).values(id=key_id, entry=entry, used_at=0))
            _change(connection)
            return True

    def replace(self, key_id: str, entry: str, *, expected: str) -> None:
        """Implements `KeyStore.replace`."""
        with self._database.writing() as connection:
            is_expected = (API_KEYS.c.id == key_id) & (API_KEYS.c.entry == expected)
            connection.execute(update(API_KEYS).where(is_expected).values(entry=entry))

    def remove(self, key_ids: Sequence[str]) -> list[str]:
        """Implements `KeyStore.remove`."""
        removed = list[str]()
        with self._changing() as connection:
            for key_id in dict.fromkeys(key_ids):
                if connection.execute(delete(API_KEYS).where(API_KEYS.c.id == key_id)).rowcount:
                    removed.append(key_id)
            if removed:
                _change(connection)
        return removed

    def read(self, known: str = "") -> StoredKeys | None:
        """Implements `KeyStore.read`."""
        with self._database.reading() as connection:
            revision: str = connection.execute(select(API_KEYS_STATE.c.revision)).scalar_one() or "none"
            if revision == known:
                return None
            rows = connection.execute(select(API_KEYS.c.id, API_KEYS.c.entry)).all()
            return StoredKeys(revision, {row.id: row.entry for row in rows})

    def used(self) -> dict[str, int]:
        """Implements `KeyStore.used`."""
        with self._database.reading() as connection:
            rows = connection.execute(select(API_KEYS.c.id, API_KEYS.c.used_at).where(API_KEYS.c.used_at > 0)).all()
            return {row.id: row.used_at for row in rows}

    def note_used(self, used: Mapping[str, int]) -> None:
        """Implements `KeyStore.note_used`."""
        with self._database.writing() as connection:
            for key_id, at in sorted(used.items()):  # in one order, so that two gateways never wait for each other
                due = (API_KEYS.c.id == key_id) & (API_KEYS.c.used_at <= at - NOTED_SECONDS)
                connection.execute(update(API_KEYS).where(due).values(used_at=at))

    def close(self) -> None:
        """Implements `KeyStore.close`."""
        self._database.close()

    @contextmanager
    def _changing(self) -> Generator[Connection]:
        """A transaction that locks out every other change of keys."""
        with self._database.writing() as connection:
            connection.execute(select(API_KEYS_STATE).with_for_update()).one()
            yield connection


def _change(connection: Connection) -> None:
    connection.execute(update(API_KEYS_STATE).values(revision=randomness.uuid4().hex))
