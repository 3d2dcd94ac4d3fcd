"""What the core did about news: an act is a row in its table or an entry in its list, made together with the mark that it was."""

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, cast
from zlib import crc32

from redis import Redis

from toolfleet_registry.contracts.jobs import WakeUp

LIST = "chaos-core:acts"
"""In the run's Redis; the core's own, as the table is."""

INSERT = "INSERT INTO acts VALUES (:act)"

Mark = Literal["received", "acted", "answered"]


@dataclass(frozen=True)
class Act:
    """One. `path` is where the news came to, `kind` their type, `at` when; `pid` whose it is."""

    wake_id: str
    job_id: str
    kind: str
    path: str
    at: float
    pid: int

    def text(self) -> str:
        return json.dumps(asdict(self))


def act_on(wake: WakeUp, path: str) -> Act:
    """The act of this process about that."""
    return Act(wake.wake_id, wake.job_id, wake.type, path, time.time(), os.getpid())


def is_in_sql(wake_id: str) -> bool:
    """In which of its two stores the core acts on it, whichever process does."""
    return crc32(wake_id.encode()) % 2 == 0


def database_of(folder: Path) -> Path:
    """Of all processes of the core."""
    return folder / "core.sqlite"


def marks_of(folder: Path) -> Path:
    """Where they write down what they do, step by step."""
    return folder / "core.jsonl"


def make_table(folder: Path) -> None:
    """Once, before anybody may be frozen at it."""
    with contextlib.closing(sqlite3.connect(database_of(folder))) as connection, connection:
        connection.execute("CREATE TABLE acts (act TEXT NOT NULL)")


def read_acts(folder: Path, look: Redis) -> list[Act]:
    """All acts, from both stores."""
    listed = cast("list[str]", look.lrange(LIST, 0, -1))
    return [Act(**json.loads(text)) for text in (*_rows(database_of(folder)), *listed)]


def read_marks(path: Path) -> list[dict[str, Any]]:
    """What the core wrote down."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _rows(path: Path) -> Iterator[str]:
    if not path.exists():
        return
    with contextlib.closing(sqlite3.connect(path)) as connection:
        yield from (row[0] for row in connection.execute("SELECT act FROM acts"))
