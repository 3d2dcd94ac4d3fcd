"""Collects the metrics of a gateway, and of its fleet, for its own route and for a port of its own."""

import asyncio
import concurrent.futures
from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager

from redis.asyncio import Redis

from toolfleet_registry.metrics import process_recorder
from toolfleet_registry.metrics.exposition import Exposition
from toolfleet_registry.metrics.recorder import Sample
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.redis.urls import is_redis_url
from toolfleet_registry.settings import Settings
from toolfleet_tasks.aio.cancellation import end
from toolfleet_tasks.metrics.endpoint import MetricsEndpoint
from toolfleet_tasks.metrics.fleet_facts import FleetReader
from toolfleet_tasks.metrics.fleet_metrics import READ_SECONDS, FleetMetrics
from toolfleet_tasks.metrics.sampler import ProcessSampler

_REDIS_SECONDS = 2.0  # for one answer
_LOOP_SECONDS = READ_SECONDS + 1.0  # for a loop that may stand still


class GatewayMetrics:
    """`fleet` has the facts of the fleet."""

    def __init__(self, settings: Settings, fleet: FleetMetrics) -> None:
        recorder = process_recorder.start(most_names=settings.metrics_tools)
        self.fleet = fleet
        self._exposition = Exposition(recorder)
        self._loop = asyncio.get_running_loop()
        self._sampler = ProcessSampler(recorder)

    async def text(self) -> bytes:
        """All of it, as Prometheus reads it. Takes some seconds at most, and raises nothing for a Redis that is away."""
        return self._exposition.text(await self.fleet.samples())

    def text_now(self) -> bytes:
        """The same from another thread; where the loop stands still, without the fleet."""
        samples: Iterable[Sample] = ()
        asking = asyncio.run_coroutine_threadsafe(self.fleet.samples(), self._loop)
        try:
            samples = asking.result(_LOOP_SECONDS)
        except (concurrent.futures.CancelledError, TimeoutError):
            asking.cancel()
        return self._exposition.text(samples)

    async def sample(self) -> None:
        """Measure the loop until cancelled."""
        await self._sampler.keep()


@asynccontextmanager
async def gateway_metrics(settings: Settings) -> AsyncGenerator[GatewayMetrics]:
    """Those of the running gateway; with the settings' port they are answered there as well. Raises `SettingsError`."""
    async with AsyncExitStack() as stack:
        redis = await _client(stack, settings, str(settings.redis_url))
        is_elsewhere = settings.broker != settings.redis_url and is_redis_url(str(settings.broker))
        broker = await _client(stack, settings, str(settings.broker)) if is_elsewhere else None
        reader = FleetReader(redis, settings, broker=broker)
        stack.callback(reader.close)
        metrics = GatewayMetrics(settings, FleetMetrics(reader, settings))
        endpoint = MetricsEndpoint(settings, metrics.text_now)
        endpoint.start()
        sampling = asyncio.create_task(metrics.sample(), name="toolfleet-metrics")
        try:
            yield metrics
        finally:
            await end([sampling])
            await asyncio.to_thread(endpoint.close)
            process_recorder.stop()


async def _client(stack: AsyncExitStack, settings: Settings, url: str) -> Redis:
    return await stack.enter_async_context(
        async_client(url, master=settings.sentinel_master, timeout_seconds=_REDIS_SECONDS)
    )
