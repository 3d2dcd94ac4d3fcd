"""Translates what a server's task asks, and what it is answered: each question once, and its answer again where that was lost."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from toolfleet_registry.contracts.inputs import CallInputs

_TASK, _ASKED = "task", "asked"
_DIGITS = 16  # of a question's digest


@dataclass(frozen=True, slots=True)
class TaskInputs:
    """The questions of a task: `asked` has the digest of each question by its key. `responses`: the latest answers.

    A task's keys are for one question each. A server that breaks that is asked all the same: another question has
    another digest.
    """

    asked: Mapping[str, str] = field(default_factory=dict)
    responses: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, inputs: CallInputs | None, handle: str) -> Self:
        """Parse the task's part of these answers; empty if they are not of the task `handle`."""
        if inputs is None or handle_in(inputs.state) != handle:
            return cls()
        asked = json.loads(inputs.state).get(_ASKED)
        return cls(asked if isinstance(asked, dict) else {}, inputs.responses)

    def new(self, requests: Mapping[str, Any]) -> dict[str, Any]:
        """Return the requests that were not asked yet."""
        return {key: request for key, request in requests.items() if self.asked.get(key) != _digest(request)}

    def due(self, requests: Mapping[str, Any]) -> dict[str, Any]:
        """The answers to those that the server still waits for."""
        new = self.new(requests)
        return {key: self.responses[key] for key in requests if key not in new and key in self.responses}

    def without(self, responses: Mapping[str, Any]) -> "TaskInputs":
        """The same as if the questions of these answers had not been asked."""
        return TaskInputs({key: digest for key, digest in self.asked.items() if key not in responses})

    def state_with(self, requests: Mapping[str, Any], handle: str) -> str:
        """The state that comes back with the answers to these, too."""
        asked = {**self.asked, **{key: _digest(request) for key, request in requests.items()}}
        return json.dumps({_TASK: handle, _ASKED: asked}, separators=(",", ":"))


def handle_in(state: str) -> str | None:
    """Return the handle of the task whose question has this state; `None` for a state of no task."""
    try:
        found = json.loads(state)
    except ValueError:
        return None
    handle = found.get(_TASK) if isinstance(found, dict) else None
    return handle if isinstance(handle, str) else None


def _digest(request: object) -> str:
    text = json.dumps(request, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
