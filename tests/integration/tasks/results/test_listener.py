"""One connection brings all results, and what it may have missed is read."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from redis.asyncio import Redis

from support.waiting import PATIENCE_SECONDS, wait_until
from toolfleet_registry.errors import NotPublished
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.servers import connection_factory
from toolfleet_registry.settings import Settings
from toolfleet_tasks.redis_connection import PipelinedConnection
from toolfleet_tasks.results import listener
from toolfleet_tasks.results.listener import Expected, ResultListener
from toolfleet_tasks.results.verifier import Meta, Verifier
from toolfleet_tasks.scripts import REPLY_DIGITS

KEY = "celery-task-meta-"


def meta(status: str, result: Any = None) -> str:
    return json.dumps({"status": status, "result": result})


@dataclass
class Call:
    """Waits for one end."""

    end: "asyncio.Future[Meta]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    was_left: bool = False
    expected: Expected | None = None

    def ended(self, meta: Meta) -> None:
        self.end.set_result(meta)

    def left(self) -> None:
        self.was_left = True

    async def result(self) -> Any:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return (await self.end)["result"]


class Ear:
    """An inbox with a line of its own."""

    def __init__(self, url: str, handlers: Mapping[str, Callable[[], None]] | None = None, prefix: str = "") -> None:
        self.line = PipelinedConnection(connection_factory(url), name="test")
        reads, verifier = PipelinedConnection(connection_factory(url), name="reads"), Verifier(self.line, Settings())
        self.listener = ResultListener(self.line, reads, verifier, handlers=handlers or {}, keys=Keys(prefix))

    def start(self) -> None:
        self.line.start()
        self.listener.start()

    async def expect(self, call_id: str) -> Call:
        """A call that is listened for."""
        call = Call()
        call.expected = self.listener.expect(call_id, call)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self.listener.listening(call_id)
        return call

    def forget(self, call: Call) -> None:
        assert call.expected is not None
        self.listener.forget(call.expected)

    def trusts(self, call: Call) -> bool:
        assert call.expected is not None
        return self.listener.identity.is_same_since(call.expected.since)

    async def aclose(self) -> None:
        await self.listener.aclose()
        await self.line.aclose()


@pytest.fixture
async def subscription(redis: Redis, redis_url: str) -> AsyncIterator[Ear]:
    subscription = Ear(redis_url)
    subscription.start()
    yield subscription
    await subscription.aclose()


async def subscriptions(redis: Redis) -> int:
    return len(await redis.pubsub_channels(f"{KEY}*"))


async def wait_until_subscribed(redis: Redis, count: int) -> None:
    seen = [-1]
    async with asyncio.timeout(PATIENCE_SECONDS):
        while seen[-1] != count:
            seen.append(await subscriptions(redis))


async def cut(redis: Redis) -> None:
    """Have Redis close the connection of whoever listens."""
    await redis.client_kill_filter(_type="pubsub")


async def test_a_result_is_heard(subscription: Ear, redis: Redis) -> None:
    """What is published after `listening` arrives."""
    call = await subscription.expect("a")
    await redis.publish(f"{KEY}a", meta("SUCCESS", "x"))

    assert await call.result() == "x"


async def test_an_end_that_is_found_before_redis_says_that_we_listen_ends_the_wait(subscription: Ear) -> None:
    """Nothing more is to be heard: whoever waits to be listened to goes on, and is not cancelled."""
    call = Call()
    subscription.listener.expect("c1", call)
    listening = asyncio.create_task(subscription.listener.listening("c1"))
    await asyncio.sleep(0)
    subscription.listener.found("c1", meta("SUCCESS", "owls").encode())
    async with asyncio.timeout(PATIENCE_SECONDS):
        await listening

    assert await call.result() == "owls"


async def test_only_an_end_is_a_result(subscription: Ear, redis: Redis) -> None:
    """Started and retried are news, not results; and a stranger's message is nothing at all."""
    call = await subscription.expect("a")
    for message in (
        meta("STARTED"),
        meta("RETRY"),
        "no json",
        '["no", "meta"]',
        '{"status": []}',
        "[" * 100_000,
        b"\xff",
    ):
        await redis.publish(f"{KEY}a", message)
    await redis.publish(f"{KEY}a", meta("FAILURE"))
    await call.result()

    assert call.end.result()["status"] == "FAILURE"


