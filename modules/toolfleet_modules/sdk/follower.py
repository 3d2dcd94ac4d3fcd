"""Asks a module's own function where the calls are that it has accepted."""

import inspect
from collections.abc import Callable
from typing import Any

from toolfleet_modules.requests.status import StatusAnswer
from toolfleet_registry.contracts.inputs.messages import CallInputs


class FunctionFollower:
    """`function(handle, cancel=…)`, async or plain, makes a `StatusAnswer`. A plain one runs in a thread.

    One that asks has a parameter `inputs`, too: what was answered last, or `None`.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise TypeError(f"{function!r} is no function.")
        self._function = function
        self._is_plain = not inspect.iscoroutinefunction(function)
        self._takes_inputs = "inputs" in inspect.signature(function).parameters

    async def status(
        self, call_id: str, handle: str, *, cancel: bool, inputs: CallInputs | None = None
    ) -> StatusAnswer:
        """As `Follower` has it. Raises `TypeError` for what is no answer, and for a question whose answer it does not take."""
        del call_id  # an author's handle says it all
        more = {"inputs": inputs} if self._takes_inputs else {}
        if self._is_plain:
            import asyncio  # noqa: PLC0415 - a manifest needs none

            answer = await asyncio.to_thread(self._function, handle, cancel=cancel, **more)
        else:
            answer = self._function(handle, cancel=cancel, **more)
        if inspect.isawaitable(answer):
            answer = await answer
        if not isinstance(answer, StatusAnswer):
            raise TypeError(f"status returned {type(answer).__name__}, and no StatusAnswer.")
        if answer.state == "input_required" and not self._takes_inputs:
            raise TypeError("status asks, and has no parameter inputs for the answer.")
        return answer
