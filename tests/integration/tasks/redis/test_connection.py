"""One connection for everything: what it promises while Redis answers, and while it does not."""

import asyncio
import gc
import os
import signal
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError
from structlog.testing import capture_logs

from support.clocks import Later
from support.servers.raw_redis import obliging, raw_redis
from support.waiting import PATIENCE_SECONDS, wait_until
from toolfleet_cli.local.redis_server import held_port, redis_server
from toolfleet_registry.redis.servers import connection_factory
from toolfleet_tasks import redis_connection
from toolfleet_tasks.redis_connection import PipelinedConnection, Push, RedisConnectionClosed, RedisConnectionLost

KEY = "tools.line"  # a name that may stay behind in the tests' Redis


@asynccontextmanager
async def open_connection(url: str) -> AsyncGenerator[PipelinedConnection]:
    line = PipelinedConnection(connection_factory(url), name="test")
    line.start()
    try:
        yield line
    finally:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await line.aclose()


@asynccontextmanager
async def standing_line(url: str) -> AsyncGenerator[PipelinedConnection]:
    async with open_connection(url) as line, asyncio.timeout(3 * PATIENCE_SECONDS):
        await line.connected()
        yield line


@pytest.fixture
async def line(redis_url: str) -> AsyncIterator[PipelinedConnection]:
    async with standing_line(redis_url) as line:
        yield line


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two times of a silent connection, shortened."""
    monkeypatch.setattr(redis_connection, "_BEAT_SECONDS", 0.1)
    monkeypatch.setattr(redis_connection, "_HALF_OPEN_SECONDS", 0.3)


async def kill_connections(redis: Redis) -> None:
    await redis.client_kill_filter(_type="normal", skipme=True)


async def answer_of(reply: "asyncio.Future[Any]") -> object:
    return (await asyncio.gather(reply, return_exceptions=True))[0]


async def test_what_is_sent_in_one_tick_leaves_in_one_write() -> None:
    """A hundred commands of one tick are one piece on the wire."""
    async with raw_redis() as raw, standing_line(raw.url) as line:
        raw.chunks.clear()
        replies = [line.send("SET", KEY, number) for number in range(100)]
        await asyncio.gather(*replies)

        assert len(raw.chunks) == 1


@pytest.mark.parametrize("other", ["nothing", "a callback", "an answer", "a command"])
async def test_what_nothing_can_join_leaves_at_once(line: PipelinedConnection, other: str) -> None:
    """A command that is built as it leaves waits for the end of the tick only where another could come with it."""
    built, reply = list[str](), asyncio.get_running_loop().create_future()

    def build() -> tuple[str, ...]:
        built.append("ECHO")
        return "ECHO", "owl"

    early = line.send("ECHO", "early") if other in {"an answer", "a command"} else None
    if other == "an answer":
        await asyncio.sleep(0)
    if other == "a callback":
        asyncio.get_running_loop().call_soon(str)
    line.send_for(reply, build)

    assert built == ([] if early or other != "nothing" else ["ECHO"])
    assert await reply == b"owl"
    assert early is None or await early == b"early"


@pytest.mark.parametrize("is_alone", [True, False])
async def test_what_cannot_be_written_shifts_no_reply(line: PipelinedConnection, *, is_alone: bool) -> None:
    """Alone it fails at once; with others the connection ends, and they were not sent."""
    waiter: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    with capture_logs():
        if is_alone:
            with pytest.raises(TypeError):
                line.send_for(waiter, lambda: (None,))  # type: ignore[arg-type, return-value] # it is the fault
        else:
            other = line.send("ECHO", "other")
            line.send_for(waiter, lambda: (None,))  # type: ignore[arg-type, return-value] # as above
            lost = await answer_of(other)
            assert isinstance(lost, RedisConnectionLost)
            assert not lost.sent
            await line.connected()

    assert await line.send("ECHO", "owl") == b"owl"


async def test_each_sender_gets_its_own_reply(line: PipelinedConnection) -> None:
    """A thousand commands in flight, of different kinds, are answered in the order in which they were sent."""
    replies = [line.send("INCR", KEY) if number % 2 else line.send("ECHO", f"{number}") for number in range(1000)]
    answers = await asyncio.gather(*replies)

    assert answers[1::2] == list(range(1, 501))
    assert answers[0::2] == [f"{number}".encode() for number in range(0, 1000, 2)]


async def test_a_sender_that_has_gone_shifts_no_reply(line: PipelinedConnection) -> None:
    """Cancelled waiters leave their place in the order."""
    replies = [line.send("ECHO", f"{number}") for number in range(100)]
    for reply in replies[::3]:
        reply.cancel()
    left = [number for number in range(100) if number % 3]

    assert await asyncio.gather(*(replies[number] for number in left)) == [f"{number}".encode() for number in left]


async def test_an_error_is_its_senders_alone(line: PipelinedConnection) -> None:
    """A refused command raises `ResponseError` where it was sent, and the ones around it are answered."""
    before, wrong, after = line.send("LPUSH", KEY, "x"), line.send("INCR", KEY), line.send("LLEN", KEY)

    assert (await before, await after) == (1, 1)
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await wrong


async def test_announcements_come_between_the_replies(line: PipelinedConnection, redis: Redis) -> None:
    """Push frames of subscriptions reach the listener and disturb no reply; binary content passes unchanged."""
    frames: list[Push] = []
    line.on_push = frames.append
    line.tell("SUBSCRIBE", "one", "two")
    line.tell("PSUBSCRIBE", "pattern.*")
    await line.send("PING")
    echoes = [line.send("ECHO", f"{number}") for number in range(50)]
    for _ in range(50):
        await redis.publish("two", b"\x00\xff")
    await redis.publish("pattern.x", "hello")
    line.tell("UNSUBSCRIBE", "one", "two")
    assert await asyncio.gather(*echoes) == [f"{number}".encode() for number in range(50)]
    await line.send("PING")

    messages = [list(frame) for frame in frames if frame[0] in {b"message", b"pmessage"}]
    assert messages == [[b"message", b"two", b"\x00\xff"]] * 50 + [[b"pmessage", b"pattern.*", b"pattern.x", b"hello"]]


async def test_a_refused_subscription_shifts_no_reply() -> None:
    """SUBSCRIBE has push frames for replies, but its refusal is an ordinary one: it is logged, and is nobody's."""

    def answer(command: list[bytes]) -> bytes:
        if command[0] == b"SUBSCRIBE":
            return b"-NOPERM no such channel for you\r\n"
        return b"+" + command[-1] + b"\r\n"

    async with raw_redis(answer) as raw, standing_line(raw.url) as line:
        with capture_logs() as logs:
            before = line.send("ECHO", "before")
            line.tell("SUBSCRIBE", "secret")
            after = line.send("ECHO", "after")

            assert (await before, await after) == (b"before", b"after")
    assert [entry["error"] for entry in logs if entry["event"] == "subscription_refused"] == [
        "NOPERM no such channel for you"
    ]


