"""Holds the one recorder of a process: `calls` is `None` while metrics are off, and costs whoever asks one comparison."""

from toolfleet_registry.metrics.recorder import CallRecorder, Recorder

calls: CallRecorder | None = None
"""Where calls are counted. Written by `start` and `stop` only."""

_started = 0


def start(*, most_names: int) -> Recorder:
    """Count from now on, until `stop`; what is counted already, if somebody has begun before."""
    global calls, _started  # noqa: PLW0603 - one recorder a process, whoever asks for it
    _started += 1
    if calls is None:
        calls = CallRecorder(Recorder(most_names=most_names))
    return calls.recorder


def stop() -> None:
    """Count no more, and forget, if nobody else has begun."""
    global calls, _started  # noqa: PLW0603 - as above
    _started -= 1
    if _started <= 0:
        calls, _started = None, 0
