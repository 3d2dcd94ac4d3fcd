"""A worker whose clock is wrong has calls tried again at the right time, also where they wait in RabbitMQ."""

from pathlib import Path

import pytest

from support.clocks import WallClock
from support.fleet import TestBed
from support.modules.later import LATER, LATER_SECONDS, later_module
from support.servers.rabbitmq import RabbitMq
from toolfleet import Caller, ToolFleet

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seconds", [30, -30])
async def test_a_retry_is_made_when_the_module_wants_it(
    broker: RabbitMq, redis_url: str, owner: Caller, tmp_path: Path, seconds: float
) -> None:
    """Neither half a minute late nor at once."""
    clock = WallClock(tmp_path, ahead=seconds)
    (tmp_path / "logs").mkdir()
    with later_module() as (owls, asked_at):
        bed = TestBed(redis_url, (owls,), tmp_path / "logs", {"broker_url": broker.url})
        with bed.worker(env=clock.env):
            async with ToolFleet(settings=bed.settings) as fleet:
                result = await fleet.call(LATER, owner, timeout=LATER_SECONDS + 20)

    assert (result.result, result.audit.attempts) == ("now", 2)
    assert asked_at[1] - asked_at[0] > LATER_SECONDS - 0.5
