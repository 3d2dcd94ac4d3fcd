"""How the database of records is reached: SQLite or PostgreSQL, and how long one waits for it. Other modules keep tables there, too."""

import contextlib
import hashlib
import logging
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import (
    URL,
    BigInteger,
    Boolean,
    Column,
    Connection,
    DateTime,
    Engine,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    create_engine,
    func,
    inspect,
    make_url,
    select,
    text,
)
from sqlalchemy.exc import ArgumentError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from modules.files.errors import FilesUnavailable
from modules.files.settings import FileSettings
from toolfleet.sdk import ToolError
from toolfleet_registry.store.sql_database import close_failed, let_go

_PATIENCE_SECONDS = 5
# PostgreSQL gives up before we do; a client that stands still in a transaction lets go of its locks.
_SERVER_LIMITS = {"lock_timeout": 4000, "statement_timeout": 4500, "idle_in_transaction_session_timeout": 10_000}  # ms
_TABLES_LOCK = 7_017_104_339  # one number of all that advisory locks may have, for whoever makes the tables

METADATA = MetaData()
RECORDS = Table(
    "file_records",
    METADATA,
    Column("file_id", String(32), primary_key=True),
    Column("user_id", Text, nullable=False),  # as `owner_of` writes it
    Column("name", Text, nullable=False),
    Column("media_type", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("created_at", DateTime, nullable=False),  # UTC
    Column("source", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("version", BigInteger, nullable=False),
    UniqueConstraint("user_id", "name"),
)
# Keys of contents that no record names: those that are being written, and those that are to be deleted.
LOOSE = Table(
    "file_loose_contents",
    METADATA,
    Column("key", Text, primary_key=True),
    Column("since", BigInteger, nullable=False),  # seconds since 1970
    Column("is_doomed", Boolean, nullable=False),  # it will be deleted: no record may name it any more
)

logger = logging.getLogger(__name__)


class Database:
    """Opens transactions; makes its tables. Its methods block, for seconds at worst: call them in threads.

    `tables` are those of the files, or of another module that has its own beside them; errors say `what` is in them.
    """

    def __init__(self, settings: FileSettings, *, tables: MetaData = METADATA, what: str = "file records") -> None:
        self._tables = tables
        self._what = what
        self._url = _url(settings)
        self._is_sqlite = self._url.get_backend_name() == "sqlite"
        self._engine = _engine(self._url, is_sqlite=self._is_sqlite)
        self._has_tables = False

    @contextmanager
    def reading(self) -> Generator[Connection]:
        """A transaction. Raises `FilesUnavailable`."""
        with self._answering():
            self._make_tables()
            with self._begin(writes=False) as connection:
                yield connection

    @contextmanager
    def writing(self, turn: int) -> Generator[Connection]:
        """A transaction that happens before or after any other with the same `turn`, never beside it."""
        with self._answering():
            self._make_tables()
            with self._begin(writes=True, turn=turn) as connection:
                yield connection

    def close(self) -> None:
        """Let go of what is open."""
        self._engine.dispose()

    @contextmanager
    def _begin(self, *, writes: bool, turn: int = 0) -> Generator[Connection]:
        with self._engine.connect() as connection:
            try:
                with connection.begin():
                    self._prepare(connection, writes=writes, turn=turn)
                    yield connection
            except ToolError:  # what a module says of its own accord
                raise
            except BaseException:
                # It may still have answers to come, which the next one to use it would take for those to its own questions.
                connection.invalidate()
                raise

    def _prepare(self, connection: Connection, *, writes: bool, turn: int) -> None:
        if self._is_sqlite:
            connection.execute(text("BEGIN IMMEDIATE" if writes else "BEGIN"))
            return
        limits = (func.set_config(name, str(ms), True) for name, ms in _SERVER_LIMITS.items())
        connection.execute(select(*limits))
        if writes:
            connection.execute(select(func.pg_advisory_xact_lock(turn)))

    def _make_tables(self) -> None:
        if self._has_tables:
            return
        if self._is_sqlite:
            self._make_file()
        with self._begin(writes=False) as connection:
            found = inspect(connection)
            is_complete = all(found.has_table(name) for name in self._tables.tables)
        if not is_complete:
            with self._begin(writes=True, turn=_TABLES_LOCK) as connection:
                self._tables.create_all(connection)
        self._has_tables = True

    def _make_file(self) -> None:
        """Private, and with a write-ahead log, beside which readers and a writer do not wait for each other."""
        path = Path(self._url.database or "")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
        # Of two that change the mode at once one is turned away: the other has done it for both.
        with contextlib.suppress(OperationalError), self._engine.connect() as connection:
            connection.execute(text("PRAGMA journal_mode=WAL"))

    @contextmanager
    def _answering(self) -> Generator[None]:
        try:
            yield
        except (SQLAlchemyError, OSError) as exc:
            self._has_tables = False  # somebody may have removed them, or the file
            let_go(exc)
            logger.warning("the database of %s does not answer: %s", self._what, str(exc).partition("\n")[0])
            raise FilesUnavailable(f"The database of {self._what} does not answer; try again later.") from exc


def turn_of(owner: str) -> int:
    """The number of one owner's turns, the same in every process."""
    return int.from_bytes(hashlib.sha256(owner.encode()).digest()[:8], signed=True)


def _url(settings: FileSettings) -> URL:
    """Raises `ValueError`, which never repeats the URL: it may hold a password."""
    if settings.database_url is None:
        return URL.create("sqlite", database=str((settings.folder or settings.root) / "files.sqlite3"))
    try:
        url = make_url(settings.database_url)
    except ArgumentError:
        raise ValueError("FILES_DATABASE_URL is no URL that SQLAlchemy can read.") from None
    if url.drivername in {"postgres", "postgresql"}:
        return url.set(drivername="postgresql+pg8000")
    if url.drivername not in {"sqlite", "sqlite+pysqlite", "postgresql+pg8000"}:
        raise ValueError("FILES_DATABASE_URL must be of SQLite (sqlite:///file) or PostgreSQL (postgresql+pg8000://…).")
    if url.get_backend_name() == "sqlite" and url.database in {None, "", ":memory:"}:
        raise ValueError("FILES_DATABASE_URL must name a file: several processes share it.")
    return url


def _engine(url: URL, *, is_sqlite: bool) -> Engine:
    connect: dict[str, Any] = {"timeout": _PATIENCE_SECONDS}
    if is_sqlite:
        # Transactions begin when we say so: of its own the driver begins them too late to lock anything out.
        connect |= {"check_same_thread": False, "isolation_level": None}
        return create_engine(url, connect_args=connect, poolclass=NullPool, hide_parameters=True)
    # A connection takes pg8000 some 50 ms to make.
    return close_failed(
        create_engine(
            url, connect_args=connect, pool_pre_ping=True, pool_timeout=_PATIENCE_SECONDS, hide_parameters=True
        )
    )
