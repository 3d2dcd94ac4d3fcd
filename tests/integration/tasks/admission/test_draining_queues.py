"""A draining queue at admission control: new calls are refused, and what goes on is let in. With each transport, and no worker."""

import pytest
from redis.asyncio import Redis

from support.published_call import published
from support.workers.hand_worker import HandWorker
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.settings import Settings
from toolfleet_tasks.admission import AdmissionControl
from toolfleet_tasks.messages.ids import is_later_step
from toolfleet_tasks.queue_states import QueueState

ADA = Caller(user_id="ada", permission="owner", allowed_modules="*")
STATES = Keys().queue_states
DRAINING = QueueState(state="draining", since=1.0).model_dump_json()
PAUSED = QueueState(state="paused", since=1.0).model_dump_json()


def echo(idempotency_key: str | None = None) -> ToolCall:
    return ToolCall(tool_name="owls.echo", arguments={"n": 1}, idempotency_key=idempotency_key)


@pytest.mark.parametrize("name", ["owls", "lane:fast"])
async def test_an_agent_that_knows_nothing_is_refused(
    settings: Settings, redis: Redis, worker: HandWorker, name: str
) -> None:
    """At once, and the call counts for nobody; when the queue is resumed the next one gets in."""
    async with ToolFleet(settings=settings) as fleet:
        before = await fleet.submit(echo(), ADA)
        await redis.hset(STATES, name, DRAINING)
        refused = await fleet.call(echo(), ADA)
        assert (refused.error_code, refused.effect_state, refused.retryable) == ("busy", "none", True)
        assert (refused.retry_after_seconds or 0) > 1
        assert "draining" in (refused.error or "")
        assert await redis.zcard(Keys().caller_limit("fast", "ada")) == 1
        await redis.hdel(STATES, name)
        after = await fleet.submit(echo(), ADA)
    assert [call.call_id for call in await worker.queued()] == [before.id, after.id]


async def test_a_repeat_joins_the_call_that_is_there(settings: Settings, redis: Redis, worker: HandWorker) -> None:
    """By its idempotency key: it is no new call."""
    async with ToolFleet(settings=settings) as fleet, ToolFleet(settings=settings) as other:
        first = await fleet.submit(echo("key"), ADA)
        await redis.hset(STATES, "owls", DRAINING)
        assert (await other.submit(echo("key"), ADA)).id == first.id
    assert len(await worker.queued()) == 1


@pytest.mark.parametrize("name", ["larks", "lane:slow"])
async def test_other_queues_take_calls(settings: Settings, redis: Redis, worker: HandWorker, name: str) -> None:
    """As does a paused one."""
    await redis.hset(STATES, mapping={name: DRAINING, "owls": PAUSED})
    async with ToolFleet(settings=settings) as fleet:
        await fleet.submit(echo(), ADA)
    assert len(await worker.queued()) == 1


@pytest.mark.parametrize(("call_id", "job_id", "expected"), [("j.0", "j", 0), ("j.1", "j", 1), ("c", None, 0)])
def test_later_calls_of_a_job_are_let_in(settings: Settings, call_id: str, job_id: str | None, expected: int) -> None:
    """Its start is a new call, and its polls are none."""
    call = published(call_id=call_id, job_id=job_id)
    _, command = AdmissionControl(settings).build_command(call, now=call.published_at)
    assert is_later_step(call_id, job_id) is bool(expected)
    assert (STATES not in command) is bool(expected)
