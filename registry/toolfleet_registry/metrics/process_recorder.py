"""Holds the one recorder of a process. There is none while metrics are off, and to ask costs next to nothing."""

from toolfleet_registry.metrics.recorder import CallRecorder, Recorder
from toolfleet_registry.system.process import this_process

_MOST_NAMES = 200  # tools with series of their own, a few each; those that come later are `other`


class _Held:
    calls: CallRecorder | None = None
    started = 0


def calls() -> CallRecorder | None:
    """Return where calls are counted; `None` while they are not."""
    return this_process().part(_Held).calls


def start(*, most_names: int = _MOST_NAMES) -> Recorder:
    """Start counting, until `stop`; if counting is on already, return the existing recorder."""
    held = this_process().part(_Held)
    held.started += 1
    if held.calls is None:
        held.calls = CallRecorder(Recorder(most_names=most_names))
    return held.calls.recorder


def stop() -> None:
    """Stop counting and forget the counts, unless another part of the process still counts."""
    held = this_process().part(_Held)
    held.started -= 1
    if held.started <= 0:
        held.calls, held.started = None, 0
