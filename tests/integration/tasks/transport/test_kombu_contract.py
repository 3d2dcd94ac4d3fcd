"""What the fast transport needs of kombu, Celery and redis-py beyond their public interfaces.

Holds for the versions in `kombu_transport.KOMBU`; a test that fails with a new version says what would break.
"""

import asyncio
import inspect
import json
import re
import tomllib
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hiredis
import kombu
import pytest
from celery import Celery
from celery.worker import request as celery_request
from celery.worker import state
from celery.worker.consumer.consumer import Consumer
from kombu.connection import Connection
from kombu.entity import Exchange, Queue
from kombu.pidbox import Mailbox
from kombu.transport import redis as kombu_redis
from kombu.transport import virtual
from kombu.utils.json import dumps, loads
from packaging.specifiers import SpecifierSet
from redis import Redis

from support.waiting import PATIENCE_SECONDS
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.servers import connection_factory
from toolfleet_registry.settings import Settings
from toolfleet_tasks.app import make_app
from toolfleet_tasks.fairness import PausedQueues
from toolfleet_tasks.transport import kombu_transport
from toolfleet_tasks.transport.kombu_transport import ConsumedQueues

QUEUE = "tools.contract"
FANOUT = "reply.contract.reply.celery.pidbox"  # a name that the tests' Redis may keep
PYPROJECT = Path(__file__).parents[4] / "pyproject.toml"


def connected(url: str, **options: Any) -> Connection:
    return Connection(
        url,
        transport="toolfleet_tasks.transport.kombu_transport:FleetTransport",
        transport_options={"priority_steps": [0], **options},
    )


@pytest.fixture
def channel(redis_url: str) -> Iterator[Any]:
    """A channel as in a process that is no worker."""
    with connected(redis_url) as connection:
        yield connection.channel()


def consume(channel: Any, messages: list[Any]) -> None:
    queue = Queue(QUEUE, Exchange("toolfleet", type="direct"), routing_key=QUEUE)(channel)
    queue.declare()
    channel.basic_consume(QUEUE, no_ack=False, callback=messages.append, consumer_tag="tag")


def raw(tag: str = "tag") -> dict[str, Any]:
    info = {"exchange": "toolfleet", "routing_key": QUEUE}
    properties = {"delivery_info": info, "delivery_tag": tag, "body_encoding": "base64"}
    return {"body": "W10=", "headers": {"id": "1", "task": "t"}, "properties": properties}


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def test_the_versions_are_the_tested_ones() -> None:
    """Pyproject's pin, `KOMBU` and the installed kombu agree: else an installation could end at its first start."""
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    (pin,) = [line.removeprefix("kombu") for line in project["dependencies"] if re.match(r"kombu\b", line)]
    candidates = [f"5.{minor}.{patch}" for minor in range(5, 10) for patch in range(12)] + ["6.0.0"]

    assert kombu.__version__.startswith(kombu_transport.KOMBU)
    tested = [version for version in candidates if version.startswith(kombu_transport.KOMBU)]
    assert [version for version in candidates if version in SpecifierSet(pin)] == tested


@pytest.mark.parametrize("version", ["5.6.9", "5.8.0", "6.0.0", "4.6.11"])
def test_another_kombu_is_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that these tests have not seen ends a worker with the command that installs one; nothing falls back silently."""
    monkeypatch.setattr(kombu, "__version__", version)

    with pytest.raises(SettingsError, match=rf"{re.escape(version)}: pip install 'kombu==5\.7\.\*'"):
        kombu_transport.require_kombu()


@pytest.mark.parametrize("version", ["5.7.0", "5.7.3", "5.7.1rc1"])
def test_the_tested_kombus_are_not_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Patch releases and their candidates are taken."""
    monkeypatch.setattr(kombu, "__version__", version)
    kombu_transport.require_kombu()


