"""Reads where a call is, and how far."""

from typing import Literal, Self

from toolfleet_registry.contracts.call_context import Progress
from toolfleet_registry.contracts.inputs import PendingInput

Place = Literal["queued", "running", "retrying", "input_required", "waiting_approval", "done", "unknown"]


class CallStatus(str):
    """`queued`, `running`, `retrying`, `input_required`, `waiting_approval`, `done`, or `unknown`: Redis does not answer now. Equal to that plain text."""

    __slots__ = ("inputs", "progress")

    progress: Progress | None
    """What the call said last of how far it is, while it has not ended; `None` if it says nothing."""
    inputs: PendingInput | None
    """What the call asks, while it is `input_required`."""

    def __new__(cls, place: Place, progress: Progress | None = None, inputs: PendingInput | None = None) -> Self:  # noqa: D102 - the class says it
        status = super().__new__(cls, place)
        status.progress, status.inputs = progress, inputs
        return status

    def __getnewargs__(self) -> tuple[str, Progress | None, PendingInput | None]:  # type: ignore[override] # what `__new__` takes
        return str(self), self.progress, self.inputs


DONE = CallStatus("done")
UNKNOWN = CallStatus("unknown")
