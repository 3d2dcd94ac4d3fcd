"""Calls that are published in one tick: let in together, or each judged alone."""

import asyncio
import contextlib
import math
import tracemalloc
import types
from collections.abc import AsyncGenerator, Coroutine, Generator
from typing import Any

import pytest
from redis.asyncio import Redis

from support.published_call import published as published_call
from toolfleet_registry.contracts import PublishedCall
from toolfleet_registry.errors import BegunBefore, NotPublished, PublishUnconfirmed
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.script import Names
from toolfleet_registry.redis.servers import connection_factory
from toolfleet_registry.settings import Settings
from toolfleet_tasks.admission import ADMIT, AdmissionControl, Refusal
from toolfleet_tasks.redis_connection import PipelinedConnection
from toolfleet_tasks.scripts import FILES
from toolfleet_tasks.transport import redis_publisher
from toolfleet_tasks.transport.publisher import Outcome
from toolfleet_tasks.transport.redis_publisher import RedisPublisher

QUEUE, TOKENS = "tools.owls", Keys().notify_key("tools.owls")


def published(call_id: str, *, user_id: str = "ada", **fields: Any) -> PublishedCall:
    """A call that waits with the owls."""
    return published_call("owls.count", call_id=call_id, user_id=user_id, **fields)


@contextlib.asynccontextmanager
async def warm_publisher(redis: Redis, url: str, **settings: Any) -> AsyncGenerator[RedisPublisher]:
    """A publisher that has looked up what it asks for once in a while, before an empty Redis that knows the scripts."""
    line = PipelinedConnection(connection_factory(url), name="test")
    line.start()
    await line.connected()
    values: dict[str, Any] = {"redis_url": url, "calls_per_caller": 100, **settings}
    control = AdmissionControl(Settings(**values))
    ours = RedisPublisher(line, keys=Keys(), database=0, admission=control)
    for user_id in ("ada", "bob"):
        for turn in range(2):
            await together(ours, *(published(f"{turn}-{at}", user_id=user_id) for at in range(2)))
    await redis.flushdb()
    await redis.config_resetstat()
    yield ours
    await line.aclose()
    await redis.flushdb()


async def together(publisher: RedisPublisher, *calls: PublishedCall, limit: int = 0) -> list[Any]:
    """What became of each."""
    published = (publisher.publish(call, seconds=10, limit=limit) for call in calls)
    return await asyncio.gather(*published, return_exceptions=True)


async def scripts_run(redis: Redis) -> int:
    """How many scripts Redis has run by their digest."""
    return int((await redis.info("commandstats"))["cmdstat_evalsha"]["calls"])


async def queued(redis: Redis) -> int:
    """How many messages wait."""
    return int(await redis.llen(QUEUE))


async def messages_of(redis: Redis) -> list[str]:
    """What waits, the next one first."""
    found: Any = await redis.lrange(QUEUE, 0, -1)
    return [str(message) for message in reversed(found)]


async def test_calls_of_one_tick_take_one_script(redis: Redis, redis_url: str) -> None:
    """Each is in the queue, in their order, with one token, and counts for its caller until its deadline."""
    calls = [published("c0"), published("c1", user_id="bob"), published("c2")]
    async with warm_publisher(redis, redis_url) as ours:
        assert await together(ours, *calls) == [None, None, None]

        assert await scripts_run(redis) == 1
        messages = await messages_of(redis)
        assert [call.call_id in message for call, message in zip(calls, messages, strict=True)] == [True] * 3
        assert await redis.lrange(TOKENS, 0, -1) == ["1"]
        key = Keys().caller_limit("fast", "ada")
        counted: Any = await redis.zrange(key, 0, -1, withscores=True)
        assert dict(counted) == {call.call_id: math.ceil(call.deadline_at) for call in (calls[0], calls[2])}
        assert await redis.ttl(key) > 0
        assert await redis.zcard(Keys().caller_limit("fast", "bob")) == 1


async def test_a_large_call_travels_alone(redis: Redis, redis_url: str) -> None:
    """Many of them would be more than Redis takes in one command; the others of the tick have one script."""
    large = published("c0", arguments={"text": "x" * 70_000})
    async with warm_publisher(redis, redis_url) as ours:
        assert await together(ours, large, published("c1"), published("c2")) == [None, None, None]

        assert await scripts_run(redis) == 2
        assert await queued(redis) == 3


