"""How a call ends when its worker says nothing, or something that it did not decide: the ledger knows how far it got."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import pytest
from redis.asyncio import Redis

from support.published_call import published
from support.waiting import PATIENCE_SECONDS, wait_until
from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.contracts.attempts import Attempt, Outcome
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.servers import connection_factory
from toolfleet_registry.settings import Settings
from toolfleet_tasks.calls.handle import CallHandle
from toolfleet_tasks.calls.pending_call import InputAnswers, PendingCall
from toolfleet_tasks.ledger.claims import Claim
from toolfleet_tasks.ledger.ledger import Ledger, NotClaimed
from toolfleet_tasks.redis_connection import PipelinedConnection
from toolfleet_tasks.results.listener import ResultListener
from toolfleet_tasks.results.verifier import Verifier
from toolfleet_tasks.transport.redis_publisher import RedisPublisher

RESULT = "celery-task-meta-call-1"
REVOKED = json.dumps({"status": "REVOKED", "result": {"exc_type": "TaskRevokedError"}})
FAILURE = json.dumps({"status": "FAILURE", "result": {"exc_type": "WorkerLostError"}})
HARD_LIMIT = json.dumps({"status": "FAILURE", "result": {"exc_type": "TimeLimitExceeded"}})
CALL = published()


class Desk:
    """An inbox and a ledger, and what a call's follower needs beside them."""

    def __init__(self, url: str) -> None:
        settings = Settings(redis_url=url)
        self.line = PipelinedConnection(connection_factory(url), name="test")
        self.settings = settings
        self.reads = PipelinedConnection(connection_factory(url), name="reads")
        self.listener = ResultListener(self.line, self.reads, Verifier(self.line, settings), handlers={}, keys=Keys())
        self.ledger = Ledger(self.line, settings, writes_results=False)
        self.worker = Ledger(self.line, settings, writes_results=True)
        self.revoked: list[str] = []
        self.tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        return task

    async def revoke(self, call_id: str) -> None:
        self.revoked.append(call_id)

    async def follow(self, *, seconds: float = 60, is_guest: bool = False) -> PendingCall:
        """A published call that ends in `seconds`."""
        follow = PendingCall(
            CALL,
            self.listener,
            ledger=self.ledger,
            revoke=self.revoke,
            spawn=self.spawn,
            had=lambda *_: None,
            answers=InputAnswers(
                self.ledger, RedisPublisher(self.line, keys=Keys(), database=0), self.settings, lambda *said: said[-1]
            ),
            is_guest=is_guest,
        )
        await asyncio.wait_for(self.listener.listening("call-1"), PATIENCE_SECONDS)
        follow.published(time.time() + seconds)
        return follow

    async def begin(self) -> Claim:
        """A worker begins the call."""
        claim = await self.worker.claim(CALL)
        assert isinstance(claim, Claim)
        return claim


@pytest.fixture
async def service(redis: Redis, redis_url: str) -> AsyncIterator[Desk]:
    service = Desk(redis_url)
    service.line.start()
    await service.line.connected()
    service.listener.start()
    await wait_until(
        lambda: service.listener.identity.data_id and not service.listener._is_new, "the first look is over"
    )
    yield service
    await asyncio.wait_for(asyncio.gather(*service.tasks), PATIENCE_SECONDS)
    await service.listener.aclose()
    await service.line.aclose()


async def end(follow: PendingCall) -> ToolResult:
    return await asyncio.wait_for(follow.ending, PATIENCE_SECONDS)


async def untouched(_: Desk) -> None:
    """No worker has had it."""


async def begun(service: Desk) -> None:
    """A worker is at it, or has died with it."""
    await service.begin()


async def turned_away(service: Desk) -> None:
    """It waits for its second attempt; the first one surely did nothing."""
    result = ToolResult.failed("research.search_docs", "busy", "busy", effect_state="none")
    await service.worker.close(await service.begin(), Attempt(Outcome.TURNED_AWAY, result), seconds=0, so_far="none")


async def failed(service: Desk) -> None:
    """It waits for its second attempt; what the first one did, nobody knows."""
    result = ToolResult.failed("research.search_docs", "module_error", "500", effect_state="unknown")
    await service.worker.close(await service.begin(), Attempt(Outcome.FAILED, result), seconds=0, so_far="unknown")


History = Callable[[Desk], Awaitable[None]]


@pytest.mark.parametrize(
    ("history", "code", "effect_state"),
    [
        (untouched, "expired", "none"),
        (begun, "timed_out", "unknown"),
        (turned_away, "timed_out", "none"),
        (failed, "timed_out", "unknown"),
    ],
)
async def test_at_the_deadline_the_ledger_decides(
    service: Desk, redis: Redis, history: History, code: str, effect_state: str
) -> None:
    """The call is taken back for good, and its result claims no more than the ledger knows."""
    await history(service)
    result = await end(await service.follow(seconds=0.05))

    assert (result.error_code, result.effect_state) == (code, effect_state)
    assert result.hint
    assert service.revoked == ["call-1"]
    assert not service.listener._expected
    assert await service.worker.claim(CALL) == NotClaimed("done", result=str(await redis.get(RESULT)))


async def test_a_redis_that_lost_its_data_knows_of_no_beginning(service: Desk, redis: Redis) -> None:
    """There may have been a record: no `none` without the data that it had then, nor from another server."""
    follow = await service.follow(seconds=1)
    await redis.flushall()
    assert (await end(follow)).effect_state == "unknown"

    await redis.flushall()
    await service.listener.identity.recheck()
    assert (await end(await service.follow(seconds=0.05))).effect_state == "none"

    await redis.delete(Keys().call("call-1"), RESULT)
    follow = await service.follow(seconds=1)
    service.listener.identity._run_id = b"that of another one"
    await service.listener.identity.recognise()
    assert (await end(follow)).effect_state == "unknown"