async def test_a_listener_that_fails_costs_no_reply(line: PipelinedConnection) -> None:
    """What the listener raises is logged."""

    def fail(_: Push) -> None:
        raise RuntimeError("listener")

    line.on_push = fail
    line.tell("SUBSCRIBE", "one")

    assert await line.send("ECHO", "x") == b"x"
    assert line.is_connected


async def test_large_messages_pass(line: PipelinedConnection) -> None:
    """20 MB there and back, while small replies wait behind them."""
    large = os.urandom(20_000_000)
    echo, small = line.send("ECHO", large), line.send("ECHO", "small")

    assert await echo == large
    assert await small == b"small"


async def test_a_cut_connection_is_made_anew(line: PipelinedConnection, redis: Redis) -> None:
    """After CLIENT KILL: the hooks are told, what they send goes first, and the line works as before."""
    lost: list[bool] = []
    first: list[asyncio.Future[Any]] = []
    line.on_lost.append(lambda: lost.append(line.is_connected))
    line.on_connect.append(lambda: first.append(line.send("INCR", KEY)))
    await kill_connections(redis)
    await wait_until(lambda: first, "the line is back")

    assert await line.execute("INCR", KEY) == 2
    assert await first[0] == 1
    assert lost == [False]


async def test_a_loss_says_what_may_have_happened() -> None:
    """`sent` is false for what surely never left, and true for what may have been executed."""

    def silent(command: list[bytes]) -> bytes:
        return obliging(command) if command[0] == b"PING" else b""

    async with raw_redis(silent) as raw, open_connection(raw.url) as line:
        early = await answer_of(line.send("INCR", KEY))
        await line.connected()
        written = line.send("INCR", KEY)
        await wait_until(lambda: raw.seen[b"INCR"], "the command has arrived")
        queued: list[asyncio.Future[Any]] = []
        written.add_done_callback(lambda _: queued.append(line.send("INCR", KEY)))
        assert line._protocol is not None
        unwritten = line.send("INCR", KEY)
        line._protocol.close("cut")
        losses = [early, *[await answer_of(reply) for reply in (written, unwritten)]]
        losses.append(await answer_of(queued[0]))

        assert [type(loss) for loss in losses] == [RedisConnectionLost] * 4
        assert [loss.sent for loss in losses if isinstance(loss, RedisConnectionLost)] == [False, True, False, False]
        assert raw.seen[b"INCR"] == 1


