"""What a gateway says of a fleet over RabbitMQ, to Prometheus and to whoever scales: RabbitMQ's numbers, and nothing where it has none."""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from redis.asyncio import Redis

from support.fleet import own_bed
from support.metrics.metered import Metered, metered_gateway
from support.metrics.prometheus import ALERTS, families_in, needs_prometheus, panels, prometheus
from support.metrics.scraping import names_in, sum_of
from support.module_server import ModuleServer
from support.servers.rabbitmq import RabbitMq, is_installed, rabbitmq
from support.waiting import PATIENCE_SECONDS, wait_until
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_cli.local.redis_server import held_port
from toolfleet_registry import metric_families
from toolfleet_tasks.operations.fleet_facts import FleetReader

OWLS = {"queue": "tools.owls", "lane": "fast"}
NAP = ToolCall(tool_name="owls.nap", arguments={"seconds": 60})
UNKNOWN = {metric_families.QUEUE_OLDEST.name, metric_families.HELD.name}
"""What RabbitMQ does not tell: how old its messages are, and how many of them workers hold."""


@dataclass
class MeteredFleet(Metered):
    """A gateway of a fleet over RabbitMQ."""

    broker: RabbitMq


@pytest.fixture(scope="module")
def metered(owls: ModuleServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeteredFleet]:
    """With servers of its own: what others leave in a queue would be counted."""
    if not is_installed():
        pytest.skip("RabbitMQ is not installed: apt-get install --no-install-recommends rabbitmq-server")
    with ExitStack() as stack:
        broker = stack.enter_context(rabbitmq(tmp_path_factory.mktemp("rabbitmq")))
        more = {"broker_url": broker.url, "worker_concurrency": 4, "calls_per_caller": 1000}
        bed = stack.enter_context(own_bed(owls, tmp_path_factory.mktemp("bed"), **more))
        metered = stack.enter_context(metered_gateway(bed))
        yield MeteredFleet(bed, metered.gateway, metered.port, broker)


async def test_a_queue_is_counted_while_it_waits_and_while_it_runs(metered: MeteredFleet, owner: Caller) -> None:
    """How many calls wait, how many run, who takes them, and how many workers that needs; how old they are nobody says."""
    async with ToolFleet(settings=metered.bed.settings) as fleet:
        naps = [asyncio.create_task(fleet.call(NAP, owner, waits_for_worker=True)) for _ in range(6)]
        await wait_until(lambda: metered.says("toolfleet_queue_waiting", **OWLS) == 6, "six calls wait")
        said = metered.scrape()
        assert sum_of(said, "toolfleet_queue_workers", **OWLS) == 0
        assert sum_of(said, "toolfleet_lane_workers_wanted", lane="fast") == 2
        assert sum_of(said, "toolfleet_broker_up") == sum_of(said, "toolfleet_redis_up") == 1
        scale = (await metered.scale()).json()
        assert (scale["workers_wanted"], scale["waiting"], scale["running"], scale["slots"]) == (2, 6, 0, 4)
        assert "oldest_seconds" not in scale
        with metered.bed.worker():
            await wait_until(lambda: metered.says("toolfleet_queue_running", **OWLS) == 4, "a worker runs four")
            await wait_until(lambda: metered.says("toolfleet_queue_waiting", **OWLS) == 2, "two wait in RabbitMQ")
            await wait_until(lambda: metered.says("toolfleet_lane_slots", lane="fast") == 4, "it has four slots")
            said = metered.scrape()
            assert sum_of(said, "toolfleet_queue_workers", **OWLS) == 1
            assert sum_of(said, "toolfleet_lane_workers_wanted", lane="fast") == 2
            assert names_in(said) & UNKNOWN == set()
            for nap in naps:
                nap.cancel()
            await asyncio.wait(naps)
            await wait_until(lambda: metered.says("toolfleet_lane_workers_wanted", lane="fast") == 0, "none is needed")
    await wait_until(lambda: metered.says("toolfleet_lane_workers", lane="fast") == 0, "the worker has gone")


