"""Defines what an operator has said of a queue, and which of it holds for a module."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict

from toolfleet_registry.system.loggers import get_logger

QueueCondition: TypeAlias = Literal["paused", "draining"]
"""`paused`: workers begin nothing of it; `draining`: it takes no new calls, and those that wait are run."""

LANE_PREFIX: Final = "lane:"
"""What the names of lanes begin with, where queues are named: no module's may have a colon."""

log = get_logger(__name__)


class QueueState(BaseModel):
    """The state of a queue, or of all queues of a lane, until an operator resumes it.

    A field of a later version is ignored.

    `since`: seconds since the epoch, by Redis's clock. `by`: its author; `reason`: in their own words.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    state: QueueCondition
    since: float
    by: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class QueueStates:
    """All of them at one moment, by module, and by lane as `lane:<lane>`."""

    stored: Mapping[str, QueueState] = field(default_factory=dict[str, QueueState])

    def of(self, module: str, lane: str) -> QueueState | None:
        """Return the state to show for a module's queue: `paused` before `draining`, and its own before its lane's."""
        both = [state for name in (module, lane_name(lane)) if (state := self.stored.get(name)) is not None]
        return next((state for state in both if state.state == "paused"), both[0] if both else None)

    def is_paused(self, module: str, lane: str) -> bool:
        """Return whether workers take nothing from a module's queue."""
        found = self.of(module, lane)
        return found is not None and found.state == "paused"


def lane_name(lane: str) -> str:
    """Return a lane's name among the names of queues."""
    return LANE_PREFIX + lane


def states_of(answer: Mapping[bytes, bytes]) -> QueueStates:
    """Parse the stored states. Fails open: an unreadable one is ignored, as in Redis's scripts, and logged."""
    found = dict[str, QueueState]()
    for name, text in answer.items():
        try:
            found[name.decode()] = QueueState.model_validate_json(text)
        except ValueError as exc:
            log.warning("queue_state_ignored", queue=name.decode(errors="replace"), error=str(exc))
    return QueueStates(found)
