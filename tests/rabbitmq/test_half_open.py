"""Connections to RabbitMQ stand and pass nothing on: whoever has one finds out, and nobody waits for it for ever."""

import asyncio
import signal
import time
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from kombu.connection import Connection
from kombu.entity import Queue
from kombu.messaging import Consumer, Producer

from support.fleet import TestBed, program
from support.module_server import ModuleServer
from support.servers.rabbitmq import RabbitMq
from support.streams.tcp_proxy import TcpProxy, tcp_proxy
from support.waiting import PATIENCE_SECONDS, wait_until
from support.worker_process import WorkerProcess
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_cli.local.environment import beat_command
from toolfleet_tasks.broker import RabbitMqTransport
from toolfleet_tasks.queues import CONTROL

pytestmark = pytest.mark.slow

QUEUE = "tools.owls"
ECHO = ToolCall(tool_name="owls.echo")
NAP = ToolCall(tool_name="owls.nap", arguments={"seconds": 3})
FOUND_SECONDS = 60.0  # twenty on an idle machine, and four minutes by Celery's own heartbeats


@pytest.fixture
def proxy(broker: RabbitMq) -> Iterator[TcpProxy]:
    """What stands between RabbitMQ and one of its clients."""
    with tcp_proxy(broker.port) as proxy:
        yield proxy


@contextmanager
def worker_behind(bed: TestBed, broker: RabbitMq, proxy: TcpProxy) -> Generator[WorkerProcess]:
    with bed.worker(broker_url=_through(proxy, broker), worker_concurrency=4) as worker:
        yield worker


@asynccontextmanager
async def agent_behind(bed: TestBed, broker: RabbitMq, proxy: TcpProxy) -> AsyncGenerator[ToolFleet]:
    settings = bed.settings.model_copy(update={"broker_url": _through(proxy, broker)})
    async with ToolFleet(settings=settings) as fleet:
        yield fleet


def _through(proxy: TcpProxy, broker: RabbitMq) -> str:
    return broker.url.replace(str(broker.port), str(proxy.port))


async def test_a_worker_leaves_a_connection_that_says_nothing(
    bed: TestBed, fleet: ToolFleet, owner: Caller, owls: ModuleServer, broker: RabbitMq, proxy: TcpProxy
) -> None:
    """It makes new ones, and runs the calls that have come meanwhile, and those that it was given over the old one once."""
    with worker_behind(bed, broker, proxy) as worker:
        assert (await fleet.call(ECHO, owner)).success
        running = await fleet.submit(NAP, owner, timeout=FOUND_SECONDS)
        await wait_until(lambda: owls.running, "it runs")
        proxy.go_deaf()
        ended = await running.result()
        after = await fleet.call(ECHO, owner, timeout=FOUND_SECONDS)

    assert (ended.success, after.success) == (True, True), worker.said()
    assert len(owls.calls("nap")) == 1


async def test_nobody_waits_for_an_answer_about_prefetching(broker: RabbitMq, proxy: TcpProxy) -> None:
    """Celery sets the count with calls that end after a reconnect, on a worker's loop. It holds for what is sent after it."""
    bound, taken = 2, list[object]()
    with Connection(_through(proxy, broker), transport=RabbitMqTransport) as connection:
        channel: Any = connection.channel()
        queue = Queue(f"owls-{uuid4()}", auto_delete=True)(channel)
        queue.declare()
        for number in range(bound + 3):
            Producer(channel).publish({"number": number}, routing_key=queue.name)
        proxy.hold()
        setting = asyncio.create_task(asyncio.to_thread(channel.basic_qos, 0, bound, True))
        done, _ = await asyncio.wait([setting], timeout=PATIENCE_SECONDS)
        proxy.release()
        await setting
        with Consumer(channel, [queue], callbacks=[lambda _, message: taken.append(message)]):
            # RabbitMQ sends what it may before it answers: on one connection, and in this order.
            left = await asyncio.to_thread(lambda: queue.queue_declare(passive=True).message_count)
    assert (done, len(taken), left) == ({setting}, bound, 3)


async def test_half_a_frame_stops_no_worker(
    bed: TestBed, fleet: ToolFleet, owner: Caller, owls: ModuleServer, broker: RabbitMq, proxy: TcpProxy
) -> None:
    """A call that runs ends while the rest of a message does not come; that is taken up when it does."""
    large = ToolCall(tool_name="owls.echo", arguments={"text": "hoo" * 100_000})
    with worker_behind(bed, broker, proxy) as worker:
        running = await fleet.submit(NAP, owner, timeout=FOUND_SECONDS)
        await wait_until(lambda: owls.running, "it runs")
        proxy.hold(there=False, after_bytes=1000)
        waiting = await fleet.submit(large, owner, timeout=FOUND_SECONDS)
        ended = await running.result(PATIENCE_SECONDS)
        proxy.release()
        after = await waiting.result()

    assert (ended.success, after.success) == (True, True), worker.said()
    assert "loop_stalled" not in worker.said()


