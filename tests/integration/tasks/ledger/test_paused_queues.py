"""A paused queue at the ledger: no call begins there, whatever its worker has heard, and what has begun goes on to its end."""

import time

import pytest
from redis.asyncio import Redis

from support.published_call import published
from support.workers.ledgers import RECORD, begun, claimed, close, finish, holding, refused
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.ledger.claims import AcceptedAttempt
from toolfleet_tasks.ledger.ledger import Ledger
from toolfleet_tasks.ledger.parameters import Ended
from toolfleet_tasks.queue_states import QueueState

CALL = published(effect="once", deadline_at=time.time() + 3600)
SETTINGS = {"module_concurrency": {"research": 1}}
STATES = Keys().queue_states
PAUSED = QueueState(state="paused", since=1.0, by="ada", reason='"state":"draining"').model_dump_json()
DRAINING = QueueState(state="draining", since=1.0).model_dump_json()


@pytest.mark.parametrize("name", ["research", "lane:fast"])
async def test_no_call_begins_while_it_is_paused(ledger: Ledger, redis: Redis, name: str) -> None:
    """It leaves no record and takes no place in its module; when the queue is resumed it is the first attempt."""
    await redis.hset(STATES, name, PAUSED)
    assert (await refused(ledger, CALL)).reason == "paused"
    assert not await redis.exists(RECORD, Keys().running("research"))
    await redis.delete(STATES)
    claim = await begun(ledger, CALL)
    assert claim.attempts == 1


async def test_a_retry_waits(ledger: Ledger, redis: Redis) -> None:
    """It would begin the call once more."""
    await close(ledger, await begun(ledger, published(effect="read", call_id=CALL.call_id)))
    await redis.hset(STATES, "research", PAUSED)
    assert (await refused(ledger, CALL)).reason == "paused"


async def test_what_its_module_goes_on_with_is_asked_for(ledger: Ledger, redis: Redis) -> None:
    """And ends: nothing is begun by that."""
    claim = await begun(ledger, CALL)
    with holding(ledger.claims, claim):
        assert await ledger.waiting.park(
            claim, AcceptedAttempt("egg", 12.5, 0.5), Ended("accepted 5", 0, 3, 10), seconds=0
        )
    await redis.hset(STATES, "research", PAUSED)
    again = await claimed(ledger, CALL)
    assert again.granted == "accepted"
    assert await finish(ledger, again) is not None
    assert (await refused(ledger, CALL)).reason == "done"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("research", DRAINING),  # what waits is run
        ("owls", PAUSED),  # another module's
        ("lane:slow", PAUSED),  # another lane's
        ("research", "garbage"),  # holds for nobody
    ],
)
async def test_other_states_stop_nothing(ledger: Ledger, redis: Redis, name: str, text: str) -> None:
    """The call begins."""
    await redis.hset(STATES, name, text)
    assert (await begun(ledger, CALL)).attempts == 1


async def test_a_key_of_another_type_stops_nothing(ledger: Ledger, redis: Redis) -> None:
    """It fails open: nobody has said that anything is paused."""
    await redis.set(STATES, "somebody's")
    assert (await begun(ledger, CALL)).attempts == 1
