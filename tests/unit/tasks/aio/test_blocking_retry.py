"""What is tried until it is done, without holding up the loop."""

import asyncio
import threading

import pytest
from kombu.exceptions import OperationalError
from redis.exceptions import ConnectionError as RedisAway

from support.waiting import PATIENCE_SECONDS
from toolfleet_tasks import greenlet_bridge
from toolfleet_tasks.greenlet_bridge import Bridge, retry_blocking


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greenlet_bridge, "_PAUSE_SECONDS", 0.01)


async def test_a_server_that_is_away_is_asked_again() -> None:
    """Until it answers; in a thread, so that the loop goes on."""
    faults: list[Exception] = [OperationalError("refused"), RedisAway("gone"), ConnectionResetError()]
    threads = set[int]()

    def act() -> str:
        threads.add(threading.get_ident())
        if faults:
            raise faults.pop()
        return "done"

    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await Bridge(retry_blocking, act) == "done"
    assert threading.get_ident() not in threads


async def test_a_defect_is_not_repeated() -> None:
    """What no waiting mends is raised at once."""

    def act() -> None:
        raise LookupError

    with pytest.raises(LookupError):
        await Bridge(retry_blocking, act)
