"""Task events from a worker with lines: what listeners of Celery's get, and what becomes of it while Redis is away."""

import asyncio
import base64
import json
import signal
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from kombu.connection import Connection
from redis import Redis
from structlog.testing import capture_logs

from support.servers.redis_faults import faulty_redis
from support.waiting import PATIENCE_SECONDS, wait_until
from support.workers.fast_worker import fast_fleet
from toolfleet_registry.settings import Settings
from toolfleet_tasks import worker_runtime
from toolfleet_tasks.app import make_app
from toolfleet_tasks.transport import events as events_module

HOST = "owl@tree"


class Ear:
    """Hears everything that is published under `pattern`."""

    def __init__(self, redis: Redis, pattern: str = "/0.celeryev/*") -> None:
        self._heard = redis.pubsub(ignore_subscribe_messages=True)
        self._heard.psubscribe(pattern)
        self._heard.get_message(timeout=PATIENCE_SECONDS)  # Redis's word that it listens
        self.messages: list[dict[str, Any]] = []

    def listen(self) -> None:
        while message := self._heard.get_message():
            self.messages.append(message)

    async def hear(self, messages: int) -> None:
        """Until so many have come."""

        def have_come() -> bool:
            self.listen()
            return len(self.messages) >= messages

        await wait_until(have_come, f"{messages} messages have come")

    async def wait_for(self, uuid: str) -> None:
        """Until the event of this call has come."""

        def has_come() -> bool:
            self.listen()
            return any(event["uuid"] == uuid for event in self.events())

        await wait_until(has_come, f"the event of {uuid} has come")

    def events(self) -> list[dict[str, Any]]:
        contents = [content_of(message) for message in self.messages]
        return [event for content in contents for event in (content if isinstance(content, list) else [content])]

    def close(self) -> None:
        self._heard.close()


def content_of(message: dict[str, Any]) -> Any:
    return json.loads(base64.b64decode(json.loads(message["data"])["body"]))


@pytest.fixture
def ear(redis: Redis) -> Generator[Ear]:
    ear = Ear(redis)
    yield ear
    ear.close()


@asynccontextmanager
async def dispatching(**settings: Any) -> AsyncGenerator[Any]:
    """The dispatcher of a worker with lines on this loop."""
    worker_runtime.start(asyncio.get_running_loop())
    try:
        app = make_app(Settings(**settings))
        yield dispatcher_of(app)
    finally:
        await worker_runtime.stop()


def dispatcher_of(app: Celery) -> Any:
    """As Celery makes it in its consumer."""
    connection: Connection = app.connection_for_write()
    dispatcher: Any = app.events.Dispatcher(connection, hostname=HOST, buffer_group=["task"], on_send_buffered=_nothing)
    return dispatcher


@pytest.fixture
async def dispatcher(redis_url: str) -> AsyncIterator[Any]:
    async with dispatching(redis_url=redis_url) as dispatcher:
        yield dispatcher


async def test_task_events_come_in_one_message(dispatcher: Any, ear: Ear) -> None:
    """Whatever many calls had to say within a tenth of a second."""
    for number in range(200):
        dispatcher.send("task-started", uuid=f"call-{number}")
    await ear.hear(1)

    assert ear.messages[0]["channel"] == "/0.celeryev/task.multi"
    assert [event["uuid"] for event in ear.events()] == [f"call-{number}" for number in range(200)]
    assert len(ear.messages) == 1


async def test_where_nobody_listens_next_to_nothing_is_sent(dispatcher: Any, redis: Redis) -> None:
    """One event a message, which tells of a listener: from the first on it gets all that is noted."""

    def octets() -> int:
        return int(redis.info("stats")["total_net_input_bytes"])

    def published() -> int:
        return int(redis.info("commandstats").get("cmdstat_publish", {"calls": 0})["calls"])

    async def send(first: int, many: int) -> None:
        before = published()
        for number in range(first, first + many):
            dispatcher.send("task-started", uuid=f"call-{number}", note="x" * 100)
        await wait_until(lambda: published() > before, "something is published")

    await send(0, 1)
    before = octets()
    await send(1, 400)
    assert octets() - before < 4_000

    ear = Ear(redis)
    await send(401, 100)
    await ear.wait_for("call-500")
    ear.close()
    assert [event["uuid"] for event in ear.events()] == [f"call-{number}" for number in range(401, 501)]


