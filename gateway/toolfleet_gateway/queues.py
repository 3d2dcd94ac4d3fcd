"""Pauses, drains and resumes queues, and shows how each is, for operators."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from toolfleet_gateway.http.answers import json_answer
from toolfleet_gateway.http.problems import Problem
from toolfleet_gateway.http.routes import Answer, AnyRoute, Route, RouteRequest
from toolfleet_gateway.operations.actors import actor_of
from toolfleet_gateway.operations.refusals import refusals
from toolfleet_gateway.roles import needing
from toolfleet_registry.errors import NoSuchQueue
from toolfleet_registry.settings import Settings
from toolfleet_tasks.metrics.queue_overview import QueueOverview, QueueOverviews
from toolfleet_tasks.operations.queue_changes import LONGEST_REASON, QueueChanges

_LIST, _ONE = "/operations/queues", "/operations/queues/{queue}"


class QueueAction(BaseModel):
    """What is to be done to a queue."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    action: Literal["pause", "drain", "resume"]
    """`pause`: nothing more of it is begun; `drain`: it takes no new calls; `resume` ends both."""
    reason: str = Field(default="", max_length=LONGEST_REASON)
    """Why, for the audit and for whoever asks."""


class ShownQueue(BaseModel):
    """How a queue is."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    queue: str
    """Its name."""
    module: str
    """The module whose calls wait there."""
    lane: Literal["fast", "slow"]
    """The lane that serves it."""
    state: Literal["open", "paused", "draining", "drained"]
    """`drained`: it drains, and nothing waits or runs any more."""
    since: float | None = None
    """Since when, in seconds since the epoch; left out where it is open."""
    by: str = ""
    """Who has done it."""
    reason: str = ""
    """Why, as they said."""
    is_lanes: bool
    """Whether it was done to the whole lane."""
    waiting: int | None = None
    """Calls that wait in it; left out while a broker that is not the fleet's Redis does not answer."""
    held: int
    """Calls that workers have taken and that have not ended."""
    oldest_seconds: float | None = None
    """Since when the oldest call has waited; left out where nobody knows it."""
    workers: int
    """How many workers serve it."""


class ShownQueueList(BaseModel):
    """Queues of the fleet."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    queues: list[ShownQueue]
    """By name."""
    count: int
    """How many these are."""
    broker_error: str | None = None
    """Why nobody knows what waits; left out where the broker answers."""


class ChangedQueue(BaseModel):
    """What came of it."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    changed: bool
    """Whether it was otherwise before."""
    before: Literal["open", "paused", "draining"]
    """How it was."""


def queue_routes(settings: Settings) -> list[AnyRoute]:
    """Return the routes of operators for queues."""
    about = _AboutQueues(settings)
    return [
        Route(
            method="GET",
            path=_LIST,
            name="listQueues",
            summary="How each queue is; for viewers",
            handle=needing("viewer", about.listed),
            answers={200: Answer("All of them.", ShownQueueList)},
            tag="operations",
        ),
        Route(
            method="GET",
            path=_ONE,
            name="getQueue",
            summary="How a queue is, or those of `lane:<lane>`; for viewers",
            handle=needing("viewer", about.shown),
            answers={200: Answer("The one, or all of the lane.", ShownQueueList)},
            problems=(404, 409),
            tag="operations",
        ),
        Route(
            method="POST",
            path=_ONE,
            name="changeQueue",
            summary="Pause, drain or resume a queue, or those of `lane:<lane>`; for operators",
            handle=needing("operator", about.changed),
            body=QueueAction,
            answers={200: Answer("How it was before.", ChangedQueue)},
            problems=(404, 409),
            tag="operations",
        ),
    ]


class _AboutQueues:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def listed(self, request: RouteRequest[None, None]) -> Response:
        del request
        async with QueueOverviews.of(self._settings) as overviews:
            return _answer(await overviews.read(), overviews.broker_error)

    async def shown(self, request: RouteRequest[None, None]) -> Response:
        with refusals():
            async with QueueOverviews.of(self._settings) as overviews:
                try:
                    return _answer(await overviews.named(request.path["queue"]), overviews.broker_error)
                except NoSuchQueue as exc:
                    raise _unknown(exc) from exc

    async def changed(self, request: RouteRequest[QueueAction, None]) -> Response:
        name, body = request.path["queue"], request.body
        with refusals():
            async with QueueChanges.of(self._settings, by=actor_of(request.who)) as changes:
                act = {"pause": changes.pause, "drain": changes.drain, "resume": changes.resume}[body.action]
                try:
                    made = await act(name, body.reason)
                except NoSuchQueue as exc:
                    raise _unknown(exc) from exc
        before = "open" if made.before is None else made.before.state
        return json_answer(ChangedQueue(changed=made.is_new, before=before))


def _answer(queues: tuple[QueueOverview, ...], broker_error: str | None) -> Response:
    shown = [ShownQueue.model_validate(queue, from_attributes=True) for queue in queues]
    return json_answer(ShownQueueList(queues=shown, count=len(shown), broker_error=broker_error))


def _unknown(error: NoSuchQueue) -> Problem:
    return Problem(404, "unknown_queue", str(error))
