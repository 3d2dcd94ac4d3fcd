"""Calls a caller's functions with the progress and the questions of a call while its result is waited for."""

import asyncio
import contextlib
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.contracts.call_context import Progress
from toolfleet_registry.contracts.inputs import PendingInput
from toolfleet_registry.errors import FleetUnavailable, InputNotTaken
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.aio import end

if TYPE_CHECKING:
    from toolfleet_tasks.calls.handle import CallHandle

log = get_logger(__name__)

OnProgress: TypeAlias = Callable[[Progress], object]
"""Gets each step; what it returns is awaited, if it can be."""

Step = TypeVar("Step")

_LAST_SECONDS = 1.0  # for the function to take the last steps, once the result is there
_END_SECONDS = 0.5  # for one that is at work then to let itself be cancelled

OnInput: TypeAlias = Callable[[PendingInput], Awaitable[Mapping[str, Any] | None]]
"""Answers what a call asks, by one object for each key of its requests; `None` takes the call back."""

_STOP_SECONDS = 60.0  # a step of the waiting
_AGAIN_SECONDS = 1.0  # until an answer is given again that Redis has not confirmed


@contextlib.asynccontextmanager
async def listening(
    handle: "CallHandle", on_progress: OnProgress | None, on_input: OnInput | None
) -> AsyncGenerator[None]:
    """Call `on_progress` with each step, and answer each question with `on_input`, while inside."""
    async with contextlib.AsyncExitStack() as stack:
        if on_input is not None:
            task = asyncio.create_task(_answer(handle, on_input), name="toolfleet-on-input")
            stack.push_async_callback(end, [task])
        if on_progress is not None:
            await stack.enter_async_context(telling(handle.progress(), on_progress))
        yield


@contextlib.asynccontextmanager
async def telling(steps: AsyncGenerator[Step], on_progress: Callable[[Step], object]) -> AsyncGenerator[None]:
    """Call `on_progress` with each step, one after the other, while inside, and until the steps end or a second later.

    Its exceptions are logged once and lose neither the next step nor the result; for a function that hangs, the result
    waits no longer than that second and half of one.
    """
    task = asyncio.create_task(_tell(steps, on_progress), name="toolfleet-on-progress")
    try:
        yield
        await asyncio.wait({task}, timeout=_LAST_SECONDS)
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=_END_SECONDS)


def call_listener(step: Step, on_progress: Callable[[Step], object]) -> Any:
    """Call `on_progress` with a step and return its result; `None`, with a line in the log, if it raises."""
    try:
        return on_progress(step)
    except Exception:
        log.warning("on_progress_failed", exc_info=True)
        return None


async def _tell(steps: AsyncGenerator[Step], on_progress: Callable[[Step], object]) -> None:
    async with contextlib.aclosing(steps):
        async for step in steps:
            answer = call_listener(step, on_progress)
            if inspect.isawaitable(answer):
                try:
                    await answer
                except Exception:
                    log.warning("on_progress_failed", exc_info=True)


async def _answer(handle: "CallHandle", on_input: OnInput) -> None:
    """Answer questions until the call ends. If `on_input` fails, the call is cancelled: it would wait in vain."""
    while not isinstance(asked := await handle.next_stop(_STOP_SECONDS), ToolResult):
        if asked is None:
            continue
        try:
            responses = await on_input(asked)
            if responses is None:
                await handle.cancel()
                return
            await _given(handle, asked, responses)
        except Exception:
            log.warning("on_input_failed", call_id=handle.id, exc_info=True)
            await handle.cancel()
            return


async def _given(handle: "CallHandle", asked: PendingInput, responses: Mapping[str, Any]) -> None:
    """Repeat an answer until Redis has it. Raises `ValueError` for an invalid one."""
    while True:
        try:
            await handle.answer(responses, number=asked.round)
        except InputNotTaken:  # another client has answered, or it has ended
            return
        except FleetUnavailable:
            await asyncio.sleep(_AGAIN_SECONDS)
        else:
            return
