"""Asks a module's own function where the calls are that it has accepted."""

import inspect
from collections.abc import Callable
from typing import Any

from toolfleet_modules.requests.status import StatusAnswer


class FunctionFollower:
    """`function(handle, cancel=…)`, async or plain, makes a `StatusAnswer`. A plain one runs in a thread."""

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise TypeError(f"{function!r} is no function.")
        self._function = function
        self._is_plain = not inspect.iscoroutinefunction(function)

    async def status(self, call_id: str, handle: str, *, cancel: bool) -> StatusAnswer:
        """As `Follower` has it. Raises `TypeError` for what is no answer."""
        del call_id  # an author's handle says it all
        if self._is_plain:
            import asyncio  # noqa: PLC0415 - a manifest needs none

            answer = await asyncio.to_thread(self._function, handle, cancel=cancel)
        else:
            answer = self._function(handle, cancel=cancel)
        if inspect.isawaitable(answer):
            answer = await answer
        if not isinstance(answer, StatusAnswer):
            raise TypeError(f"status returned {type(answer).__name__}, and no StatusAnswer.")
        return answer
