"""What a gateway says of the whole fleet, to Prometheus and to whoever starts and ends workers."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from support.fleet import TestBed
from support.metrics.metered import Metered, metered_gateway
from support.metrics.scraping import names_in, series_in, sum_of, wait_until_read
from support.module_server import ModuleServer
from support.servers.redis_faults import FaultyRedis, faulty_redis
from toolfleet import ToolFleet
from toolfleet_registry.contracts import Caller, ToolCall
from toolfleet_registry.metric_families import FAMILIES

NAP = ToolCall(tool_name="owls.nap", arguments={"seconds": 60})


@dataclass
class MeteredFleet(Metered):
    """A gateway on a Redis to which things may happen."""

    redis: FaultyRedis


@pytest.fixture(scope="module")
def metered(owls: ModuleServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeteredFleet]:
    with ExitStack() as stack:
        redis = stack.enter_context(faulty_redis(tmp_path_factory.mktemp("redis")))
        bed = TestBed(redis.url, (owls,), tmp_path_factory.mktemp("logs"), {"worker_concurrency": 4})
        metered = stack.enter_context(metered_gateway(bed))
        yield MeteredFleet(bed, metered.gateway, metered.port, redis)


async def test_a_queue_is_counted_while_it_waits_and_while_it_runs(metered: MeteredFleet, owner: Caller) -> None:
    """How many calls wait, since when, who takes them, and how many workers that needs; all of it goes with the calls."""
    owls = {"queue": "tools.owls", "lane": "fast"}
    async with ToolFleet(settings=metered.bed.settings) as fleet:
        naps = [asyncio.create_task(fleet.call(NAP, owner, waits_for_worker=True)) for _ in range(6)]
        await wait_until_read(lambda: metered.says("toolfleet_queue_waiting", **owls) == 6, "six calls wait")
        await wait_until_read(
            lambda: metered.says("toolfleet_queue_oldest_seconds", **owls) > 0.5, "the oldest has waited"
        )
        said = metered.scrape()
        assert (
            sum_of(said, "toolfleet_queue_workers", **owls) == sum_of(said, "toolfleet_lane_workers", lane="fast") == 0
        )
        assert sum_of(said, "toolfleet_lane_workers_wanted", lane="fast") == 2
        scale = (await metered.scale()).json()
        assert (scale["workers_wanted"], scale["waiting"], scale["running"], scale["slots"]) == (2, 6, 0, 4)
        assert scale["oldest_seconds"] > 0.5
        with metered.bed.worker():
            await wait_until_read(lambda: metered.says("toolfleet_queue_running", **owls) >= 4, "a worker runs four")
            await wait_until_read(lambda: metered.says("toolfleet_lane_slots", lane="fast") == 4, "it has four slots")
            await wait_until_read(
                lambda: metered.says("toolfleet_queue_workers", **owls) == 1, "it takes the queue's calls"
            )
            await wait_until_read(
                lambda: metered.says("toolfleet_lane_workers", lane="fast") == 1, "it is the lane's only one"
            )
            await wait_until_read(
                lambda: metered.says("toolfleet_lane_workers_wanted", lane="fast") == 2, "two are needed"
            )
            for nap in naps:
                nap.cancel()
            await asyncio.wait(naps)
            await wait_until_read(
                lambda: metered.says("toolfleet_lane_workers_wanted", lane="fast") == 0, "none is needed"
            )
    await wait_until_read(lambda: metered.says("toolfleet_lane_workers", lane="fast") == 0, "the worker has gone")
    assert metered.says("toolfleet_queue_oldest_seconds", **owls) == 0


async def test_while_redis_is_silent_a_scrape_says_so(metered: MeteredFleet) -> None:
    """It comes in time, with what the gateway itself knows; and whoever scales gets no number."""
    assert metered.says("toolfleet_redis_up") == 1
    with metered.redis.frozen():
        await wait_until_read(lambda: metered.says("toolfleet_redis_up") == 0, "what was read before is old")
        said = metered.scrape()
        assert "toolfleet_queue_waiting" not in names_in(said)
        assert "toolfleet_loop_lag_seconds_count" in names_in(said)
        assert (await metered.scale()).status_code == 503
    await wait_until_read(lambda: metered.says("toolfleet_redis_up") == 1, "Redis is there again")


async def test_many_scrapes_at_once_cost_redis_one_reading(metered: MeteredFleet) -> None:
    """Whoever comes within a second gets what was read for the first."""
    began = time.monotonic()
    before = int(metered.redis.look.info("commandstats")["cmdstat_hgetall"]["calls"])
    said = await asyncio.gather(*(asyncio.to_thread(metered.scrape) for _ in range(10)))
    after = int(metered.redis.look.info("commandstats")["cmdstat_hgetall"]["calls"])
    most = 2 + time.monotonic() - began  # one of before, one at once, and one more each second

    assert len({sum_of(each, "toolfleet_fleet_read_seconds") for each in said}) <= most
    assert after - before < 10 * 2


async def test_metrics_are_at_a_route_for_viewers_too(metered: MeteredFleet) -> None:
    """As Prometheus reads them; requests are counted by their route, never by a path that somebody has made up."""
    async with metered.gateway.client() as client:
        assert (await client.get("/made/up")).status_code == 404
        answer = await client.get("/metrics")
    said = series_in(answer.text)

    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert sum_of(said, "toolfleet_gateway_requests_total", route="other", status="404") >= 1
    assert "made" not in answer.text
    named = {family.name for family in FAMILIES}
    ours = {
        name
        for name in names_in(said)
        if name.startswith("toolfleet_") and not name.endswith(("_bucket", "_count", "_sum"))
    }
    assert ours <= named
    async with metered.gateway.client("nobody") as client:
        assert (await client.get("/metrics")).status_code == 401