async def test_large_results_never_cut_the_line(
    subscription: Ear, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis gives up a subscriber that has too much to read; what is fetched, or swept, goes over another connection."""
    for name in ("_SWEEP_SECONDS", "_ASK_SECONDS", "_SILENT_SECONDS"):
        monkeypatch.setattr(listener, name, 0.05)
    losses: list[None] = []
    subscription.line.on_lost.append(lambda: losses.append(None))
    calls = {name: await subscription.expect(name) for name in "abcdef"}
    limit = "client-output-buffer-limit"
    before = str((await redis.config_get(limit))[limit])
    await redis.config_set(limit, "pubsub 300kb 300kb 1")
    try:
        for name in calls:
            await redis.set(f"{KEY}{name}", json.dumps({"status": "SUCCESS", "result": name * 2**20}), ex=60)
        for name in "abc":  # the others are found by the sweep
            await redis.publish(f"{KEY}{name}", json.dumps({"status": "STORED", "task_id": name}))
        assert [await call.result() for call in calls.values()] == [name * 2**20 for name in calls]
    finally:
        await redis.config_set(limit, before)

    assert losses == []


async def test_a_large_result_is_fetched(subscription: Ear, redis: Redis) -> None:
    """Where only its place is announced, the result itself is read."""
    call = await subscription.expect("a")
    await redis.set(f"{KEY}a", meta("SUCCESS", "x" * 300_000), ex=60)
    await redis.publish(f"{KEY}a", json.dumps({"status": "STORED", "task_id": "a"}))

    assert await call.result() == "x" * 300_000


async def test_a_large_result_that_has_gone_is_no_end(subscription: Ear, redis: Redis) -> None:
    """An announcement of nothing leaves the call waiting."""
    call = await subscription.expect("a")
    await redis.publish(f"{KEY}a", json.dumps({"status": "STORED", "task_id": "a"}))
    await redis.publish(f"{KEY}a", meta("SUCCESS", "later"))

    assert await call.result() == "later"


async def test_an_end_is_taken_once(subscription: Ear, redis: Redis) -> None:
    """A result that comes again, or for nobody, or after its call was forgotten, changes nothing."""
    call, given_up, other = (
        await subscription.expect("a"),
        await subscription.expect("b"),
        await subscription.expect("c"),
    )
    subscription.forget(given_up)
    for name in ("a", "a", "b", "stranger", "c"):
        await redis.publish(f"{KEY}{name}", meta("SUCCESS", name))

    assert [await call.result(), await other.result()] == ["a", "c"]
    assert not given_up.end.done()
    assert not subscription.listener._expected


async def test_several_may_wait_for_one_call(subscription: Ear, redis: Redis) -> None:
    """Each of them hears of its end; one that waits no longer takes nothing from the others."""
    calls = [await subscription.expect("a") for _ in range(3)]
    subscription.forget(calls[0])
    subscription.forget(calls[0])
    await redis.publish(f"{KEY}a", meta("SUCCESS", "x"))

    assert [await call.result() for call in calls[1:]] == ["x", "x"]
    assert not calls[0].end.done()
    assert not subscription.listener._expected


async def test_who_gives_up_listening_leaves_the_others_at_it(redis: Redis, redis_url: str) -> None:
    """Two wait until a call's end can be heard, and one of them is cancelled."""
    subscription = Ear(redis_url)
    subscription.listener.expect("a", Call())
    both = [asyncio.create_task(subscription.listener.listening("a")) for _ in range(2)]
    await asyncio.sleep(0)
    both[0].cancel()
    subscription.start()
    await asyncio.wait(both, timeout=PATIENCE_SECONDS)
    await subscription.aclose()

    assert (both[0].cancelled(), both[1].done(), both[1].cancelled()) == (True, True, False)


async def test_a_waiter_that_fails_spoils_nothing(subscription: Ear, redis: Redis) -> None:
    """A defect in one call's end keeps no other call from its own."""
    broken, call = await subscription.expect("a"), await subscription.expect("b")
    broken.end.cancel()
    for name in ("a", "b"):
        await redis.publish(f"{KEY}{name}", meta("SUCCESS", name))

    assert await call.result() == "b"


async def test_nothing_stays_subscribed(subscription: Ear, redis: Redis) -> None:
    """After the ends, and after `forget`, Redis holds no subscription of ours, and nobody waits."""
    calls = [await subscription.expect(f"call-{number}") for number in range(300)]
    assert await subscriptions(redis) == 300
    for number in range(150):
        await redis.publish(f"{KEY}call-{number}", meta("SUCCESS"))
        subscription.forget(calls[number + 150])
    await wait_until_subscribed(redis, 0)

    assert not subscription.listener._expected
    assert sum(call.end.done() for call in calls) == 150


async def test_a_call_may_be_expected_again_at_once(subscription: Ear, redis: Redis) -> None:
    """Forgetting leaves with the next write, and not what was ordered since."""
    subscription.forget(await subscription.expect("a"))
    call = await subscription.expect("a")
    await redis.publish(f"{KEY}a", meta("SUCCESS", "x"))

    assert await call.result() == "x"


async def test_a_lost_connection_loses_no_result(subscription: Ear, redis: Redis) -> None:
    """A result that was announced while the connection was down is read after the reconnect."""
    call = await subscription.expect("a")
    await redis.set(f"{KEY}a", meta("SUCCESS", "meanwhile"), ex=60)
    await cut(redis)

    assert await call.result() == "meanwhile"


async def test_calls_after_a_lost_connection_are_heard(subscription: Ear, redis: Redis) -> None:
    """The inbox listens again, for those it knew and for new ones."""
    old = await subscription.expect("old")
    await cut(redis)
    new = await subscription.expect("new")
    await wait_until_subscribed(redis, 2)
    for name in ("old", "new"):
        await redis.publish(f"{KEY}{name}", meta("SUCCESS", name))

    assert [await old.result(), await new.result()] == ["old", "new"]


async def test_a_lost_announcement_is_swept_up(redis: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pub/sub delivers at most once; the stored result is found all the same."""
    for name in ("_SWEEP_SECONDS", "_ASK_SECONDS", "_SILENT_SECONDS"):
        monkeypatch.setattr(listener, name, 0.05)
    subscription = Ear(redis_url)
    subscription.start()
    calls = [await subscription.expect(f"call-{number}") for number in range(250)]  # more than one read brings
    for number in range(250):
        await redis.set(f"{KEY}call-{number}", meta("SUCCESS", number), ex=60)  # stored, never announced

    assert [await call.result() for call in calls] == list(range(250))
    await subscription.aclose()


async def test_only_the_server_that_a_call_was_published_to_is_trusted(subscription: Ear, redis: Redis) -> None:
    """Another connection is none the worse; another server may know less of the calls from before, and of no later ones."""
    old = await subscription.expect("a")
    await wait_until(lambda: subscription.trusts(old), "the server is known")

    await cut(redis)  # the same server
    await wait_until_subscribed(redis, 0)
    await wait_until_subscribed(redis, 1)
    await wait_until(lambda: not subscription.listener._is_new, "the new connection was looked at")
    await subscription.listener.identity.recognise()
    assert subscription.trusts(old)

    subscription.listener.identity._run_id = b"that of another one"
    await subscription.listener.identity.recognise()
    new, later = await subscription.expect("b"), await subscription.expect("a")
    assert not subscription.trusts(old)
    assert subscription.trusts(new)
    assert subscription.trusts(later)


async def test_deleted_data_are_noticed(redis: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a connection that goes on: calls from before are not trusted any more, later ones are."""
    for name in ("_SWEEP_SECONDS", "_ASK_SECONDS", "_SILENT_SECONDS"):
        monkeypatch.setattr(listener, name, 0.05)
    subscription = Ear(redis_url)
    subscription.start()
    old = await subscription.expect("a")
    await wait_until(lambda: subscription.trusts(old), "the data have a name")
    await redis.flushall()
    await wait_until(lambda: not subscription.trusts(old), "it has another name")

    assert subscription.trusts(await subscription.expect("b"))
    await subscription.aclose()


async def test_news_is_passed_on(redis: Redis, redis_url: str) -> None:
    """A channel's listener is called once when the connection stands, and for each message."""
    calls: list[int] = []
    subscription = Ear(redis_url, {"news": lambda: calls.append(1)})
    subscription.start()
    await wait_until(lambda: len(calls) == 1, "the inbox listens")
    await redis.publish("news", "x")
    await wait_until(lambda: len(calls) == 2, "the news has come")
    await subscription.aclose()


@pytest.mark.parametrize("key_prefix", ["p"])
async def test_a_prefix_stands_before_results(redis: Redis, redis_url: str, key_prefix: str) -> None:
    """Results of a fleet with a prefix are announced and stored under it."""
    subscription = Ear(redis_url, prefix=key_prefix)
    subscription.start()
    call = await subscription.expect("a")
    await redis.publish(f"p_{KEY}a", meta("SUCCESS", "x"))

    assert await call.result() == "x"
    await subscription.aclose()


async def test_closing_leaves_nobody_waiting(redis_url: str) -> None:
    """Who waits when the inbox closes hears of it: for a result, or for being heard on a line that never stood."""
    subscription, call = Ear(redis_url), Call()
    subscription.listener.start()
    subscription.listener.expect("a", call)
    listening = asyncio.create_task(subscription.listener.listening("a"))
    await asyncio.sleep(0)
    await subscription.aclose()

    assert call.was_left
    with pytest.raises(NotPublished):
        await listening


async def test_closing_ends_it_while_its_connection_breaks(redis: Redis, redis_url: str) -> None:
    """A connection that is lost at the very moment of closing does not keep the inbox going."""
    for _ in range(20):
        subscription = Ear(redis_url)
        subscription.start()
        await subscription.expect("a")
        await asyncio.gather(cut(redis), asyncio.wait_for(subscription.aclose(), PATIENCE_SECONDS))


async def test_the_reply_channel_brings_ends_and_questions(subscription: Ear, redis: Redis) -> None:
    """Of the calls whose ids were made here, each with its id; what nobody waits for is nothing."""
    heard, call_id = list[bytes](), subscription.listener.new_call_id()
    call = await subscription.expect(call_id)
    reply, progress = Keys().reply(call_id[-REPLY_DIGITS:]), Keys().progress(call_id).encode()
    with subscription.listener.watches.watching(progress, heard.append):
        for told in (
            "",
            "input_required",
            f"input_required{call_id}",
            meta("SUCCESS", "no id"),
            '{"status": "SUCCESS", "task_id": "\\ud800"}',
        ):
            await redis.publish(reply, told)
        await redis.publish(reply, json.dumps({"status": "SUCCESS", "result": "owls", "task_id": call_id}))
        assert await call.result() == "owls"
    assert heard == [b"input_required"]