async def test_an_event_is_described_only_where_somebody_listens(dispatcher: Any, redis: Redis) -> None:
    """One of them, which tells of a listener; with one, each."""
    described: list[str] = []

    def tell(uuid: str) -> None:
        def describe() -> dict[str, Any]:
            described.append(uuid)
            return {"type": "task-received", "uuid": uuid}

        dispatcher.tell(describe)

    def published() -> int:
        return int(redis.info("commandstats").get("cmdstat_publish", {"calls": 0})["calls"])

    before = published()
    tell("first")
    await wait_until(lambda: published() == before + 1, "it is published")
    for number in range(100):
        tell(f"unheard-{number}")
    dispatcher.send("worker-heartbeat", freq=1)  # comes after them
    await wait_until(lambda: published() == before + 3, "it and one of them are published")
    assert described == ["first", "unheard-0"]

    ear = Ear(redis)
    tell("heard-0")
    tell("heard-1")
    await ear.wait_for("heard-1")
    ear.close()
    assert [(event["type"], event["uuid"]) for event in ear.events()] == [
        ("task-received", "heard-0"),
        ("task-received", "heard-1"),
    ]


async def test_events_are_those_of_stock_celery(dispatcher: Any, ear: Ear, redis_url: str) -> None:
    """Channel, envelope and fields, of a worker's event and of a task's, but for time, clock and tag."""
    stock_app = Celery(broker=redis_url, set_as_current=False)
    fields = {"uuid": "call", "name": "toolfleet.execute", "eta": None}
    for number, sender in enumerate((dispatcher, dispatcher_of(stock_app)), start=1):
        sender.send("worker-heartbeat", freq=2, retry=True)
        await ear.hear(2 * number - 1)
        sender.send("task-received", **fields)
        sender.flush()
        await ear.hear(2 * number)
    stock_app.close()

    assert [comparable(message) for message in ear.messages[:2]] == [
        comparable(message) for message in ear.messages[2:]
    ]


def comparable(message: dict[str, Any]) -> Any:
    envelope, content = json.loads(message["data"]), content_of(message)
    for event in content if isinstance(content, list) else [content]:
        assert isinstance(event.pop("timestamp"), float)
        assert isinstance(event.pop("clock"), int)
    assert len(envelope["properties"].pop("delivery_tag")) == 36
    return message["channel"], {**envelope, "body": content}


async def test_stock_receivers_take_them(dispatcher: Any, redis_url: str) -> None:
    """Celery's own, which Flower is made of: it reconstructs what became of a task."""
    app = make_app(Settings(redis_url=redis_url))
    state = app.events.State()
    is_listening = asyncio.Event()
    loop = asyncio.get_running_loop()

    def listen() -> None:
        with app.connection_for_read() as connection:
            receiver = app.events.Receiver(connection, handlers={"*": state.event})
            # It calls back when it consumes, and by Celery's custom asks all workers for a heartbeat.
            receiver.on_consume_ready = lambda *_, **__: loop.call_soon_threadsafe(is_listening.set)
            receiver.capture(limit=3, timeout=PATIENCE_SECONDS, wakeup=False)

    listening = asyncio.create_task(asyncio.to_thread(listen))
    await asyncio.wait_for(is_listening.wait(), PATIENCE_SECONDS)
    dispatcher.send("task-received", uuid="call", name="toolfleet.execute")
    dispatcher.send("task-started", uuid="call")
    dispatcher.send("task-succeeded", uuid="call", result="'hoot'", runtime=0.1)
    await wait_until(lambda: "call" in state.tasks and state.tasks["call"].ready, "the receiver knows of the end")
    dispatcher.send("worker-heartbeat", freq=2)
    await listening
    app.close()

    task = state.tasks["call"]
    assert (task.state, task.result, task.worker.hostname) == ("SUCCESS", "'hoot'", HOST)


async def test_an_event_has_the_time_at_which_it_happened(dispatcher: Any, ear: Ear) -> None:
    """Not that of its message, and a clock that goes on with each."""
    before = time.time()
    dispatcher.tell(lambda: {"type": "task-started", "uuid": "a"})
    between = time.time()
    dispatcher.send("task-started", uuid="b", timestamp=17.5)
    dispatcher.send("task-sent", blind=True, uuid="c")
    await ear.hear(1)

    a, b, c = ear.events()
    assert before <= a["timestamp"] <= between <= c["timestamp"]
    assert b["timestamp"] == 17.5
    assert b["clock"] > a["clock"]
    assert c["clock"] is None


async def test_only_wanted_events_are_sent(dispatcher: Any, ear: Ear) -> None:
    """By group, as `disable_events` has it, and none from a dispatcher that is disabled."""
    dispatcher.groups = {"worker"}
    dispatcher.send("task-started", uuid="unwanted group")
    dispatcher.send("worker-heartbeat", freq=1)
    dispatcher.disable()
    dispatcher.send("worker-heartbeat", freq=2)
    dispatcher.enable()
    dispatcher.send("worker-heartbeat", freq=3)
    await ear.hear(2)

    assert [event["freq"] for event in ear.events()] == [1, 3]