def test_the_app_uses_the_transport(redis_url: str) -> None:
    """`broker_transport` takes a class by name; otherwise the setting would be without effect."""
    app = make_app(Settings(redis_url=redis_url))
    with app.connection_for_read() as connection:
        assert isinstance(connection.transport, kombu_transport.FleetTransport)
        assert isinstance(connection.default_channel, kombu_transport.FleetChannel)
        assert connection.default_channel.visibility_timeout == 60
    app.close()


def test_pooled_connections_use_the_transport_too(redis_url: str) -> None:
    """Pools make connections by a class of their own: kombu's own would ring no bell, and hold up a worker's loop."""
    app = make_app(Settings(redis_url=redis_url))
    with app.amqp.producer_pool.acquire() as producer, app.pool.acquire() as connection:
        assert isinstance(producer.channel, kombu_transport.FleetChannel)
        assert isinstance(connection.transport, kombu_transport.FleetTransport)
    app.close()


def test_overridden_methods_have_kombus_signatures() -> None:
    """What we override is called by kombu: with other parameters it would fail at the first message."""
    assert parameters(kombu_redis.QoS.append) == ["self", "message", "delivery_tag"]
    assert parameters(kombu_redis.QoS.ack) == ["self", "delivery_tag"]
    assert parameters(kombu_redis.QoS.reject) == ["self", "delivery_tag", "requeue"]
    assert parameters(kombu_redis.QoS.restore_unacked_once) == ["self", "stderr"]
    assert parameters(kombu_redis.Channel.basic_consume) == ["self", "queue", "args", "kwargs"]
    assert parameters(kombu_redis.Channel._update_queue_cycle) == ["self"]
    assert parameters(kombu_redis.Channel.basic_qos)[:3] == ["self", "prefetch_size", "prefetch_count"]
    assert parameters(kombu_redis.Channel._put) == ["self", "queue", "message", "kwargs"]
    assert parameters(kombu_redis.Channel.close) == ["self"]
    assert parameters(kombu_redis.Channel._connparams) == ["self", "asynchronous"]
    assert parameters(kombu_redis.Transport.register_with_event_loop) == ["self", "connection", "loop"]


def test_an_answer_needs_a_table_and_a_put(channel: Any, redis: Redis) -> None:
    """Remote control's answers read `get_table` and end in `_put`, and the table has kombu's shape: ours are over the line."""
    binding = kombu_redis.Channel.keyprefix_queue % "reply.celery.pidbox"
    redis.sadd(binding, channel.sep.join(("1", "1", f"1.{FANOUT}")))
    channel.exchange_declare("reply.celery.pidbox", "direct")

    assert channel.get_table("reply.celery.pidbox") == [("1", "1", f"1.{FANOUT}")]
    channel.basic_publish(channel.prepare_message("hello"), exchange="reply.celery.pidbox", routing_key="1")
    assert redis.llen(f"1.{FANOUT}") == 1
    assert "self.producer_or_acquire(producer, chan)" in inspect.getsource(Mailbox._publish_reply)


def test_sentinel_classes_differ_only_in_their_pool() -> None:
    """Our mix-ins stand before kombu's Sentinel classes as well: those must not override what we do."""
    ours = {"basic_consume", "basic_qos", "get_table", "_put", "_update_queue_cycle", "close"}
    assert not ours & vars(kombu_redis.SentinelChannel).keys()
    assert not {"register_with_event_loop"} & vars(kombu_redis.SentinelTransport).keys()


def test_a_channel_tells_what_it_consumes(channel: Any) -> None:
    """`active_queues` leaves fanout queues out: the intake would look for lists that do not exist. It changes with `_active_queues`."""
    consume(channel, [])
    Queue(FANOUT, Exchange("contract.pidbox", type="fanout"), auto_delete=True)(channel).declare()
    channel.basic_consume(FANOUT, no_ack=True, callback=print, consumer_tag="fanout")

    consumed = ConsumedQueues(channel, PausedQueues())
    assert channel.active_queues == [*consumed.names] == [QUEUE]
    assert channel.active_fanout_queues == {FANOUT}
    assert QUEUE in channel.connection._callbacks
    channel.basic_cancel("tag")
    assert channel.active_queues == [*consumed.names] == []
    assert QUEUE not in channel.connection._callbacks, "a message is not delivered any more"


