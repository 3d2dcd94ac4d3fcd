"""Holds the one recorder of a process: `calls` is `None` while metrics are off, and costs whoever asks one comparison."""

from toolfleet_registry.metrics.recorder import CallRecorder, Recorder

calls: CallRecorder | None = None
"""Where calls are counted. Written by `start` and `stop` only."""


def start(*, most_names: int) -> Recorder:
    """Count from now on; what is counted already, if somebody has begun before."""
    global calls  # noqa: PLW0603 - one endpoint a process: so it is with its worker
    if calls is None:
        calls = CallRecorder(Recorder(most_names=most_names))
    return calls.recorder


def stop() -> None:
    """Count no more, and forget."""
    global calls  # noqa: PLW0603 - as above
    calls = None