async def test_execute_outlasts_an_outage(tmp_path: Path) -> None:
    """Commands that may run twice are repeated until a restarted server has answered; the loop ticks on meanwhile."""
    with held_port() as port:
        with redis_server(tmp_path, port=port) as url:
            line = PipelinedConnection(connection_factory(url), name="test")
            line.start()
            await line.execute("SADD", KEY, "before")
        with capture_logs() as logs:
            commands = [asyncio.create_task(line.execute("SADD", KEY, number)) for number in range(200)]
            await wait_until(
                lambda: [entry["event"] for entry in logs].count("redis_line_away") > 2,
                "it has tried to connect, and the loop goes on",
            )
        assert not line.is_connected
        assert not any(command.done() for command in commands)
        with redis_server(tmp_path, port=port):
            async with asyncio.timeout(PATIENCE_SECONDS):
                await asyncio.gather(*commands)
                assert await line.send("SCARD", KEY) == 201
                await line.aclose()


@pytest.mark.parametrize("is_away", [False, True], ids=["cut", "away"])
async def test_a_read_whose_answer_cuts_the_connection_is_not_sent_again(
    line: PipelinedConnection, redis: Redis, *, is_away: bool
) -> None:
    """A subscriber may not have so much to read. One that was not sent, as the connection was away, is sent once."""
    limit = "client-output-buffer-limit"
    before = str((await redis.config_get(limit))[limit])
    await redis.set(KEY, "x" * 2_000_000, ex=60)
    await redis.config_set(limit, "pubsub 1mb 1mb 1")
    line.on_connect.append(lambda: line.tell("SUBSCRIBE", "one"))
    try:
        await kill_connections(redis)
        await wait_until(lambda: not line.is_connected, "the loss was noticed")
        if not is_away:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await line.execute("PING")
        await redis.config_resetstat()
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(RedisConnectionLost):
                await line.read("GET", KEY)
            assert await line.execute("STRLEN", KEY) == 2_000_000
        assert (await redis.info("commandstats"))["cmdstat_get"]["calls"] == 1
    finally:
        await redis.config_set(limit, before)


