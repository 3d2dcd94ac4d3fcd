"""Serves the metrics of the gateway and of the fleet, and says how many workers a lane needs."""

import asyncio
import concurrent.futures
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager

from pydantic import BaseModel
from starlette.responses import Response

from toolfleet_gateway.http.entrance import require_role
from toolfleet_gateway.http.problems import Problem, unavailable
from toolfleet_gateway.http.routes import Answer, AnyRoute, RouteRequest, declared_routes, json_answer, route
from toolfleet_registry import metrics
from toolfleet_registry.metrics import CONTENT_TYPE, Exposition, Sample
from toolfleet_registry.settings import Settings
from toolfleet_tasks.aio import end
from toolfleet_tasks.operations.fleet_facts import (
    LANES,
    READ_SECONDS,
    FleetMetrics,
    FleetReader,
    Lane,
    LaneLoad,
    lane_load,
)
from toolfleet_tasks.operations.process_metrics import MetricsEndpoint, ProcessSampler

_REDIS_SECONDS = 2.0  # for one answer
_LOOP_SECONDS = READ_SECONDS + 1.0  # for a loop that may stand still


class GatewayMetrics:
    """The metrics of a gateway; `fleet` has those of the fleet."""

    def __init__(self, fleet: FleetMetrics) -> None:
        recorder = metrics.start()
        self.fleet = fleet
        self._exposition = Exposition(recorder)
        self._loop = asyncio.get_running_loop()
        self._sampler = ProcessSampler(recorder)

    async def text(self) -> bytes:
        """Return all metrics in Prometheus's format. Takes some seconds at most, and raises nothing if Redis is away."""
        return self._exposition.text(await self.fleet.samples())

    def text_now(self) -> bytes:
        """Return the metrics to another thread; without those of the fleet if the loop stands still."""
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
    """Open the metrics of the running gateway; with the settings' port they are served there as well.

    Raises `SettingsError`.
    """
    async with FleetReader.of(settings, timeout_seconds=_REDIS_SECONDS) as reader:
        found = GatewayMetrics(FleetMetrics(reader, settings))
        endpoint = MetricsEndpoint(settings, found.text_now)
        endpoint.start()
        sampling = asyncio.create_task(found.sample(), name="toolfleet-metrics")
        try:
            yield found
        finally:
            await end([sampling])
            await asyncio.to_thread(endpoint.close)
            metrics.stop()


class LaneScale(BaseModel):
    """How many workers a lane needs, and why."""

    lane: str
    """`fast` or `slow`."""
    workers_wanted: int
    """`(running + waiting) / slots`, rounded up: so that each of its calls has a slot."""
    running: int
    """Calls that its workers run, as they said within the last second or two."""
    waiting: int
    """Calls that wait in the queues of its modules, those that are paused left out."""
    paused: int = 0
    """Calls that wait in queues which operators have paused: they need no worker."""
    slots: int
    """Calls that one of its workers runs at once."""
    workers: int
    """Its workers that live."""
    oldest_seconds: float | None = None
    """Since when the oldest of the waiting calls has waited. Left out where it is not known, as with RabbitMQ."""


class _MetricsRoutes:
    def __init__(self, metrics: GatewayMetrics, settings: Settings) -> None:
        self._metrics, self._usual_slots = metrics, settings.worker_concurrency

    @route(
        "GET",
        "/metrics",
        "Metrics of this gateway and of the fleet, for Prometheus; for viewers",
        {200: Answer("Metrics in Prometheus's text format.", media="text/plain")},
    )
    async def get_metrics(self, request: RouteRequest[None, None]) -> Response:
        require_role(request.who, "viewer")
        return Response(await self._metrics.text(), media_type=None, headers={"content-type": CONTENT_TYPE})

    @route(
        "GET",
        "/scale/{lane}",
        "How many workers a lane needs; for viewers",
        {200: Answer("What runs and waits, and how many workers that needs.", LaneScale)},
        problems=(404, 503),
    )
    async def get_lane_scale(self, request: RouteRequest[None, None]) -> Response:
        require_role(request.who, "viewer")
        lane: Lane | None = next((lane for lane in LANES if lane == request.path["lane"]), None)
        if lane is None:
            raise Problem(404, "unknown_lane", "There are the lanes fast and slow.")
        facts = await self._metrics.fleet.facts()
        if facts is None:  # no number: an autoscaler must keep the present number
            raise unavailable("What the lane needs is not known: Redis does not answer.")
        load = lane_load(facts, lane, usual_slots=self._usual_slots)
        if load is None:
            raise unavailable("What the lane needs is not known: the broker does not answer.")
        return json_answer(_scale_of(load))


def metrics_routes(metrics: GatewayMetrics, settings: Settings) -> list[AnyRoute]:
    """Return the routes of metrics, for viewers."""
    return declared_routes(_MetricsRoutes(metrics, settings), tag="operations")


def _scale_of(load: LaneLoad) -> LaneScale:
    return LaneScale(
        lane=load.lane,
        workers_wanted=load.wanted,
        running=load.running,
        waiting=load.waiting,
        paused=load.paused,
        slots=load.slots,
        workers=load.workers,
        oldest_seconds=None if load.oldest_seconds is None else round(load.oldest_seconds, 3),
    )