@pytest.mark.parametrize(("there", "back"), [(True, True), (True, False), (False, True)])
async def test_a_worker_goes_on_when_its_connections_are_reset(
    bed: TestBed, fleet: ToolFleet, owner: Caller, broker: RabbitMq, proxy: TcpProxy, there: bool, back: bool
) -> None:
    """After nothing has passed in one direction, or in both, for a while that is shorter than a heartbeat."""
    with worker_behind(bed, broker, proxy) as worker:
        assert (await fleet.call(ECHO, owner)).success
        await wait_until(lambda: broker.kept()[QUEUE] == 0, "the worker has confirmed it")
        proxy.hold(there=there, back=back)
        waiting = await fleet.submit(ECHO, owner, timeout=FOUND_SECONDS)
        if back:  # else the call gets to the worker, and its result need not come back this way
            await wait_until(
                lambda: broker.kept()[QUEUE] == 1 and not broker.waiting(QUEUE), "it is sent to the worker"
            )
            assert await waiting.status() == "queued"
        proxy.reset()
        proxy.release()
        assert (await waiting.result()).success, worker.said()
        assert (await fleet.call(ECHO, owner)).success, worker.said()


async def test_a_worker_ends_though_nobody_answers_its_goodbye(
    bed: TestBed, fleet: ToolFleet, owner: Caller, broker: RabbitMq, proxy: TcpProxy
) -> None:
    """SIGTERM ends it within the time that a deployment gives it."""
    with worker_behind(bed, broker, proxy) as worker:
        assert (await fleet.call(ECHO, owner)).success
        proxy.hold()
        worker.send_signal(signal.SIGTERM)
        code = await asyncio.to_thread(worker.wait, seconds=2 * PATIENCE_SECONDS)

    assert code == 0, worker.said()


async def test_an_agent_publishes_again_over_a_new_connection(
    bed: TestBed, owner: Caller, owls: ModuleServer, broker: RabbitMq, proxy: TcpProxy
) -> None:
    """What it has sent over one that passes nothing on runs once, within its deadline."""
    owls.forget()
    with bed.worker() as worker:
        async with agent_behind(bed, broker, proxy) as fleet:
            assert all(result.success for result in await fleet.call_many([ECHO] * 8, owner))
            proxy.go_deaf()
            results = await fleet.call_many([ECHO] * 20, owner, timeout=20)

    assert [result.success for result in results] == [True] * 20, worker.said()
    assert len(owls.calls("echo")) == 28


async def test_no_publish_outlasts_its_call(
    bed: TestBed, owner: Caller, owls: ModuleServer, broker: RabbitMq, proxy: TcpProxy
) -> None:
    """Calls whose deadline comes before anybody finds out end by it, whichever connections pass nothing on; later ones go on."""
    with bed.worker() as worker:
        async with agent_behind(bed, broker, proxy) as fleet:
            assert all(result.success for result in await fleet.call_many([ECHO] * 8, owner))
            proxy.hold()
            began_at = time.monotonic()
            results = await asyncio.wait_for(fleet.call_many([ECHO] * 20, owner, timeout=1), PATIENCE_SECONDS)
            took = time.monotonic() - began_at
            proxy.go_deaf()
            proxy.release()
            after = await fleet.call_many([ECHO] * 8, owner, timeout=FOUND_SECONDS)

    assert took < 10, "by their deadlines, before the connection is found out"
    assert not any(result.success for result in results)
    assert all(result.error_code in {"expired", "timed_out", "fleet_unavailable", "busy"} for result in results)
    assert all(result.success for result in after), worker.said()


async def test_beat_leaves_a_connection_that_says_nothing(bed: TestBed, broker: RabbitMq, proxy: TcpProxy) -> None:
    """What it sends is confirmed, or sent over a new one."""
    quick = replace(bed, more={**bed.more, "jobs_interval_seconds": 0.2, "broker_url": _through(proxy, broker)})
    with program(quick, beat_command(), "beat", ready="beat: Starting"):
        await wait_until(lambda: broker.kept().get(CONTROL), "beat sends something")
        proxy.go_deaf()
        broker.purge(CONTROL)
        await wait_until(lambda: broker.waiting(CONTROL), "beat sends again", seconds=2 * PATIENCE_SECONDS)
    broker.purge(CONTROL)