def test_a_worker_makes_no_cycle_of_its_queues(channel: Any) -> None:
    """Kombu makes one anew for each queue that is consumed, for its BRPOP alone: seconds at the start of a worker with thousands."""
    assert inspect.getsource(kombu_redis.Channel).count("._queue_cycle.") == 3
    channel.adapter = SimpleNamespace(update=list)
    consume(channel, [])
    channel.basic_cancel("tag")
    consume(channel, [])
    assert channel._queue_cycle.items == []
    channel.adapter = None
    channel.basic_cancel("tag")
    consume(channel, [])

    assert channel._queue_cycle.items == [QUEUE]


def test_fanout_topics_are_those_that_are_published_to(channel: Any, redis: Redis) -> None:
    """`_get_subscribe_topics` names what a broadcast is published to: else remote control would be deaf."""
    Queue(FANOUT, Exchange("contract.pidbox", type="fanout"), auto_delete=True)(channel).declare()
    channel.basic_consume(FANOUT, no_ack=True, callback=print, consumer_tag="fanout")
    with redis.pubsub() as pubsub:
        pubsub.psubscribe(*channel._get_subscribe_topics(FANOUT))
        pubsub.get_message(timeout=PATIENCE_SECONDS)
        channel.basic_publish(channel.prepare_message("hello"), exchange="contract.pidbox", routing_key="")
        heard = pubsub.get_message(timeout=PATIENCE_SECONDS)

    assert heard is not None
    assert heard["channel"] == "/0.contract.pidbox"
    assert json.loads(str(heard["data"]))["properties"]["delivery_info"]["exchange"] == "contract.pidbox"


def test_a_broadcast_is_delivered_by_its_exchange(channel: Any) -> None:
    """`_deliver_fanout_message` finds the consumer: broadcasts that we heard would reach nobody."""
    heard: list[Any] = []
    Queue(FANOUT, Exchange("contract.pidbox", type="fanout"), auto_delete=True)(channel).declare()
    channel.basic_consume(FANOUT, no_ack=True, callback=heard.append, consumer_tag="fanout")
    channel._deliver_fanout_message(raw(), "contract.pidbox")

    assert heard[0].headers["id"] == "1"


def test_deliver_passes_a_message_with_our_tag(channel: Any) -> None:
    """`Transport._deliver` calls the queue's consumer, and the message's tag is `properties.delivery_tag`: acks go by it."""
    messages: list[Any] = []
    consume(channel, messages)
    channel.connection._deliver(raw("our-tag"), QUEUE)

    (message,) = messages
    assert message.delivery_tag == "our-tag"
    assert message.delivery_info["routing_key"] == QUEUE
    assert message.channel is channel
    assert message._raw["headers"]["id"] == "1"
    assert message.body == b"[]"


def test_delivered_messages_count_until_they_are_acked(channel: Any) -> None:
    """`qos._delivered` holds them by tag and nothing else does: the room that is left is computed from it."""
    consume(channel, [])
    assert isinstance(channel.qos._delivered, OrderedDict)
    channel.connection._deliver(raw("a"), QUEUE)
    channel.connection._deliver(raw("b"), QUEUE)
    assert list(channel.qos._delivered) == ["a", "b"]
    channel.basic_ack("a")
    channel.qos._flush()
    assert list(channel.qos._delivered) == ["b"]


def test_the_virtual_qos_only_remembers(channel: Any, redis: Redis) -> None:
    """`virtual.QoS.append` writes nothing to Redis, so that delivery in a worker costs no round trip."""
    consume(channel, [])
    virtual.QoS.append(channel.qos, channel.Message(raw("a"), channel=channel), "a")

    assert list(channel.qos._delivered) == ["a"]
    assert redis.exists("unacked") == 0


