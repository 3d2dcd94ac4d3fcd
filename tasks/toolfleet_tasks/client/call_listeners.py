"""Surrounds the waiting for a call's end with what its caller wants to hear of it meanwhile, and to answer."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.contracts.inputs import PendingInput
from toolfleet_registry.errors import FleetUnavailable, InputNotTaken
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.aio import end
from toolfleet_tasks.calls.handle import CallHandle
from toolfleet_tasks.client.progress_listener import OnProgress, telling

log = get_logger(__name__)

OnInput: TypeAlias = Callable[[PendingInput], Awaitable[Mapping[str, Any] | None]]
"""Answers what a call asks, by one object for each key of its requests; `None` takes the call back."""

_STOP_SECONDS = 60.0  # a step of the waiting
_AGAIN_SECONDS = 1.0  # until an answer is given again that Redis has not confirmed


@contextlib.asynccontextmanager
async def listening(
    handle: CallHandle, on_progress: OnProgress | None, on_input: OnInput | None
) -> AsyncGenerator[None]:
    """Call `on_progress` with each step, and answer each question with `on_input`, while inside."""
    async with contextlib.AsyncExitStack() as stack:
        if on_input is not None:
            task = asyncio.create_task(_answer(handle, on_input), name="toolfleet-on-input")
            stack.push_async_callback(end, [task])
        if on_progress is not None:
            await stack.enter_async_context(telling(handle.progress(), on_progress))
        yield


async def _answer(handle: CallHandle, on_input: OnInput) -> None:
    """Answer until the call ends. If `on_input` fails, the call is cancelled: it would wait in vain."""
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


async def _given(handle: CallHandle, asked: PendingInput, responses: Mapping[str, Any]) -> None:
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