async def test_a_result_that_nobody_announced_is_found_at_the_deadline(service: Desk) -> None:
    """A call that has ended has the result that it ended with, whenever its caller hears of it."""
    follow = await service.follow(seconds=1)
    service.line.tell("UNSUBSCRIBE", RESULT)
    done = ToolResult.ok("research.search_docs", "owls")
    await service.worker.finish(await service.begin(), done)

    assert (await end(follow)).result == "owls"


async def test_at_the_deadline_a_silent_redis_says_unknown(service: Desk) -> None:
    """An answer comes all the same, a second later."""
    follow = await service.follow(seconds=1)
    await service.line.aclose()
    result = await end(follow)

    assert (result.error_code, result.effect_state) == ("timed_out", "unknown")


@pytest.mark.parametrize(
    ("meta", "history", "code", "effect_state"),
    [
        (FAILURE, begun, "outcome_unknown", "unknown"),  # nobody saw the end
        (HARD_LIMIT, begun, "timed_out", "unknown"),
        (REVOKED, begun, "cancelled", "unknown"),  # interrupted while it ran
        (REVOKED, untouched, "cancelled", "none"),  # while it waited
        (REVOKED, turned_away, "cancelled", "none"),  # before its second attempt
        (FAILURE, untouched, "internal", "none"),  # the worker failed before it had claimed it
    ],
)
async def test_what_celery_ended_ends_in_the_ledger(
    service: Desk, redis: Redis, meta: str, history: History, code: str, effect_state: str
) -> None:
    """How far the call had got, only the ledger knows; what Celery wrote is replaced."""
    await history(service)
    follow = await service.follow()
    await redis.publish(RESULT, meta)
    result = await end(follow)

    assert (result.error_code, result.effect_state) == (code, effect_state)
    assert json.loads(str(await redis.get(RESULT)))["status"] == "SUCCESS"


async def test_celerys_own_end_does_not_replace_a_result(service: Desk, redis: Redis) -> None:
    """A call that ended while its worker was being stopped has the result that the ledger took."""
    follow = await service.follow()
    service.line.tell("UNSUBSCRIBE", RESULT)
    await service.worker.finish(await service.begin(), ToolResult.ok("research.search_docs", "owls"))
    follow.ended(json.loads(FAILURE))

    assert (await end(follow)).result == "owls"


@pytest.mark.parametrize(("history", "effect_state"), [(untouched, "none"), (begun, "unknown"), (turned_away, "none")])
async def test_who_cancels_hears_how_far_it_got(service: Desk, history: History, effect_state: str) -> None:
    """The call ends at once, whether workers are up or not; no worker begins it any more, and they are told."""
    await history(service)
    follow = await service.follow()
    handle = CallHandle("call-1", "research.search_docs", follow.ending, follow)
    await handle.cancel()
    result = await handle.result(PATIENCE_SECONDS)

    assert (result.error_code, result.effect_state) == ("cancelled", effect_state)
    assert await handle.status() == "done"
    assert service.revoked == ["call-1"]
    assert isinstance(await service.worker.claim(CALL), NotClaimed)


async def test_a_call_that_is_given_up_is_taken_back(service: Desk) -> None:
    """Nobody waits for it any more: it is not begun."""
    follow = await service.follow()
    follow.give_up()
    await asyncio.gather(*service.tasks)

    assert follow.ending.cancelled()
    assert service.revoked == ["call-1"]
    assert isinstance(await service.worker.claim(CALL), NotClaimed)


async def test_a_guest_ends_nothing(service: Desk) -> None:
    """Who only follows a call ends its own waiting: at its deadline, when it cancels, and when it goes."""
    late = await end(await service.follow(seconds=0.05, is_guest=True))
    leaving = await service.follow(is_guest=True)
    await leaving.cancel()
    (await service.follow(is_guest=True)).give_up()

    assert (late.error_code, late.effect_state) == ("timed_out", "unknown")
    assert (await end(leaving)).error_code == "cancelled"
    assert service.revoked == []
    assert (await service.begin()).granted == "go"


async def test_a_guest_does_not_know_what_there_was(service: Desk) -> None:
    """Celery has ended a call of which there is no record: whether there was one before it came, a guest cannot tell."""
    guest = await service.follow(is_guest=True)
    guest.ended(json.loads(FAILURE))

    assert (await end(guest)).effect_state == "unknown"


async def test_a_result_that_is_there_is_not_refused(service: Desk, redis: Redis) -> None:
    """A call whose publishing was not confirmed, but which was answered, has its answer."""
    follow = await service.follow()
    await redis.publish(RESULT, REVOKED)
    await end(follow)
    follow.refuse(ToolResult.refused("x.y", "internal", "not confirmed"))

    assert (await end(follow)).error_code == "cancelled"


async def test_where_a_call_is(service: Desk) -> None:
    """The ledger tells; a Redis that does not answer tells nothing."""
    follow = await service.follow()
    assert await follow.status() == "queued"
    claim = await service.begin()
    assert await follow.status() == "running"
    result = ToolResult.failed("research.search_docs", "busy", "busy", effect_state="none")
    await service.worker.close(claim, Attempt(Outcome.TURNED_AWAY, result), seconds=0, so_far="none")
    assert await follow.status() == "retrying"
    await service.line.aclose()

    assert await follow.status() == "unknown"
