"""The stores of replies, each as it is."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from toolfleet.sdk import MemoryReplies, RedisReplies, Replies, SQLiteReplies

MakeReplies = Callable[[], Replies]
"""Another one over the same records, as another process has it; for a memory the same one."""


@asynccontextmanager
async def stores(kind: str, request: pytest.FixtureRequest, folder: Path) -> AsyncGenerator[MakeReplies]:
    made: list[Replies] = []
    memory = MemoryReplies()
    url = request.getfixturevalue("redis_url") if kind == "redis" else ""

    def make() -> Replies:
        if kind == "memory":
            return memory
        made.append(RedisReplies(url) if url else SQLiteReplies(folder / "state" / "replies.db"))
        return made[-1]

    yield make
    for replies in made:
        await replies.aclose()


@pytest.fixture(params=["memory", "sqlite", "redis"])
async def make_replies(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MakeReplies]:
    """Each kind in turn."""
    async with stores(request.param, request, tmp_path) as make:
        yield make


@pytest.fixture(params=["sqlite", "redis"])
async def make_durable(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MakeReplies]:
    """Those that outlive a process."""
    async with stores(request.param, request, tmp_path) as make:
        yield make