async def test_a_caller_at_its_limit_holds_up_nobody_else(redis: Redis, redis_url: str) -> None:
    """One call too many: each is judged alone, and that one is refused."""
    calls = [published("c0"), published("c1"), published("c2"), published("c3", user_id="bob")]
    async with warm_publisher(redis, redis_url, calls_per_caller=2) as ours:
        assert await together(ours, *calls) == [None, None, Refusal("share", count=2), None]

        assert await queued(redis) == 3
        assert await redis.zcard(Keys().caller_limit("fast", "ada")) == 2


async def test_a_queue_takes_as_many_as_it_may_hold(redis: Redis, redis_url: str) -> None:
    """One message too many: each call is judged alone, and the last is refused."""
    async with warm_publisher(redis, redis_url) as ours:
        ends = await together(ours, *(published(f"c{at}") for at in range(3)), limit=2)

        assert ends == [None, None, Refusal("backlog", count=2)]
        assert await queued(redis) == 2


async def test_what_comes_after_its_end_is_left_out(redis: Redis, redis_url: str) -> None:
    """A call of the tick has a record already: nothing of it is written, and the other is let in."""
    async with warm_publisher(redis, redis_url) as ours:
        await redis.hset(Keys().call("c0"), "state", "done")
        first, second = await together(ours, published("c0"), published("c1"))

        assert isinstance(first, BegunBefore)
        assert second is None
        assert await queued(redis) == 1


async def test_a_redis_that_forgets_scripts_gets_their_text(redis: Redis, redis_url: str) -> None:
    """The calls of a tick are let in, each once, and the next ones by one digest."""
    async with warm_publisher(redis, redis_url) as ours:
        await redis.script_flush()
        assert await together(ours, published("c0"), published("c1")) == [None, None]
        assert await queued(redis) == 2
        await redis.config_resetstat()
        assert await together(ours, published("c2"), published("c3")) == [None, None]

        assert await scripts_run(redis) == 1


@pytest.mark.parametrize("name", [QUEUE, Keys().caller_limit("fast", "ada")])
async def test_what_fails_lets_none_of_them_in(redis: Redis, redis_url: str, name: str) -> None:
    """A key is of the wrong type: each caller hears it, and nothing is counted."""
    async with warm_publisher(redis, redis_url) as ours:
        await redis.set(name, "x")
        ends = await together(ours, published("c0"), published("c1"), limit=5)

        assert [type(end) for end in ends] == [NotPublished, NotPublished]
        assert set(await redis.keys("*")) <= {name, TOKENS}


async def test_who_has_gone_is_not_let_in_alone(redis: Redis, redis_url: str) -> None:
    """Its tick's calls are to be judged one by one, and nobody waits for this one any more."""
    async with warm_publisher(redis, redis_url) as ours:
        await redis.hset(Keys().call("c0"), "state", "done")
        calls = [asyncio.ensure_future(ours.publish(published(f"c{at}"), seconds=10)) for at in range(3)]
        await asyncio.sleep(0)  # they are sent
        calls[1].cancel()
        await asyncio.wait(calls)

        assert isinstance(calls[0].exception(), BegunBefore)
        assert calls[1].cancelled()
        assert calls[2].result() is None
        (message,) = await messages_of(redis)
        assert "c2" in message


async def test_an_answer_that_is_lost_confirms_none_of_them(redis: Redis, redis_url: str) -> None:
    """The connection goes after the calls were sent: each may be in its queue."""
    async with warm_publisher(redis, redis_url) as ours:
        await redis.execute_command("CLIENT", "PAUSE", "500")
        calls = [asyncio.ensure_future(ours.publish(published(f"c{at}"), seconds=10)) for at in range(2)]
        for _ in range(3):
            await asyncio.sleep(0)
        await ours._connection.aclose()
        await asyncio.wait(calls)

        assert [type(call.exception()) for call in calls] == [PublishUnconfirmed] * 2
        await redis.ping()


class Followed:
    """A call whose end is waited for: what its publisher tells, and how often its waiter is woken."""

    def __init__(self, publisher: RedisPublisher, call_id: str, *, seconds: float = 10) -> None:
        self.ending: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.heard, self.answered, self.wakes = list[Outcome](), asyncio.Event(), 0
        publishing = publisher.publish(published(call_id), seconds=seconds, follow=(self.ending, self._told))
        self.task = asyncio.ensure_future(self._followed(publishing))

    def _told(self, outcome: Outcome) -> bool:
        self.heard.append(outcome)
        self.answered.set()
        return not isinstance(outcome, Refusal | NotPublished)

    async def _followed(self, publishing: Coroutine[Any, Any, Refusal | None]) -> Refusal | None:
        return await self._counted(publishing)

    @types.coroutine
    def _counted(self, publishing: Coroutine[Any, Any, Refusal | None]) -> Generator[Any, Any, Refusal | None]:
        while True:
            try:
                waited = publishing.send(None)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            yield waited
            self.wakes += 1


