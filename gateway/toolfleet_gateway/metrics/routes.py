"""Answers `GET /metrics` for Prometheus, and `GET /scale/{lane}` for whoever starts and ends workers."""

from pydantic import BaseModel
from starlette.responses import Response

from toolfleet_gateway.http.answers import json_answer
from toolfleet_gateway.http.problem_answers import unavailable
from toolfleet_gateway.http.problems import Problem
from toolfleet_gateway.http.routes import Answer, AnyRoute, Route, RouteRequest
from toolfleet_gateway.metrics.gateway_metrics import GatewayMetrics
from toolfleet_gateway.rights.roles import needing
from toolfleet_registry.metrics.exposition import CONTENT_TYPE
from toolfleet_registry.settings import Settings
from toolfleet_tasks.metrics.fleet_facts import LANES, Lane
from toolfleet_tasks.metrics.lane_load import LaneLoad, lane_load


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
    """Since when the oldest of the waiting calls has waited. Left out where nobody knows it, as with RabbitMQ."""


def metrics_routes(metrics: GatewayMetrics, settings: Settings) -> list[AnyRoute]:
    """Both, for viewers."""

    async def written(_: RouteRequest[None, None]) -> Response:
        return Response(await metrics.text(), media_type=None, headers={"content-type": CONTENT_TYPE})

    async def scale(request: RouteRequest[None, None]) -> Response:
        lane: Lane | None = next((lane for lane in LANES if lane == request.path["lane"]), None)
        if lane is None:
            raise Problem(404, "unknown_lane", "There are the lanes fast and slow.")
        facts = await metrics.fleet.facts()
        if facts is None:  # no number: whoever scales by it must keep what there is
            raise unavailable("Nobody knows what the lane needs: Redis does not answer.")
        load = lane_load(facts, lane, usual_slots=settings.worker_concurrency)
        if load is None:
            raise unavailable("Nobody knows what the lane needs: the broker does not answer.")
        return json_answer(_scale_of(load))

    return [
        Route(
            method="GET",
            path="/metrics",
            name="getMetrics",
            summary="Metrics of this gateway and of the fleet, for Prometheus; for viewers",
            handle=needing("viewer", written),
            answers={200: Answer("Metrics in Prometheus's text format.", media="text/plain")},
            tag="operations",
        ),
        Route(
            method="GET",
            path="/scale/{lane}",
            name="getLaneScale",
            summary="How many workers a lane needs; for viewers",
            handle=needing("viewer", scale),
            answers={200: Answer("What runs and waits, and how many workers that needs.", LaneScale)},
            problems=(404, 503),
            tag="operations",
        ),
    ]


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