async def test_who_comes_when_the_server_is_back_waits_for_no_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it was away, and the pauses between attempts are by then: a request has about a second."""
    monkeypatch.setattr(redis_connection, "_FIRST_BACKOFF", 3600.0)
    monkeypatch.setattr(redis_connection, "_LONGEST_BACKOFF", 3600.0)
    with held_port() as port:
        with redis_server(tmp_path, port=port) as url:
            line = PipelinedConnection(connection_factory(url), name="test")
            line.start()
            await line.connected()
        await wait_until(lambda: not line.is_connected, "the loss was noticed")
        with redis_server(tmp_path, port=port):
            async with asyncio.timeout(PATIENCE_SECONDS):
                assert await line.execute("PING") == b"PONG"
                await line.aclose()


async def test_a_loss_is_no_busy_loop(line: PipelinedConnection, redis: Redis) -> None:
    """Commands that are repeated wait for the new connection, from the very tick of the loss on."""
    for _ in range(3):
        blocked = [asyncio.create_task(line.execute("BLPOP", "tools.nothing", 0.1)) for _ in range(2)]
        others = [asyncio.create_task(line.execute("ECHO", number)) for number in range(100)]
        await asyncio.sleep(0)
        await kill_connections(redis)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.gather(*blocked, *others)


@pytest.mark.usefixtures("impatient")
async def test_a_half_open_connection_is_dropped(tmp_path: Path) -> None:
    """A Redis that is frozen, but whose connection stands: waiters hear of it, and the line works when it is back."""
    with redis_server(tmp_path) as url:
        async with Redis.from_url(url) as redis:
            pid = int((await redis.info("server"))["process_id"])
        async with standing_line(url) as line:
            os.kill(pid, signal.SIGSTOP)
            try:
                loss = await answer_of(line.send("PING"))
                executing = asyncio.create_task(line.execute("ECHO", "back"))
                assert not line.is_connected
            finally:
                os.kill(pid, signal.SIGCONT)

            assert isinstance(loss, RedisConnectionLost)
            assert loss.sent
            assert await executing == b"back"


@pytest.mark.usefixtures("impatient")
async def test_a_quiet_connection_is_asked_and_kept() -> None:
    """An idle line says PING now and then, and as long as it is answered nothing else happens."""
    async with raw_redis() as raw, standing_line(raw.url) as line:
        await wait_until(lambda: raw.seen[b"PING"] > 5, "it was asked for signs of life")

        assert raw.connections == 1
        assert line.is_connected


@pytest.mark.usefixtures("impatient")
async def test_a_loop_that_was_blocked_does_not_blame_the_server(
    line: PipelinedConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silence counts only after an unanswered question: a process that was stopped keeps its connection."""
    lost: list[None] = []
    line.on_lost.append(lambda: lost.append(None))
    later = Later.here(monkeypatch)
    for _ in range(3):
        later.seconds += 0.5  # all timers are overdue, and nothing was read meanwhile
        await line.send("PING")

    assert not lost


async def test_a_closed_line_leaves_nobody_waiting() -> None:
    """Who waits for a reply, for the connection or for an execution gets an error at once, and so does who comes later."""

    def silent(command: list[bytes]) -> bytes:
        return obliging(command) if command[0] == b"PING" else b""

    async with raw_redis(silent) as raw:
        line = PipelinedConnection(connection_factory(raw.url), name="test")
        waiting = asyncio.create_task(line.connected())
        line.start()
        await line.connected()
        await waiting
        reply, executing = line.send("GET", KEY), asyncio.create_task(line.execute("GET", KEY))
        await wait_until(lambda: raw.seen[b"GET"] == 2, "both have been sent")
        raw.hang_up()
        late = asyncio.create_task(line.execute("GET", KEY))
        await asyncio.sleep(0)
        await line.aclose()

        async with asyncio.timeout(PATIENCE_SECONDS):
            ends = await asyncio.gather(reply, executing, late, line.send("GET", KEY), return_exceptions=True)
            with pytest.raises(RedisConnectionClosed):
                await line.connected()
        assert all(isinstance(end, RedisConnectionLost) for end in ends)
        assert isinstance(ends[-1], RedisConnectionClosed)
        assert not ends[-1].sent