async def test_what_waits_in_a_paused_queue_needs_no_worker(metered: MeteredFleet, owner: Caller) -> None:
    """It is counted apart, and so RabbitMQ's number is the calls', not the workers'."""
    async with ToolFleet(settings=metered.bed.settings) as fleet:
        await fleet.queues.pause("owls")
        naps = [asyncio.create_task(fleet.call(NAP, owner, waits_for_worker=True)) for _ in range(5)]
        await wait_until(lambda: metered.says("toolfleet_queue_waiting", **OWLS) == 5, "five calls wait")
        assert metered.says("toolfleet_queue_state", **OWLS) == 2
        scale = (await metered.scale()).json()
        assert (scale["workers_wanted"], scale["waiting"], scale["paused"]) == (0, 0, 5)
        for nap in naps:
            nap.cancel()
        await asyncio.wait(naps)
        await fleet.queues.resume("owls")
        with metered.bed.worker():
            await wait_until(lambda: metered.says("toolfleet_queue_waiting", **OWLS) == 0, "they are ended")


async def test_while_rabbitmq_is_away_a_scrape_says_so_and_not_of_redis(metered: MeteredFleet) -> None:
    """What waits is left out, and never 0; whoever scales gets no number; all else is as Redis has it."""
    async with metered.broker.away():
        await wait_until(lambda: "toolfleet_queue_waiting" not in names_in(metered.scrape()), "what was read is old")
        said = metered.scrape()
        assert (sum_of(said, "toolfleet_redis_up"), sum_of(said, "toolfleet_broker_up")) == (1, 0)
        assert "toolfleet_lane_workers_wanted" not in names_in(said)
        assert {"toolfleet_queue_running", "toolfleet_lane_workers", "toolfleet_jobs"} <= names_in(said)
        answer = await metered.scale()
        assert (answer.status_code, "the broker does not answer" in answer.text) == (503, True)
    await wait_until(lambda: metered.says("toolfleet_broker_up") == 1, "RabbitMQ is there again")
    assert "toolfleet_queue_waiting" in names_in(metered.scrape())


async def test_a_frozen_rabbitmq_holds_up_no_scrape(metered: MeteredFleet) -> None:
    """It takes connections and says nothing: scrapes come in time, and go on when it moves again."""
    took = list[float]()

    def is_away() -> bool:
        began_at = time.monotonic()
        is_up = metered.says("toolfleet_broker_up")
        took.append(time.monotonic() - began_at)
        return not is_up

    with metered.broker.frozen():
        await wait_until(is_away, "it does not answer", seconds=2 * PATIENCE_SECONDS)
        said = metered.scrape()
        assert (sum_of(said, "toolfleet_redis_up"), sum_of(said, "toolfleet_broker_up")) == (1, 0)
    await wait_until(lambda: metered.says("toolfleet_broker_up") == 1, "it answers again", seconds=2 * PATIENCE_SECONDS)
    assert max(took) < 10, "what Prometheus gives a scrape"


async def test_readings_share_a_connection_which_is_made_anew_when_it_was_closed(metered: MeteredFleet) -> None:
    """Of one gateway: RabbitMQ logs each connection, and a scrape comes every few seconds."""
    async with Redis.from_url(metered.bed.redis_url) as redis:
        with contextlib.closing(FleetReader(redis, metered.bed.settings)) as reader:
            before = metered.broker.connections_made()
            for _ in range(3):
                assert (await reader.read()).broker_error is None
            assert metered.broker.connections_made() == before + 1
            await asyncio.to_thread(metered.broker.close_connections, "a test")
            facts = await reader.read()
    assert facts.broker_error is None
    assert {queue.queue: queue.waiting for queue in facts.queues} == {"toolfleet.control": 0, "tools.owls": 0}


@needs_prometheus
async def test_every_query_has_series_but_for_what_rabbitmq_does_not_tell(
    metered: MeteredFleet, owner: Caller, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A real Prometheus scrapes gateway and worker; all rules can be evaluated, and a RabbitMQ that is ended is found by its alert."""
    with held_port() as port, metered.bed.worker(metrics_port=port), ExitStack() as stack:
        ports = (metered.port, port)
        server = stack.enter_context(prometheus(tmp_path_factory.mktemp("prometheus"), ports, ALERTS))
        await metered.use(owner)
        shown = {panel: query for panel, query in panels().items() if not families_in(query) & UNKNOWN}
        await server.check(shown)
        for panel in panels().keys() - shown.keys():
            assert server.query(panels()[panel]) == [], panel
        async with metered.broker.away():

            def states() -> dict[str, str]:
                return {rule["name"]: rule["state"] for rule in server.rules()}

            await wait_until(
                lambda: states()["ToolfleetBrokerAway"] == "pending", "it is found", seconds=2 * PATIENCE_SECONDS
            )
            assert states()["ToolfleetRedisAway"] == "inactive"
