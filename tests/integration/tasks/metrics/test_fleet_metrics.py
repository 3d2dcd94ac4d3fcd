"""What is known of the fleet in the moments after its Redis was away."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from support.servers.redis_faults import FaultyRedis, faulty_redis
from toolfleet_registry import metric_families
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.settings import Settings
from toolfleet_tasks.operations import fleet_facts, queue_overview
from toolfleet_tasks.operations.fleet_facts import FleetMetrics, FleetReader


@pytest.fixture
async def metered(tmp_path: Path) -> AsyncIterator[tuple[FleetMetrics, FaultyRedis]]:
    with faulty_redis(tmp_path / "redis") as redis:
        settings = Settings(redis_url=redis.url)
        async with async_client(redis.url) as client:
            with contextlib.closing(FleetReader(client, settings)) as reader:
                yield FleetMetrics(reader, settings), redis


async def test_a_redis_that_is_back_is_read_at_once(metered: tuple[FleetMetrics, FaultyRedis]) -> None:
    """Whoever asks a moment after a reading in vain gets what is, and not that Redis was away; the log says that once."""
    metrics, redis = metered
    with capture_logs() as logs:
        with redis.restarted():
            assert [await metrics.facts() for _ in range(3)] == [None] * 3
        assert all(await asyncio.gather(*(metrics.facts() for _ in range(3))))

    assert [line["event"] for line in logs] == ["fleet_metrics_not_read"]


async def test_a_frozen_redis_is_read_at_once_when_it_goes_on(
    metered: tuple[FleetMetrics, FaultyRedis], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the reading before was given up in that very moment."""
    metrics, redis = metered
    monkeypatch.setattr(fleet_facts, "READ_SECONDS", 0.3)
    with redis.frozen():
        assert await metrics.facts() is None
    monkeypatch.setattr(fleet_facts, "READ_SECONDS", 20)
    assert await metrics.facts() is not None


async def test_a_broker_of_its_own_that_is_away_hides_only_what_waits_there(redis_url: str) -> None:
    """Another Redis is left out as RabbitMQ is: the metrics say that it is away, and the fleet's Redis is up."""
    services = {"owls": "http://127.0.0.1:1"}
    settings = Settings(redis_url=redis_url, broker_url="redis://127.0.0.1:1/0", module_services=services)
    async with FleetReader.of(settings) as reader, queue_overview.QueueOverviews.of(settings) as overviews:
        said = {sample.family: sample.value for sample in await FleetMetrics(reader, settings).samples()}
        (queue,) = await overviews.named("owls")

    assert (said[metric_families.REDIS_UP], said[metric_families.BROKER_UP], said[metric_families.JOBS]) == (1, 0, 0)
    assert not said.keys() & {metric_families.QUEUE_WAITING, metric_families.HELD}
    assert (queue.waiting, queue.held, str(overviews.broker_error).partition(":")[0]) == (
        None,
        0,
        "The broker does not answer",
    )


async def test_a_frozen_broker_hides_only_what_waits_there(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked twice, for what waits and for what workers hold, and each time for as long as a broker may take."""
    for module, name, seconds in (
        (fleet_facts, "BROKER_SECONDS", 0.4),
        (queue_overview, "BROKER_SECONDS", 0.4),
        (queue_overview, "_SECONDS", 0.7),
    ):
        monkeypatch.setattr(module, name, seconds)
    with faulty_redis(tmp_path / "redis") as broker, broker.frozen():
        settings = Settings(redis_url=redis_url, broker_url=broker.url, module_services={"owls": "http://127.0.0.1:1"})
        async with queue_overview.QueueOverviews.of(settings) as overviews:
            (queue,) = await overviews.named("owls")

    assert (queue.waiting, queue.state, str(overviews.broker_error).partition(":")[0]) == (
        None,
        "open",
        "The broker does not answer",
    )