@pytest.mark.parametrize("greeted", [True, False])
async def test_a_line_can_be_closed_while_it_connects(*, greeted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that accepts and then says nothing, at once or after the greeting, holds nobody up and leaks nothing."""
    monkeypatch.setattr(redis_connection, "_CONNECT_SECONDS", 3600.0)
    async with raw_redis(lambda _: b"") as raw:
        if not greeted:
            raw._reply = lambda command: b""  # type: ignore[method-assign] # that is the point
        line = PipelinedConnection(connection_factory(raw.url), name="test")
        line.start()
        await wait_until(lambda: raw.seen[b"PING" if greeted else b"HELLO"], "it has been greeted")
        async with asyncio.timeout(PATIENCE_SECONDS):
            await line.aclose()
    del line
    gc.collect()  # an open connection would warn


async def test_a_server_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connect has a deadline, and then the next attempt follows."""
    monkeypatch.setattr(redis_connection, "_CONNECT_SECONDS", 0.1)
    async with raw_redis(lambda _: b"") as raw, open_connection(raw.url) as line:
        await wait_until(lambda: raw.connections > 2, "it has tried again")
        raw.answer = obliging
        async with asyncio.timeout(PATIENCE_SECONDS):
            await line.connected()
    gc.collect()


async def test_a_server_that_loads_its_data_is_not_ready() -> None:
    """Redis takes connections while it still loads: the line waits until it answers."""
    refusals = 3

    def loading(command: list[bytes]) -> bytes:
        nonlocal refusals
        refusals -= 1
        return b"-LOADING Redis is loading the dataset in memory\r\n" if refusals >= 0 else obliging(command)

    async with raw_redis(loading) as raw, standing_line(raw.url) as line:
        assert raw.connections == 4
        assert await line.send("SET", KEY, "x") == b"OK"


@pytest.mark.parametrize("error", ["LOADING", "OOM", "MISCONF", "BUSY", "TRYAGAIN"])
async def test_execute_outlasts_what_passes(error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis may be unable to do something just now: `execute` asks again, `send` tells its sender."""
    monkeypatch.setattr(redis_connection, "_PATIENCE_SECONDS", 0.01)
    refusals = 4

    def answer(command: list[bytes]) -> bytes:
        nonlocal refusals
        if command[0] == b"SET":
            refusals -= 1
        return f"-{error} not now\r\n".encode() if command[0] == b"SET" and refusals >= 0 else obliging(command)

    async with raw_redis(answer) as raw, standing_line(raw.url) as line:
        with pytest.raises(ResponseError, match=error):
            await line.send("SET", KEY, "x")

        assert await line.execute("SET", KEY, "x") == b"OK"
        assert raw.seen[b"SET"] == 5
        assert raw.connections == 1


async def test_a_replica_is_left_for_the_master(monkeypatch: pytest.MonkeyPatch) -> None:
    """READONLY means that another server is the master by now: the connection is made anew, to wherever it is."""
    monkeypatch.setattr(redis_connection, "_PATIENCE_SECONDS", 0.01)
    async with raw_redis() as raw, standing_line(raw.url) as line:

        def answer(command: list[bytes]) -> bytes:
            if command[0] == b"SET" and raw.connections == 1:
                return b"-READONLY You can't write against a read only replica.\r\n"
            return obliging(command)

        raw.answer = answer
        assert await line.execute("SET", KEY, "x") == b"OK"
        assert raw.connections == 2


async def test_a_hook_that_fails_does_not_end_the_line() -> None:
    """Without its line a worker would wait for ever: the connection is made anew, and the hooks run again."""
    calls = 0

    def hook() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RuntimeError("hook")

    async with raw_redis() as raw:
        line = PipelinedConnection(connection_factory(raw.url), name="test")
        line.on_connect.append(hook)
        line.start()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await line.connected()
            await line.aclose()
    assert calls == 2


@pytest.mark.parametrize("noise", [b"HTTP/1.1 200 OK\r\n", b"+unasked\r\n", b":1\r\n:2\r\n"])
async def test_what_redis_would_never_say_ends_the_connection(noise: bytes) -> None:
    """A server that is no Redis, or out of step: nobody gets a reply that was not meant for him."""
    async with raw_redis() as raw, standing_line(raw.url) as line:
        raw.say(noise)
        await wait_until(lambda: raw.connections == 2, "the line was made anew")

        assert await line.execute("SET", KEY, "x") == b"OK"


async def test_a_server_that_hangs_up_at_once_is_not_pestered() -> None:
    """Attempts come at longer and longer intervals, also when each of them seems to succeed at first."""
    tried_at = list[float]()
    async with raw_redis() as raw, open_connection(raw.url) as line:
        line.on_connect += [lambda: tried_at.append(time.monotonic()), raw.hang_up]
        await wait_until(
            lambda: len(tried_at) > 5 and any(later - one > 0.5 for one, later in pairwise(tried_at)), "it is patient"
        )
