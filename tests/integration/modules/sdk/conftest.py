"""The stores of replies, each as it is."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from toolfleet.sdk import MemoryReplies, RedisReplies, Replies, SQLiteReplies

MakeReplies = Callable[[], Replies]
"""Another one over the same records, as another process has it; for a memory the same one."""


@pytest.fixture(params=["memory", "sqlite", "redis"])
async def make_replies(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MakeReplies]:
    """Each kind in turn."""
    made: list[Replies] = []
    memory = MemoryReplies()

    def make() -> Replies:
        match request.param:
            case "memory":
                return memory
            case "sqlite":
                made.append(SQLiteReplies(tmp_path / "state" / "replies.db"))
            case _:
                made.append(RedisReplies(request.getfixturevalue("redis_url")))
        return made[-1]

    if request.param == "redis":
        request.getfixturevalue("redis_url")
    yield make
    for replies in made:
        await replies.aclose()


@pytest.fixture(params=["sqlite", "redis"])
async def make_durable(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MakeReplies]:
    """Those that outlive a process."""
    made: list[Replies] = []
    url = request.getfixturevalue("redis_url") if request.param == "redis" else ""

    def make() -> Replies:
        made.append(RedisReplies(url) if url else SQLiteReplies(tmp_path / "replies.db"))
        return made[-1]

    yield make
    for replies in made:
        await replies.aclose()