def test_prefetch_counts_arrive_at_the_channel(channel: Any) -> None:
    """`basic_qos` sets `qos.prefetch_count`, which Celery changes with the pool's size; 0 means no limit."""
    assert channel.qos.prefetch_count == 0
    channel.basic_qos(0, 17, False)
    assert channel.qos.prefetch_count == 17


def test_keys_of_held_messages_have_kombus_names(channel: Any) -> None:
    """So a worker takes up what one of before held with kombu's own transport, and what Celery's own consumers hold."""
    assert (channel.unacked_key, channel.unacked_index_key) == ("unacked", "unacked_index")
    assert channel.global_keyprefix == ""


@pytest.mark.parametrize("prefix", ["", "some:"])
def test_stock_kombu_writes_what_our_scripts_can_put_back(prefix: str, redis_url: str, redis: Redis) -> None:
    """`[message, exchange, routing key]` as JSON, under the prefix: the scripts take it apart by its shape."""
    with Connection(redis_url, transport_options={"global_keyprefix": prefix}) as connection:
        channel: Any = connection.channel()
        consume(channel, [])
        channel.connection._deliver(raw("stock"), QUEUE)
        held = str(redis.hget(f"{prefix}unacked", "stock"))
        channel.qos.ack("stock")
    redis.flushall()

    assert loads(held) == [raw("stock"), "toolfleet", QUEUE]
    assert re.fullmatch(r'\[(.*), ?"[^"]*", ?"([^"]*)"\]', held)


@pytest.mark.parametrize("prefix", ["", "some:"])
def test_a_publish_rings_and_an_answer_does_not(prefix: str, redis_url: str, redis: Redis) -> None:
    """`_put` is where every message for a list passes, with the queue's bare name; pidbox answers go by kombu's own."""
    keys = Keys(prefix)
    with connected(redis_url, global_keyprefix=prefix) as connection:
        channel: Any = connection.channel()
        for queue in (QUEUE, f"1.{FANOUT}"):
            channel.basic_publish(channel.prepare_message("hello"), exchange="", routing_key=queue)
        found = {queue: redis.llen(keys.queue(queue)) for queue in (QUEUE, f"1.{FANOUT}")}
        notify_keys = {str(key) for key in redis.keys(f"{prefix}toolfleet:*")}
    stored = loads(str(redis.lindex(keys.queue(QUEUE), 0)))
    if prefix:
        redis.flushall()

    assert found == {QUEUE: 1, f"1.{FANOUT}": 1}
    assert notify_keys == {keys.notify_key(QUEUE)}
    assert stored["properties"]["body_encoding"] == "base64"


def test_a_channel_that_closes_leaves_the_messages_alone_in_a_worker(channel: Any, redis: Redis) -> None:
    """`Channel.close` restores by `qos.restore_unacked_once`: overridden, what runs would go back into the queue."""
    consume(channel, [])
    channel.connection._deliver(raw("kept"), QUEUE)
    channel.adapter = object()
    channel.qos.restore_unacked_once()
    channel.adapter = None
    channel.qos._delivered.clear()

    assert redis.llen(QUEUE) == 0
    assert redis.hexists("unacked", "kept")


def test_closing_a_channel_cancels_its_consumers_first() -> None:
    """And then gives its transport up: `close` must look at both before it calls kombu's."""
    source = inspect.getsource(virtual.Channel.close)
    steps = [source.index(step) for step in ("if not self.closed", "basic_cancel", "restore_unacked", "close_channel")]
    assert steps == sorted(steps)


def test_the_transport_registers_only_by_that_method(channel: Any) -> None:
    """The hub reads kombu's sockets only after `register_with_event_loop`; in a worker ours leaves that out."""
    assert "on_tick.add" in inspect.getsource(kombu_redis.Transport.register_with_event_loop)
    assert "register_with_event_loop(conn.connection, self.hub)" in inspect.getsource(Consumer.connect)