async def test_what_was_noted_last_is_published_at_the_end(redis_url: str, ear: Ear) -> None:
    """A worker says that it leaves, and how its last calls ended."""
    async with dispatching(redis_url=redis_url) as dispatcher:
        dispatcher.send("worker-offline", freq=2)
        dispatcher.send("task-succeeded", uuid="last")
    await ear.hear(2)

    assert [event["type"] for event in ear.events()] == ["worker-offline", "task-succeeded"]


async def test_a_new_dispatcher_takes_over(dispatcher: Any, ear: Ear) -> None:
    """As after a lost connection of Celery's: nothing is lost or sent twice."""
    dispatcher.send("task-started", uuid="a")
    dispatcher.disable()
    other = dispatcher_of(dispatcher.app)
    other.extend_buffer(dispatcher)
    other.flush()
    other.send("task-started", uuid="b")
    await ear.hear(1)

    assert [event["uuid"] for event in ear.events()] == ["a", "b"]


async def test_prefix_and_database_are_part_of_the_channel(redis_url: str, redis: Redis) -> None:
    """As kombu has them."""
    url = redis_url.removesuffix("/0") + "/5"
    ear = Ear(redis, "*celeryev*")
    async with dispatching(redis_url=url, key_prefix="acme:") as dispatcher:
        dispatcher.send("task-started", uuid="a")
        topic = dispatcher.connection.default_channel._get_publish_topics("celeryev", "task.multi")
        await ear.hear(1)
        dispatcher.connection.release()

    assert ear.messages[0]["channel"] == f"acme:{topic[0]}" == "acme:/5.celeryev/task.multi"
    ear.close()


async def test_what_is_no_json_is_left_out(dispatcher: Any, ear: Ear) -> None:
    """The others of its message come."""
    dispatcher.send("task-custom", uuid="a")
    dispatcher.send("task-custom", uuid="b", what=object())
    dispatcher.send("task-custom", uuid="c")
    await ear.hear(2)

    assert [event["uuid"] for event in ear.events()] == ["a", "c"]


async def test_while_redis_is_away_the_latest_events_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to a bound, and nobody waits for it; how many were dropped is logged."""
    monkeypatch.setattr(events_module, "KEPT_AT_MOST", 10)
    with faulty_redis(tmp_path / "redis") as redis, capture_logs() as logs:
        async with dispatching(redis_url=redis.url) as dispatcher:
            line = worker_runtime.current().to(redis.url, master=None)  # type: ignore[union-attr] # started above
            await line.connected()
            with redis.restarted():
                await wait_until(lambda: not line.is_connected, "the line has noticed")
                dispatcher.send("task-started", uuid="first")
                await wait_until(lambda: not dispatcher._outbox._noted, "it is on its way, while Redis is away")
                for number in range(25):
                    dispatcher.send("task-started", uuid=str(number))
            ear = Ear(redis.look)
            await ear.wait_for("24")
            ear.close()

    assert [event["uuid"] for event in ear.events()][-10:] == [str(number) for number in range(15, 25)]
    assert {"event": "events_dropped", "events": 15, "log_level": "warning"} in logs


async def test_without_lines_it_is_the_stock_dispatcher(redis_url: str, ear: Ear) -> None:
    """Beat, Flower and clients publish at once."""
    app = make_app(Settings(redis_url=redis_url))
    with app.events.default_dispatcher(hostname=HOST) as dispatcher:
        dispatcher.send("worker-custom", freq=1)
    await ear.hear(1)
    app.close()

    assert [event["type"] for event in ear.events()] == ["worker-custom"]


def test_a_worker_tells_of_its_calls_to_the_end(tmp_path: Path) -> None:
    """From `worker-online` to `worker-offline`, and also how a call ended that it let finish after that."""
    with fast_fleet(tmp_path) as fleet:
        ear = Ear(fleet.redis.look)
        fleet.calls.wait(fleet.calls.send("pool.sleep", 0))
        (last,) = fleet.start(1, "pool.sleep", 2)
        fleet.worker.send_signal(signal.SIGTERM)
        assert fleet.worker.wait() == 0
        asyncio.run(ear.hear(2))
        ear.close()

    kinds = [event["type"] for event in ear.events()]
    assert kinds.count("task-received") == kinds.count("task-started") == kinds.count("task-succeeded") == 2
    assert kinds.index("worker-offline") < len(kinds) - 1
    assert (ear.events()[-1]["type"], ear.events()[-1]["uuid"]) == ("task-succeeded", last)


_nothing: Callable[[], None] = lambda: None  # noqa: E731
