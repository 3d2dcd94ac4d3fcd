"""Shows the state of the fleet and of its queues, and pauses, drains and resumes queues."""

from typing import Literal

from pydantic import Field, RootModel

from toolfleet_tasks.operations.changes import LONGEST_REASON, QueueChanges
from toolfleet_tasks.operations.fleet_status import FleetStatus, read_status
from toolfleet_tasks.operations.queue_overview import QueueOverview, QueueOverviews
from toolfleet_tasks.resources.operation import AnswerModel, BodyModel, OperationRequest, operation

_ALL, _ONE = "/operations/queues", "/operations/queues/{queue}"


class QueueAction(BodyModel):
    """An action on a queue."""

    action: Literal["pause", "drain", "resume"]
    """`pause`: nothing more of it is begun; `drain`: it takes no new calls; `resume` ends both."""
    reason: str = Field(default="", max_length=LONGEST_REASON)
    """Why, for the audit and for whoever asks."""


class ShownQueue(AnswerModel):
    """How a queue is."""

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

    @property
    def is_empty(self) -> bool:
        """Return whether nothing waits or runs, as far as that is known."""
        return self.waiting == 0 and not self.held


class ShownQueueList(AnswerModel):
    """Queues of the fleet."""

    queues: list[ShownQueue]
    """By name."""
    count: int
    """How many these are."""
    broker_error: str | None = None
    """Why nobody knows what waits; left out where the broker answers."""


class ChangedQueue(AnswerModel):
    """The outcome of an action on a queue."""

    changed: bool
    """Whether it was otherwise before."""
    before: Literal["open", "paused", "draining"]
    """How it was."""


@operation("GET", _ALL, role="viewer", answers="All of them.")
async def list_queues(asked: OperationRequest[None, None]) -> ShownQueueList:
    """List the queues, with what waits in each."""
    async with QueueOverviews.of(asked.settings) as overviews:
        return _listed(await overviews.read(), overviews.broker_error)


@operation("GET", _ONE, role="viewer", answers="The one, or all of the lane.", problems=(404, 409))
async def get_queue(asked: OperationRequest[None, None]) -> ShownQueueList:
    """Return a queue, or those of `lane:<lane>`."""
    async with QueueOverviews.of(asked.settings) as overviews:
        return _listed(await overviews.named(asked.path["queue"]), overviews.broker_error)


@operation("POST", _ONE, role="operator", answers="How it was before.", problems=(404, 409))
async def change_queue(asked: OperationRequest[QueueAction, None]) -> ChangedQueue:
    """Pause, drain or resume a queue, or those of `lane:<lane>`."""
    async with QueueChanges.of(asked.settings, by=asked.operator.actor) as changes:
        act = {"pause": changes.pause, "drain": changes.drain, "resume": changes.resume}[asked.body.action]
        made = await act(asked.path["queue"], asked.body.reason)
    return ChangedQueue(changed=made.is_new, before="open" if made.before is None else made.before.state)


def _listed(queues: tuple[QueueOverview, ...], broker_error: str | None) -> ShownQueueList:
    shown = [ShownQueue.model_validate(queue, from_attributes=True) for queue in queues]
    return ShownQueueList(queues=shown, count=len(shown), broker_error=broker_error)


class ShownFleetStatus(RootModel[FleetStatus]):
    """How the fleet is doing at one moment."""


@operation("GET", "/operations/status", role="viewer", answers="Workers, queues, modules in trouble.", keeps_none=True)
async def get_fleet_status(asked: OperationRequest[None, None]) -> ShownFleetStatus:
    """Return how the fleet is doing."""
    return ShownFleetStatus(await read_status(asked.settings))
