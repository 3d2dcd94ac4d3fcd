"""Keeps `SystemExit` and `KeyboardInterrupt` inside a tool's own tasks: asyncio would end the whole loop with them."""

import asyncio
from collections.abc import Coroutine, Generator
from contextvars import ContextVar
from typing import Any

IN_TOOL: ContextVar[bool] = ContextVar("toolfleet_in_tool", default=False)
"""Whether what runs now belongs to a tool: in its context, which its tasks inherit."""


class TaskExit(Exception):
    """A task that a tool has made wanted to end the process. Its cause is what was raised."""


def guard_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Have the loop guard tasks that are made inside tools. Its previous task factory is still used."""
    before: Any = loop.get_task_factory()
    if isinstance(before, _Factory):
        return
    loop.set_task_factory(_Factory(before))


class _Factory:
    def __init__(self, before: Any) -> None:
        self._make: Any = before or (lambda loop, coro, **facts: asyncio.Task(coro, loop=loop, **facts))

    def __call__(self, loop: asyncio.AbstractEventLoop, coro: Any, **facts: Any) -> Any:
        return self._make(loop, _Guarded(coro) if IN_TOOL.get() else coro, **facts)


class _Guarded(Coroutine[Any, Any, Any]):
    """A coroutine as it is, but for the two exceptions. No `async def` around it: one that never starts would leave it unawaited."""

    __slots__ = ("_coro",)

    def __init__(self, coro: Any) -> None:
        self._coro = coro

    def send(self, value: Any) -> Any:
        try:
            return self._coro.send(value)
        except (SystemExit, KeyboardInterrupt) as exc:
            raise TaskExit(type(exc).__name__) from exc

    def throw(self, *error: Any) -> Any:
        try:
            return self._coro.throw(*error)
        except (SystemExit, KeyboardInterrupt) as exc:
            raise TaskExit(type(exc).__name__) from exc

    def close(self) -> None:
        self._coro.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        raise TypeError("a task's coroutine is awaited by its task")

    def __getattr__(self, name: str) -> Any:  # its name and its frames, for tracebacks and `inspect`
        return getattr(self._coro, name)
