"""Steps through a coroutine by hand: in a greenlet, or in the asyncio task that awaits it."""

import contextlib
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


class JobKilled(BaseException):
    """Unwinds the tracer of a job whose end is recorded elsewhere: nothing is stored for it."""


def drive(steps: Generator[Any, Any, T], suspend: Callable[[Any], object]) -> T:
    """Step through a coroutine in this greenlet; `suspend` hands over what it waits for, and returns when that is done."""
    error: BaseException | None = None
    try:
        while True:
            try:
                waited_for = steps.send(None) if error is None else steps.throw(error)
            except StopIteration as stop:
                result: T = stop.value
                return result
            error = None
            try:
                suspend(waited_for)
            except JobKilled:
                _close(steps)
                raise
            except BaseException as exc:  # noqa: BLE001 - thrown into the coroutine in the next round
                error = exc
    finally:
        del error  # it refers to this frame, and this frame to it


def driven(
    steps: Coroutine[Any, Any, T], take_interrupt: Callable[[], BaseException | None]
) -> Generator[Any, None, T]:
    """Step through a coroutine in the task that awaits this; where it waits, an interrupt comes before all else."""
    error: BaseException | None = None
    try:
        while True:
            try:
                waited_for = steps.send(None) if error is None else steps.throw(error)
            except StopIteration as stop:
                result: T = stop.value
                return result
            except GeneratorExit as exc:  # its own: from here it would look as if the task had been dropped
                raise RuntimeError("coroutine raised GeneratorExit") from exc
            error = None
            try:
                yield waited_for
            except GeneratorExit:  # the loop is closed, or the task dropped
                _close(steps)
                raise
            except BaseException as exc:  # noqa: BLE001 - thrown into the coroutine in the next round
                error = take_interrupt() or exc
            else:
                error = take_interrupt()
            if isinstance(error, JobKilled):
                _close(steps)
                raise error
    finally:
        del error  # as above


def _close(steps: Generator[Any, Any, Any] | Coroutine[Any, Any, Any]) -> None:
    """End a coroutine. One that swallows even this stays behind, and so does what its cleanup raises."""
    with contextlib.suppress(Exception):
        steps.close()
