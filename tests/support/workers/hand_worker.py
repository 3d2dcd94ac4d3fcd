"""A worker by hand: takes calls out of a queue, and ends them in the ledger when a test says so."""

import json
from base64 import b64decode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from redis.asyncio import Redis

from support.waiting import wait_until_answered, wait_until_equal
from toolfleet_registry.contracts import PublishedCall, ToolResult
from toolfleet_registry.contracts.attempts import Attempt, Outcome
from toolfleet_registry.redis.servers import connection_factory
from toolfleet_registry.settings import Settings
from toolfleet_tasks.ledger.claims import Claim
from toolfleet_tasks.ledger.ledger import Ledger
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.redis_connection import PipelinedConnection

QUEUE = "tools.owls"


class HandWorker:
    """Knows the queues of fleets on one Redis."""

    def __init__(self, redis: Redis, ledger: Ledger) -> None:
        self._redis = redis
        self._ledger = ledger

    async def queued(self, queue: str = QUEUE) -> list[PublishedCall]:
        """The calls that wait, the next one first."""
        return [_call_in(item) for item in reversed(await self._redis.lrange(queue, 0, -1))]

    async def until_queued(self, count: int = 1, queue: str = QUEUE) -> list[PublishedCall]:
        """Return the calls that wait as soon as there are so many."""
        await wait_until_equal(lambda: self._redis.llen(queue), count, f"{count} calls wait in {queue}")
        return await self.queued(queue)

    async def take(self, queue: str = QUEUE) -> Claim:
        """Begin with the next one, as soon as one waits."""
        await wait_until_answered(lambda: self._redis.llen(queue), f"a call waits in {queue}")
        item = await self._redis.rpop(queue)
        assert isinstance(item, str)
        claim = await self._ledger.claim(_call_in(item))
        assert isinstance(claim, Claim)
        return claim

    async def finish(self, claim: Claim, result: ToolResult | None = None) -> None:
        """Give a call its result: success, if none is given."""
        result = result or ToolResult.ok(claim.call.tool_name, claim.call.arguments)
        outcome = Outcome.SUCCESS if result.success else Outcome.PERMANENT
        assert await self._ledger.finish(claim, result, attempt=Attempt(outcome, result), seconds=0)


@asynccontextmanager
async def hand_worker(settings: Settings) -> AsyncGenerator[HandWorker]:
    line = PipelinedConnection(connection_factory(str(settings.redis_url)), name="hand")
    line.start()
    async with Redis.from_url(str(settings.broker), decode_responses=True) as redis:
        yield HandWorker(redis, Ledger(line, settings, writes_results=True))
    await line.aclose()


def _call_in(item: str | bytes) -> PublishedCall:
    ((text,), *_) = json.loads(b64decode(json.loads(item)["body"]))
    return json_text.load(PublishedCall, text)
