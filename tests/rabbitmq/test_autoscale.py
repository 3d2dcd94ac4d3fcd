"""`toolfleet autoscale` where RabbitMQ has the queues: it goes by their lengths, and keeps what there is while nobody knows them."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.fleet import TestBed, own_bed
from support.module_server import ModuleServer
from support.servers.rabbitmq import RabbitMq
from support.waiting import wait_until, wait_until_answered
from support.workers.autoscaling import autoscaling
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_tasks.presence.consumers import workers_by_queue

ECHO = ToolCall(tool_name="owls.echo", arguments={"word": "hoot"})


@pytest.fixture
def scaled(broker: RabbitMq, owls: ModuleServer, tmp_path: Path) -> Iterator[TestBed]:
    """A fleet without workers, whose agents refuse calls at once that nobody takes."""
    more = {"broker_url": broker.url, "worker_concurrency": 2, "unserved_seconds": 0, "calls_per_caller": 100}
    with own_bed(owls, tmp_path, **more) as bed:
        yield bed


async def test_a_lane_grows_from_none_keeps_its_workers_and_shrinks(
    scaled: TestBed, owner: Caller, broker: RabbitMq, owls: ModuleServer
) -> None:
    """Calls wait for the first worker and have a second one started; while RabbitMQ is away none is ended; then there is none."""
    async with ToolFleet(settings=scaled.settings) as fleet:
        # Calls that a worker takes as it starts neither wait nor run, for a moment: calm must be longer.
        with autoscaling(scaled, "--min", "0", "--max", "2", "--calm", "5") as process:

            async def is_answered() -> bool:
                return (await fleet.call(ECHO, owner)).success

            await wait_until_answered(is_answered, "calls wait, now that somebody starts workers for them", seconds=60)
            nap = ToolCall(tool_name="owls.nap", arguments={"seconds": 8})
            naps = [asyncio.create_task(fleet.call(nap, owner, timeout=90)) for _ in range(4)]
            await wait_until(lambda: "to 2 workers" in process.said(), "four calls want two workers", seconds=60)
            await wait_until(lambda: owls.running == 4, "both run what they can", seconds=60)
            async with broker.away():
                assert [(await each).success for each in naps] == [True] * 4
                unread = process.said().count("queue_lengths_not_read")
                await wait_until(
                    lambda: process.said().count("queue_lengths_not_read") > unread + 6,
                    "it has looked for longer than calm takes",
                    seconds=60,
                )
                assert "from 2 to" not in process.said()
            await wait_until(lambda: "to 0 workers, for 0 running" in process.said(), "none is wanted", seconds=60)

            async def is_empty() -> bool:
                return (await workers_by_queue(scaled.settings))["tools.owls"] == 0

            await wait_until_answered(is_empty, "they have ended", seconds=60)
        assert "to 3 workers" not in process.said()