def test_sockets_are_made_with_the_time_limits_of_the_options(redis_url: str) -> None:
    """`_connparams` passes them to the pool over which a worker settles at its end: without it might never end."""
    with connected(redis_url, socket_timeout=7, socket_connect_timeout=3) as connection:
        channel: Any = connection.channel()
        parameters = channel.pool.connection_kwargs

    assert (parameters["socket_timeout"], parameters["socket_connect_timeout"]) == (7, 3)


def test_connections_do_not_say_which_library_made_them(channel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs a look-up and two commands each; with TLS they are said."""
    assert channel.client.connection_pool.get_connection().driver_info is None
    monkeypatch.setattr(channel.connection.client, "ssl", {"ssl_cert_reqs": "none"})
    assert "driver_info" not in channel._connparams()


def test_celery_lets_go_of_what_it_has_not_begun_when_a_connection_is_lost() -> None:
    """Reserved and scheduled requests are dropped and running ones kept: the dock puts back exactly the former."""
    source = inspect.getsource(Consumer.on_close)
    assert "reserved_requests.update(tuple(active_requests))" in source
    assert "scheduled_requests.clear()" in source
    assert "self.pool.flush()" in source


def test_a_running_request_knows_its_delivery_tag() -> None:
    """`state.active_requests` holds requests with `message.delivery_tag`: by it the dock knows what runs."""
    app = Celery(set_as_current=False)
    with Connection("memory://") as connection:
        message = virtual.Message(raw("running"), channel=connection.channel())
        request = celery_request.Request(
            message, app=app, body=((), {}, {}), decoded=True, task=app.task(raw, name="t")
        )
        assert request.message.delivery_tag == "running"
        state.active_requests.add(request)
        assert [active.message.delivery_tag for active in tuple(state.active_requests)] == ["running"]
        state.active_requests.discard(request)
    app.close()


def test_celery_acks_from_the_hub() -> None:
    """Acks and rejects come by `hub.call_soon`, outside of the pool's running loop: no code of theirs may need one."""
    source = inspect.getsource(Consumer.call_soon_ack)
    assert "self.hub.call_soon(p)" in source


def test_kombus_json_is_what_the_scripts_expect() -> None:
    """A message begins with `{"`: the scripts put their flag there."""
    assert dumps({"body": "x"}).startswith('{"')
    assert loads('{"redelivered":true,"body": "x"}') == {"redelivered": True, "body": "x"}


async def test_a_connection_of_redis_py_can_be_taken_over(redis_url: str) -> None:
    """It speaks RESP3, has its transport in `_writer`, and `_close` gives it up: a line is made of it."""
    connection = connection_factory(redis_url)()
    await connection.connect()
    writer = connection._writer
    assert isinstance(writer, asyncio.StreamWriter)
    assert writer.transport.get_protocol() is not None
    assert int(connection.protocol) == 3
    connection._close()

    assert connection._writer is None
    assert writer.transport.is_closing()


def test_hiredis_tells_pushes_from_replies() -> None:
    """`PushNotification` is a list of its own type, errors are returned as the class asked for, and what is missing shows."""
    missing = object()
    reader = hiredis.Reader(replyError=KeyError, notEnoughData=missing)
    reader.feed(b">3\r\n+message\r\n+c\r\n+d\r\n*1\r\n+x\r\n-ERR no\r\n_\r\n")
    push, reply, error, null = (reader.gets() for _ in range(4))

    assert isinstance(push, hiredis.PushNotification)
    assert isinstance(push, list)
    assert (type(reply), null) == (list, None)
    assert isinstance(error, KeyError)
    assert reader.gets() is missing
    command: Any = ("SET", b"k", 1, 1.5)
    assert hiredis.pack_command(command) == b"*4\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\n1\r\n$3\r\n1.5\r\n"
