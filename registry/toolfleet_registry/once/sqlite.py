"""Keeps records in a SQLite file: for processes on one machine, which restart."""

import asyncio
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import TypeVar

from toolfleet_registry.once.port import Record
from toolfleet_registry.system import machine_clock

T = TypeVar("T")


class SQLiteReplies:
    """Keeps the outcome of calls in a SQLite file, also over a sudden stop of the machine.

    Args:
        path: The file. It is created with its folder at the first call.
        seconds: How long each call is kept.
        most: How many ended calls are kept, the latest ones.

    """

    def __init__(self, path: str | Path, *, seconds: float = 86_400, most: int = 100_000) -> None:
        if min(seconds, most) <= 0:
            raise ValueError("seconds and most must be positive.")
        self._path = Path(path)
        self._seconds, self._most = seconds, most
        self._lock = Lock()
        self._made: sqlite3.Connection | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._writes = 0

    async def get(self, name: str) -> Record | None:
        """Implements `OnceStore.get`."""
        return await self._do(lambda rows: _get(rows, name))

    async def swap(self, name: str, seen: str | None, record: Record | None) -> bool:
        """Implements `OnceStore.swap`."""
        return await self._do(lambda rows: self._swap(rows, name, seen, record))

    async def complete_since(self) -> float:
        """Implements `OnceStore.complete_since`: since the file was created, and since the last record that was dropped to keep it small."""
        return await self._do(lambda rows: _since(rows, self._seconds))

    async def aclose(self) -> None:
        """Close the file."""
        thread, self._thread = self._thread, None
        if thread is not None:
            try:
                await asyncio.get_running_loop().run_in_executor(thread, self._close)
            finally:
                thread.shutdown(wait=False)

    async def _do(self, change: Callable[[sqlite3.Connection], T]) -> T:
        # A thread of its own: asyncio's are the tools' as well, which may keep all of them for as long as they like.
        self._thread = self._thread or ThreadPoolExecutor(1, "toolfleet-replies")
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._in_turn, change)

    def _in_turn(self, change: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock:
            rows = self._made = self._made or _opened(self._path)
            rows.execute("BEGIN IMMEDIATE")  # one process at a time, from the look to the writing
            try:
                result = change(rows)
            except BaseException:
                rows.execute("ROLLBACK")
                raise
            rows.execute("COMMIT")
            return result

    def _swap(self, rows: sqlite3.Connection, name: str, seen: str | None, record: Record | None) -> bool:
        found = _get(rows, name)
        if (found.token if found else None) != seen:
            return False
        rows.execute("DELETE FROM replies WHERE call_id = ?", (name,))
        now = machine_clock.wall()
        rows.execute("INSERT OR REPLACE INTO kept_for VALUES (?, ?)", (self._seconds, now))
        if record is not None:
            values = (name, record.state, record.token, record.fingerprint, record.until, record.reply)
            rows.execute("INSERT INTO replies VALUES (?, ?, ?, ?, ?, ?, ?)", (*values, now + self._seconds))
        if self._writes % _WRITES_BETWEEN == 0:
            self._forget(rows)
        self._writes += 1
        return True

    def _forget(self, rows: sqlite3.Connection) -> None:
        """Delete the expired records, and the oldest ones of too many, which count as lost."""
        rows.execute("DELETE FROM replies WHERE forget_at <= ?", (machine_clock.wall(),))
        surplus = rows.execute(
            "SELECT forget_at FROM replies WHERE state != 'running' ORDER BY forget_at DESC LIMIT 1 OFFSET ?",
            (self._most,),
        ).fetchone()
        if surplus is not None:
            rows.execute("DELETE FROM replies WHERE state != 'running' AND forget_at <= ?", surplus)
            rows.execute(
                "UPDATE complete SET since = max(since, min(?, ? - (SELECT min(seconds) FROM kept_for)))",
                (machine_clock.wall(), surplus[0]),
            )

    def _close(self) -> None:
        with self._lock:
            if self._made is not None:
                self._made.close()
                self._made = None


def _opened(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = sqlite3.connect(path, timeout=_PATIENCE_SECONDS, check_same_thread=False, isolation_level=None)
    try:
        _write_ahead(rows)
        rows.execute("PRAGMA synchronous = FULL")  # a call that was started must be known after a power cut
        for statement in _TABLES:
            rows.execute(statement)
        rows.execute("INSERT OR IGNORE INTO complete VALUES (1, ?)", (machine_clock.wall(),))
    except BaseException:
        rows.close()
        raise
    return rows


def _write_ahead(rows: sqlite3.Connection) -> None:
    """Switch to a write-ahead log. SQLite does not wait for others who do so at the same moment: this does."""
    give_up_at = machine_clock.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            rows.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError:
            if machine_clock.monotonic() > give_up_at:
                raise
            time.sleep(_AGAIN_SECONDS)
        else:
            return


def _get(rows: sqlite3.Connection, name: str) -> Record | None:
    row = rows.execute(
        "SELECT state, token, fingerprint, until, reply FROM replies WHERE call_id = ? AND forget_at > ?",
        (name, machine_clock.wall()),
    ).fetchone()
    return None if row is None else Record(*row)


def _since(rows: sqlite3.Connection, seconds: float) -> float:
    """Return since when nothing is lost; records written with a shorter `seconds` expire after that."""
    now = machine_clock.wall()
    since = float(rows.execute("SELECT since FROM complete").fetchone()[0])
    shorter = rows.execute("SELECT seconds, until FROM kept_for WHERE seconds < ?", (seconds,)).fetchall()
    return max(since, now - seconds, *(min(float(until), now - float(each)) for each, until in shorter))


_AGAIN_SECONDS = 0.01
_PATIENCE_SECONDS = 2.0  # for another process to finish its writing
_WRITES_BETWEEN = 100  # two looks for what to forget

_TABLES = (
    """CREATE TABLE IF NOT EXISTS replies (
        call_id TEXT PRIMARY KEY, state TEXT NOT NULL, token TEXT NOT NULL, fingerprint TEXT NOT NULL,
        until REAL NOT NULL, reply TEXT NOT NULL, forget_at REAL NOT NULL
    ) WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS replies_by_age ON replies (forget_at)",
    "CREATE TABLE IF NOT EXISTS kept_for (seconds REAL PRIMARY KEY, until REAL NOT NULL)",  # the latest such writing
    "CREATE TABLE IF NOT EXISTS complete (id INTEGER PRIMARY KEY CHECK (id = 1), since REAL NOT NULL)",
)
