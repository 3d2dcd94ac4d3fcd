"""Computes how many workers a lane needs: what runs and waits, by the slots of one worker. What waits in paused queues needs none."""

import math
from dataclasses import dataclass

from toolfleet_tasks.metrics.fleet_facts import FleetFacts, Lane


@dataclass(frozen=True, slots=True)
class LaneLoad:
    """A lane at one moment.

    `slots`: of one worker, as the live ones say, or the settings where none lives. `oldest_seconds`: since when the oldest of its
    calls has waited; `None` where that is not known. `paused`: calls that wait in queues which operators have paused, and are not
    among those that are `waiting`.
    """

    lane: Lane
    running: int
    waiting: int
    workers: int
    slots: int
    oldest_seconds: float | None
    paused: int = 0

    @property
    def wanted(self) -> int:
        """The number of workers that have a slot for each of these calls."""
        return math.ceil((self.running + self.waiting) / self.slots)


def lane_load(facts: FleetFacts, lane: Lane, *, usual_slots: int) -> LaneLoad | None:
    """Return the load of a lane, `None` if the broker does not say what waits; `usual_slots`: of a worker without a note."""
    if facts.broker_error is not None:
        return None
    queues = facts.of_lane(lane)
    slots = next((one.slots for one in facts.lanes if one.lane == lane), ())
    ages = [queue.oldest_seconds for queue in queues if queue.waiting and not queue.is_paused]
    known = [age for age in ages if age is not None]
    return LaneLoad(
        lane,
        running=sum(queue.running for queue in queues),
        waiting=sum(queue.waiting or 0 for queue in queues if not queue.is_paused),
        workers=len(slots),
        slots=max(min(slots, default=usual_slots), 1),
        oldest_seconds=max(known, default=None if ages else 0.0),
        paused=sum(queue.waiting or 0 for queue in queues if queue.is_paused),
    )