async def test_who_waits_for_the_end_is_woken_once(redis: Redis, redis_url: str) -> None:
    """Not by the answer of the queue, which is told meanwhile: also by a Redis that has forgotten the script."""
    async with warm_publisher(redis, redis_url) as ours:
        await redis.script_flush()
        call = Followed(ours, "c0")
        await call.answered.wait()
        await redis.ping()
        assert (call.heard, call.wakes, await queued(redis)) == ([None], 0, 1)
        call.ending.set_result("the end")

        assert await call.task is None
        assert call.wakes == 1


async def test_who_waits_for_the_end_hears_of_a_refusal_at_once(redis: Redis, redis_url: str) -> None:
    """The same of a call that has its record already, and of a refusal."""
    async with warm_publisher(redis, redis_url, calls_per_caller=1) as ours:
        await redis.hset(Keys().call("c0"), "state", "done")
        calls = [Followed(ours, f"c{at}") for at in range(3)]
        await asyncio.gather(*(call.answered.wait() for call in calls))

        assert await calls[2].task == Refusal("share", count=1)
        assert [type(call.heard[0]) for call in calls] == [BegunBefore, type(None), Refusal]
        assert [call.task.done() for call in calls] == [False, False, True]
        for call in calls:
            call.task.cancel()


async def test_who_waits_for_the_end_waits_on_when_the_answer_is_lost(redis: Redis, redis_url: str) -> None:
    """The connection goes after the call was sent: it may be in its queue, and its end may be heard."""
    async with warm_publisher(redis, redis_url) as ours:
        await redis.execute_command("CLIENT", "PAUSE", "500")
        call = Followed(ours, "c0")
        for _ in range(3):
            await asyncio.sleep(0)
        await ours._connection.aclose()
        await call.answered.wait()

        assert [type(each) for each in call.heard] == [PublishUnconfirmed]
        call.ending.set_result("the end")
        assert await call.task is None
        await redis.ping()


def test_the_names_of_what_is_asked_are_those_of_the_script() -> None:
    """A batch finds in the parameters of a call what it shares with others."""
    head = FILES.source(ADMIT.name)
    names = Names(head.keys.fixed), head.args

    assert ("number", *names[0].fixed, *names[1].fixed) == redis_publisher._ASKED
    assert len(names[0].fixed) == redis_publisher._KEYS


async def test_a_call_that_waits_for_its_end_keeps_no_message(redis: Redis, redis_url: str) -> None:
    """What was written of it goes once it is in its queue, however long its end takes."""
    call = published("c0", arguments={"text": "x" * 200_000})
    end, sent = asyncio.get_running_loop().create_future(), asyncio.Event()

    def answered(outcome: Outcome) -> bool:
        assert outcome is None
        sent.set()
        return True

    async with warm_publisher(redis, redis_url) as ours:
        tracemalloc.start()
        try:
            publishing = asyncio.create_task(ours.publish(call, seconds=10, follow=(end, answered)))
            await sent.wait()
            await together(ours, published("c1"))
            held = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
            end.set_result(None)
            await publishing

    assert held < 100_000


async def test_a_logger_that_fails_keeps_no_other_call_waiting(
    redis: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis refuses a script with an error that nobody knows: each call hears that nothing is certain, and the connection stands."""

    def broken(*_: object, **__: object) -> None:
        raise BrokenPipeError

    async with warm_publisher(redis, redis_url) as ours:
        monkeypatch.setattr(redis_publisher, "log", types.SimpleNamespace(warning=broken))
        await redis.set(Keys().caller_limit("fast", "ada"), "no sorted set")
        calls = [published("c0"), published("c1")]
        found = await asyncio.gather(
            *(ours.publish(call, seconds=10, again=True) for call in calls), return_exceptions=True
        )
        assert [repr(each) for each in found] == ["PublishUnconfirmed('BrokenPipeError()')"] * 2
        await redis.flushdb()
        assert await together(ours, published("c2")) == [None]
