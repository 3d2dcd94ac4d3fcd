"""Writes and reads canaries: messages that a worker answers itself, by which one sees that a queue is served, and how soon.

A canary is no call: no tool runs, and nothing counts it. Workers of versions that do not know it drop it, and say so.
"""

import re
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, ValidationError

from toolfleet_registry.contracts.message import DEFERS_BUILD

TASK = "toolfleet.canary"
"""The task that answers a canary. Its arguments: the canary's id, and the module that the worker asks for its health, '' for none."""

KEPT_SECONDS = 60
"""How long an answer is kept for whoever has asked."""

_ID = re.compile(r"[0-9a-f]{32}")


class CanaryAnswer(BaseModel):
    """A worker's answer.

    Times are the fleet's, in seconds since the epoch; `health` is that of the module, if it was asked.

    `worker`: its host and process id. `version`: the newest version of messages that it reads; `release` is
    Toolfleet's. `clock_lead`: by how many seconds its machine is ahead of the fleet's time.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=DEFERS_BUILD)

    worker: str
    version: int
    release: str = ""
    taken_at: float
    answered_at: float
    health: str | None = None
    health_seconds: float | None = None
    clock_lead: float = 0.0


def is_canary_id(text: object) -> bool:
    """Return whether a message's argument may be a canary's id: it becomes a part of a key."""
    return isinstance(text, str) and _ID.fullmatch(text) is not None


def read_answers(texts: Sequence[bytes | str]) -> list[CanaryAnswer]:
    """Return the answers in these texts, in their order; invalid ones are left out."""
    found = list[CanaryAnswer]()
    for text in texts:
        try:
            found.append(CanaryAnswer.model_validate_json(text))
        except ValidationError:
            continue
    return found
