"""Remembers a core's wake-ups in SQLite or PostgreSQL: a row each, in a table of the core's database.

Every statement is independent, so that the engine's transaction mode does not matter.
"""

import asyncio
import inspect
import math
from collections.abc import Callable
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import CreateTable

from toolfleet_registry.errors import FleetUnavailable, SettingsError, WakeLost
from toolfleet_registry.once.port import Record
from toolfleet_registry.store.sql_database import close_failed, let_go, waits_of
from toolfleet_registry.system import machine_clock, randomness
from toolfleet_tasks.webhooks.dedup import REMEMBERED_SECONDS, check_kept

T = TypeVar("T")

METADATA = sa.MetaData()

SEEN = sa.Table(
    "toolfleet_seen_wakes",
    METADATA,
    sa.Column("receiver", sa.String(100), primary_key=True),
    sa.Column("wake_id", sa.String(300), primary_key=True),
    sa.Column("token", sa.String(40), nullable=False),
    sa.Column("until_ms", sa.BigInteger, nullable=False),  # the lease's end, by the database's clock
    sa.Column("done_at_ms", sa.BigInteger, nullable=True),
    sa.Column("forget_at_ms", sa.BigInteger, nullable=False),
)

_PATIENCE_SECONDS = 10
_SERVER_LIMITS = {"lock_timeout": 4000, "statement_timeout": 4500}  # ms: PostgreSQL gives up before we do
_CLEAN_ONCE_IN = 100  # claims: what may be forgotten is deleted


class SQLSeen:
    """A `Seen` in an SQL database: `database` is SQLAlchemy's URL, or an engine of yours, not an asynchronous one.

    Its table is made when it is first needed. `receiver` tells cores apart that share a database. `remember_seconds` must exceed
    the fleet's `wake_give_up_seconds`. It keeps no replies, and leases by the database's clock. Works in threads. Raises
    `SettingsError` for a URL that will not do.
    """

    def __init__(
        self, database: str | sa.Engine, *, receiver: str = "core", remember_seconds: int = REMEMBERED_SECONDS
    ) -> None:
        self._engine = database if isinstance(database, sa.Engine) else _engine(database)
        if self._engine.dialect.name not in _INSERTS:
            raise SettingsError("Seen wake-ups are remembered in SQLite or PostgreSQL only.")
        self._receiver = receiver
        self._remember_ms = remember_seconds * 1000
        self._has_table = False

    async def get(self, name: str) -> Record | None:
        """Implements `Seen.get`."""
        return await self._in_thread(lambda on: self._get(on, name))

    async def swap(self, name: str, seen: str | None, record: Record | None) -> bool:
        """Implements `Seen.swap`."""
        if record is not None:
            check_kept(record)
        return await self._in_thread(lambda on: self._swap(on, name, seen, record))

    async def complete_since(self) -> float:
        """Return `inf`: it is not recorded since when nothing is forgotten."""
        return math.inf

    def swap_in(self, transaction: object, name: str, seen: str, record: Record) -> None:
        """Implements `Seen.swap_in`, with a `Connection` or an ORM `Session` to the same database.

        An asynchronous one gives it: `await connection.run_sync(delivery.done_in)`.
        """
        execute = getattr(transaction, "execute", None)
        if execute is None or inspect.iscoroutinefunction(execute):
            raise TypeError("SQLSeen marks in a synchronous SQLAlchemy Connection or Session.")
        now = int(machine_clock.wall() * 1000)  # only for people to read
        mark = sa.update(SEEN).where(self._is(name), SEEN.c.token == seen)
        answer = execute(mark.values(token=record.token, done_at_ms=now, forget_at_ms=now + self._remember_ms))
        if answer.rowcount != 1:
            raise WakeLost(name)

    async def aclose(self) -> None:
        """Close all connections, also of your own engine: it reopens them when needed."""
        await asyncio.to_thread(self._engine.dispose)

    def _get(self, on: sa.Connection, name: str) -> Record | None:
        columns = SEEN.c.token, SEEN.c.until_ms, SEEN.c.done_at_ms
        found = on.execute(sa.select(*columns).where(self._is(name))).first()
        if found is None:
            return None
        if found.done_at_ms is not None:
            return Record("done", found.token)
        return Record("running", found.token, until=machine_clock.wall() + (found.until_ms - _now(on)) / 1000)

    def _swap(self, on: sa.Connection, name: str, seen: str | None, record: Record | None) -> bool:
        is_seen = sa.and_(self._is(name), SEEN.c.token == seen)
        if record is None:
            return _changed(on, sa.delete(SEEN).where(is_seen))
        now = _now(on)
        values = {
            "token": record.token,
            "until_ms": now + round((record.until - machine_clock.wall()) * 1000),
            "done_at_ms": now if record.state == "done" else None,
            "forget_at_ms": now + self._remember_ms,
        }
        if seen is not None:
            return _changed(on, sa.update(SEEN).where(is_seen).values(**values))
        if randomness.randrange(_CLEAN_ONCE_IN) == 0:  # a share of the work
            on.execute(sa.delete(SEEN).where(SEEN.c.forget_at_ms < now))
        new = _INSERTS[on.dialect.name](SEEN).values(receiver=self._receiver, wake_id=name, **values)
        return _changed(on, new.on_conflict_do_nothing())

    def _is(self, name: str) -> Any:
        return sa.and_(SEEN.c.receiver == self._receiver, SEEN.c.wake_id == name)

    async def _in_thread(self, work: Callable[[sa.Connection], T]) -> T:
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                return await asyncio.to_thread(self._transact, work)
        except (SQLAlchemyError, OSError) as exc:
            let_go(exc)
            reason = type(getattr(exc, "orig", None) or exc).__name__
            raise FleetUnavailable(f"The database of seen wake-ups does not answer ({reason}).") from exc

    def _transact(self, work: Callable[[sa.Connection], T]) -> T:
        self._make_table()
        with self._engine.begin() as connection:
            _limit(connection)
            return work(connection)

    def _make_table(self) -> None:
        if self._has_table:
            return
        try:
            with self._engine.begin() as connection:
                _limit(connection)
                connection.execute(CreateTable(SEEN, if_not_exists=True))
        except SQLAlchemyError:  # PostgreSQL, where another process makes it at the same moment; or it is really away
            with self._engine.begin() as connection:
                connection.execute(sa.select(SEEN.c.wake_id).limit(1))
        self._has_table = True


_INSERTS: dict[str, Callable[[sa.Table], Any]] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


def _changed(on: sa.Connection, statement: Any) -> bool:
    answer: sa.CursorResult[Any] = on.execute(statement)
    return answer.rowcount == 1


def _now(on: sa.Connection) -> int:
    """Return the time in ms. SQLite is on this machine."""
    if on.dialect.name == "sqlite":
        return int(machine_clock.wall() * 1000)
    return int(on.execute(sa.select(sa.func.extract("epoch", sa.func.clock_timestamp()) * 1000)).scalar_one())


def _limit(on: sa.Connection) -> None:
    if on.dialect.name == "postgresql":
        on.execute(sa.select(*(sa.func.set_config(name, str(ms), True) for name, ms in _SERVER_LIMITS.items())))


def _engine(url: str) -> sa.Engine:
    try:
        parts = sa.make_url(url)
        return close_failed(
            sa.create_engine(parts, connect_args=waits_of(parts), poolclass=NullPool, hide_parameters=True)
        )
    except (ArgumentError, ValueError, SQLAlchemyError, ImportError) as exc:
        raise SettingsError(
            f"The URL for seen wake-ups is none that SQLAlchemy can use here ({type(exc).__name__})."
        ) from exc
