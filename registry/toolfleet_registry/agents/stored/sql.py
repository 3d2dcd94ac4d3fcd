"""Keeps agents' profiles in SQLite or PostgreSQL, in the registry's database."""

from sqlalchemy import Connection, delete, func, insert, select, update

from toolfleet_registry.agents.stored.port import MOST_NAMES, NOTHING_KEPT, ProfileTexts, Replaced
from toolfleet_registry.store.sql_engines import Database
from toolfleet_registry.store.sql_tables import AGENTS, AGENTS_STATE
from toolfleet_registry.system import randomness


class SQLProfileStore:
    """A profile store in the database of a SQLAlchemy URL. Raises `SettingsError`; does not connect yet."""

    def __init__(self, url: str) -> None:
        self._database = Database(url)

    def read(self, known: str = "") -> ProfileTexts | None:
        """Implements `ProfileStore.read`."""
        with self._database.reading() as connection:
            revision: str = connection.execute(select(AGENTS_STATE.c.revision)).scalar_one() or NOTHING_KEPT
            if revision == known:
                return None
            rows = connection.execute(select(AGENTS.c.name, AGENTS.c.entry).where(AGENTS.c.entry != "")).all()
            return ProfileTexts(revision, {row.name: row.entry for row in rows})

    def histories(self) -> dict[str, str]:
        """Implements `ProfileStore.histories`."""
        with self._database.reading() as connection:
            rows = connection.execute(select(AGENTS.c.name, AGENTS.c.history)).all()
            return {row.name: row.history for row in rows}

    def history(self, name: str) -> str:
        """Implements `ProfileStore.history`."""
        with self._database.reading() as connection:
            return _history(connection, name)

    def replace(self, name: str, *, expected: str, history: str, entry: str) -> Replaced:
        """Implements `ProfileStore.replace`."""
        with self._database.writing() as connection:
            connection.execute(select(AGENTS_STATE).with_for_update()).one()  # locks out every other change
            present = _history(connection, name)
            if present != expected:
                return Replaced.CHANGED
            if history and not present:
                count = connection.execute(select(func.count()).select_from(AGENTS)).scalar_one()
                if count >= MOST_NAMES:
                    return Replaced.FULL
            connection.execute(delete(AGENTS).where(AGENTS.c.name == name))
            if history:
                connection.execute(insert(AGENTS).values(name=name, entry=entry, history=history))
            connection.execute(update(AGENTS_STATE).values(revision=randomness.uuid4().hex))
            return Replaced.DONE

    def close(self) -> None:
        """Implements `ProfileStore.close`."""
        self._database.close()


def _history(connection: Connection, name: str) -> str:
    return connection.execute(select(AGENTS.c.history).where(AGENTS.c.name == name)).scalar_one_or_none() or ""
