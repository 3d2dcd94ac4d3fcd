"""Writes how far a call is as the protocol's progress: numbers that grow with each notification."""

from dataclasses import dataclass
from typing import Any, Final

from toolfleet_registry.contracts.call_context import Progress

PROGRESS: Final = "notifications/progress"

_WHOLE = 100.0
_STEP = 0.01  # of it, if the call's progress is unknown


@dataclass(slots=True)
class ProgressNotes:
    """The notes on one call, for the client that gave this `token`."""

    token: str | int
    _last: float = -_STEP

    def note(self, step: Progress) -> dict[str, Any]:
        """The parameters of the next notification."""
        known = None if step.fraction is None else step.fraction * _WHOLE
        self._last = max(self._last + _STEP, -1.0 if known is None else known)
        note: dict[str, Any] = {"progressToken": self.token, "progress": round(self._last, 4)}
        if known is not None:
            note["total"] = _WHOLE
        if step.message:
            note["message"] = step.message
        return note
