"""Connects to an SQL database: SQLite or PostgreSQL, by which driver, and for how long it is waited for."""

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import RLock
from typing import Any

from sqlalchemy import URL, Connection, Engine, Table, create_engine, func, insert, inspect, make_url, select, text
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.pool import NullPool, StaticPool

from toolfleet_registry.errors import FleetUnavailable, SettingsError
from toolfleet_registry.store.sql_sockets import close_failed, let_go
from toolfleet_registry.store.sql_tables import AGENTS_STATE, API_KEYS_STATE, IDENTITY, METADATA, STATE
from toolfleet_registry.system import randomness

_PATIENCE_SECONDS = 5
# PostgreSQL gives up before we do, and says why; a client that stands still in a transaction lets go of its locks.
_SERVER_LIMITS = {"lock_timeout": 4000, "statement_timeout": 4500, "idle_in_transaction_session_timeout": 10_000}  # ms
_TABLES_LOCK = 7_017_104_338  # one number of all that advisory locks may have, for the process that makes the tables

_LIBPQ = {"connect_timeout": _PATIENCE_SECONDS, "tcp_user_timeout": _PATIENCE_SECONDS * 1000}
_DRIVERS: dict[str, dict[str, dict[str, Any]]] = {
    "sqlite": {
        # Transactions begin when we say so: of its own the driver begins them too late to lock anything out.
        "pysqlite": {"timeout": _PATIENCE_SECONDS, "check_same_thread": False, "isolation_level": None}
    },
    "postgresql": {"pg8000": {"timeout": _PATIENCE_SECONDS}, "psycopg": _LIBPQ, "psycopg2": _LIBPQ},
}


class Database:
    """Opens transactions. Every one has a connection of its own: registries are asked rarely, by many processes."""

    def __init__(self, url: str) -> None:
        parts = _read(url)
        options = _DRIVERS[parts.get_backend_name()][parts.get_driver_name()]
        self._is_sqlite = parts.get_backend_name() == "sqlite"
        is_in_memory = self._is_sqlite and parts.database in {None, "", ":memory:"}
        # A database in memory is gone with its connection, which only one thread may use at a time.
        self._turn: AbstractContextManager[Any] = RLock() if is_in_memory else nullcontext()
        self._where = f"{parts.host}:{parts.port or 5432}/{parts.database}" if parts.host else str(parts.database)
        self._engine = _engine(parts, options, pool=StaticPool if is_in_memory else NullPool)
        self._has_tables = False

    @contextmanager
    def reading(self) -> Generator[Connection]:
        """A transaction that sees one moment, however much it reads. Raises `FleetUnavailable`."""
        with self._answering(), self._turn:
            self._make_tables()
            with self._begin(writes=False) as connection:
                yield connection

    @contextmanager
    def writing(self) -> Generator[Connection]:
        """A transaction; in SQLite it locks all others out. Raises `FleetUnavailable`."""
        with self._answering(), self._turn:
            self._make_tables()
            with self._begin(writes=True) as connection:
                yield connection

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    @contextmanager
    def _begin(self, *, writes: bool) -> Generator[Connection]:
        with self._engine.begin() as connection:
            if self._is_sqlite:
                connection.execute(text("BEGIN IMMEDIATE" if writes else "BEGIN"))
            else:
                if not writes:
                    connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
                limits = (func.set_config(name, str(ms), True) for name, ms in _SERVER_LIMITS.items())
                connection.execute(select(*limits))
            yield connection

    def _make_tables(self) -> None:
        if self._has_tables:
            return
        with self._begin(writes=False) as connection:
            self._has_tables = _is_complete(connection)
        if self._has_tables:
            return
        with self._begin(writes=True) as connection:
            if not self._is_sqlite:
                connection.execute(select(func.pg_advisory_xact_lock(_TABLES_LOCK)))
            METADATA.create_all(connection)
            for table, row in _ROWS.items():
                if not _has_row(connection, table):
                    connection.execute(insert(table).values(id=1, **row()))
        self._has_tables = True

    @contextmanager
    def _answering(self) -> Generator[None]:
        try:
            yield
        except (SQLAlchemyError, OSError) as exc:
            let_go(exc)
            raise FleetUnavailable(f"The registry's database {self._where} does not answer: {_reason(exc)}") from exc


def waits_of(url: URL) -> dict[str, Any]:
    """Return the driver's options, for `create_engine`, that bound its waits; none for an unknown driver."""
    return dict(_DRIVERS.get(url.get_backend_name(), {}).get(url.get_driver_name(), {}))


def _read(url: str) -> URL:
    """Parse the URL. Raises `SettingsError`, which never repeats the URL: it may hold a password."""
    try:
        parts = make_url(url)
        backend = parts.get_backend_name()
        driver = parts.get_driver_name() if backend in _DRIVERS else None
    except (ArgumentError, ValueError, SQLAlchemyError) as exc:
        raise SettingsError("The registry's URL is none that SQLAlchemy can read.") from exc
    if driver is None:
        raise SettingsError("The registry's URL must be one of Redis, SQLite (sqlite:///file) or PostgreSQL.")
    if driver not in _DRIVERS[backend]:
        raise SettingsError(f"The registry's URL must have one of the drivers {', '.join(_DRIVERS[backend])}.")
    return parts


def _engine(url: URL, options: dict[str, Any], *, pool: Any) -> Engine:
    try:
        return close_failed(create_engine(url, connect_args=options, poolclass=pool, hide_parameters=True))
    except ImportError as exc:
        raise SettingsError(
            f"The registry's URL needs the package {exc.name!r}, or must name another driver, as in postgresql+pg8000://…"
        ) from exc


def _is_complete(connection: Connection) -> bool:
    if not all(inspect(connection).has_table(name) for name in METADATA.tables):
        return False
    return all(_has_row(connection, table) for table in _ROWS)


def _has_row(connection: Connection, table: Table) -> bool:
    return connection.execute(select(table.c.id)).first() is not None


def _reason(exc: BaseException) -> str:
    """Return the reason in a line, without the statement."""
    origin = getattr(exc, "orig", None) or exc
    if isinstance(first := next(iter(origin.args), None), dict):  # pg8000's errors
        return str(first.get("M", "no reason given"))
    lines = str(origin).splitlines()
    return lines[0] if lines else f"no answer within {_PATIENCE_SECONDS} s"


# What the tables of one row begin with.
_ROWS: dict[Table, Callable[[], dict[str, Any]]] = {
    STATE: lambda: {"epoch_ms": 0, "revision": 0, "events": 0},
    IDENTITY: lambda: {"identity": randomness.uuid4().hex},
    API_KEYS_STATE: lambda: {"revision": ""},
    AGENTS_STATE: lambda: {"revision": ""},
}
