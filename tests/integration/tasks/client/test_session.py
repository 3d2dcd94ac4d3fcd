"""What an agent costs: one connection, and no broker library."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from support.waiting import wait_until
from toolfleet import ToolFleet
from toolfleet_registry.settings import Settings
from toolfleet_tasks.client.session import Session


async def connections(redis: Redis) -> set[str]:
    """Their ids: what earlier tests have left may close meanwhile."""
    return {client["id"] for client in await redis.client_list()}


@pytest.mark.parametrize("fast", [True, False])
async def test_an_idle_agent_has_one_connection(redis: Redis, redis_url: str, fast: bool) -> None:
    """Everything goes over it; leaving gives it back."""
    before = await connections(redis)
    async with ToolFleet(settings=Settings(redis_url=redis_url, fast_transport=fast)) as fleet:
        session = fleet._sessions.here()
        assert session is not None
        await session._connection.connected()
        await fleet.modules.refresh()
        during = await connections(redis) - before
        while len(during) > 1:  # it hears in the background, at its start, what there is
            during = await connections(redis) - before
    while await connections(redis) - before:
        pass

    assert len(during) == 1


def test_a_fast_agent_needs_neither_celery_nor_kombu(redis_url: str, tmp_path: Path) -> None:
    """They take a while to import, and a fleet that is used through Redis alone never does."""
    code = f"""
import asyncio, sys
from toolfleet import ToolFleet, Settings

async def main():
    async with ToolFleet(settings=Settings(redis_url={redis_url!r}, fast_transport=True)):
        print(sorted({{"celery", "kombu", "billiard"}} & set(sys.modules)))

asyncio.run(main())
"""
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (ended.stdout, ended.stderr) == ("[]\n", "")


@pytest.mark.parametrize("place", ["reload", "close_idle"])
async def test_no_error_ends_the_news(redis: Redis, redis_url: str, monkeypatch: Any, place: str) -> None:
    """Whatever goes wrong with one message, the next one is heard: tools do not grow old for ever."""
    async with ToolFleet(settings=Settings(redis_url=redis_url)) as fleet:
        session = fleet._sessions.here()
        assert session is not None
        holder = session._catalog if place == "reload" else session._updates
        asked = 0

        def fail() -> None:
            nonlocal asked
            asked += 1
            raise ValueError("a defect")

        monkeypatch.setattr(holder, place, fail)
        await redis.publish(session._keys.manifests_changed, "x")
        await wait_until(lambda: asked, "the first message was heard")
        before = asked
        await redis.publish(session._keys.manifests_changed, "x")
        await wait_until(lambda: asked > before, "the next message was heard")
        monkeypatch.undo()


async def test_closing_twice_does_no_harm(redis_url: str) -> None:
    """As after an opening that failed half-way."""
    session = Session(Settings(redis_url=redis_url))
    await session.open()
    await session.aclose()
    await session.aclose()
