"""Runs local functions: async ones on the loop, plain ones in threads, a bounded number at once; writes what they return.

Nothing that a function does ends more than its call. One that does not end with its call is left behind, and a plain one
keeps its thread for so long.
"""

import asyncio
import dataclasses
import functools
import inspect
import json
import threading
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Self

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from toolfleet_registry.contracts.attempts import UNEXPLAINED
from toolfleet_registry.contracts.call_context import Context, run_for
from toolfleet_registry.contracts.calls import MOST_FILES, ResultFile
from toolfleet_registry.errors import BodyTooLarge
from toolfleet_registry.functions.files import File, Gathered
from toolfleet_registry.functions.threads import NotBegun, Threads
from toolfleet_registry.local.local_function import LocalFunction
from toolfleet_registry.system.http_bodies import loads_strict
from toolfleet_registry.system.loggers import get_logger

log = get_logger(__name__)

_TURN_BYTES = 2**16  # written before other calls get their turn

_GRACE_SECONDS = 0.5  # for a cancelled function to clean up before it is left behind; less than the pool gives us

ANSWER_SECONDS = 0.5
"""For the answer that there was no thread: what is left of a call's time, so that it reaches the agent before the deadline."""


async def as_json(value: Any, *, max_bytes: int) -> tuple[Any, tuple[ResultFile, ...]]:
    """Return the value as decoded JSON, and its files, which are replaced by their labels.

    Tuples are lists, names are strings; a pydantic model or a dataclass is its fields. Raises `BodyTooLarge` for more
    than `max_bytes`, files as base64 included, and `ValueError`, with a reason that repeats no value, for a value that
    is no JSON.
    """
    gathered, text, turn = _Bounded(max_bytes), bytearray(), _TURN_BYTES
    try:
        for piece in json.JSONEncoder(allow_nan=False, default=gathered.plain).iterencode(value):
            text += piece.encode()
            gathered.require_space(len(text))
            if len(text) > turn:
                turn = len(text) + _TURN_BYTES
                await asyncio.sleep(0)
    except BodyTooLarge:
        raise
    except TypeError as exc:  # names types only
        raise ValueError(str(exc)) from None
    except (ValueError, RecursionError, RuntimeError) as exc:
        gathered.require_space(len(text))  # it may be this that pydantic words in its own way
        raise ValueError(_reason(exc)) from None
    except Exception:  # noqa: BLE001 - a model's own code runs here, which may raise anything
        gathered.require_space(len(text))
        raise ValueError("a part of it cannot be read") from None
    if len(gathered.files) > MOST_FILES:
        raise ValueError(f"it has {len(gathered.files)} files; at most {MOST_FILES} can be sent")
    return loads_strict(bytes(text)), tuple(gathered.files)


class _Bounded(Gathered):
    """Takes no more than so many bytes of files as base64, before it encodes them."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self._max_bytes = max_bytes
        self._taken = 0

    def require_space(self, text_bytes: int = 0) -> None:
        """Raise `BodyTooLarge` if what has come until now is more, with so much text."""
        if self._taken + text_bytes > self._max_bytes:
            raise BodyTooLarge(self._max_bytes)

    def add(self, value: object) -> str:
        """Add a file and return its label. Raises `TypeError` for any other value."""
        if not isinstance(value, File):
            raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
        self._taken += len(value.data) * 4 // 3
        self.require_space()
        return super().add(value)

    def plain(self, value: object) -> Any:
        """Return the JSON form of a value that JSON does not have. Raises `TypeError` if there is none."""
        if isinstance(value, BaseModel):
            return value.model_dump(mode="json", context=self, fallback=self.add, warnings=False)  # they quote values
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return to_jsonable_python(value, inf_nan_mode="constants", context=self, fallback=self.add)
        return self.add(value)


def _reason(exc: Exception) -> str:
    if isinstance(exc, RecursionError) or "Circular" in str(exc):
        return "it is nested too deeply, or contains itself"
    if isinstance(exc, PydanticSerializationError):  # whose words may quote values
        return "a part of it is no JSON"
    if isinstance(exc, RuntimeError):
        return "it was changed while it was being read"
    return "it has a number that is not finite, or too long"


@dataclass(frozen=True, slots=True)
class Failure:
    """The type and place of a function's exception, without its text, which may quote anything."""

    kind: str
    stack: str

    @classmethod
    def of(cls, exc: BaseException) -> Self:
        """Describe it."""
        return cls(type(exc).__name__, "".join(traceback.format_tb(exc.__traceback__)))

    @property
    def error(self) -> str:
        """The message for the caller."""
        return f"Tool execution error: the function failed ({self.kind}); its {UNEXPLAINED}"


class FunctionRuns:
    """Runs functions of one event loop; at most `threads` of them in threads at once, further ones wait.

    With `leaves_threads`, threads whose calls have ended do not keep the loop from ending.
    """

    def __init__(self, *, threads: int, leaves_threads: bool = False) -> None:
        self._threads = Threads(threads, leaves=leaves_threads)
        self._left_behind = set[asyncio.Task[Any]]()

    async def run(
        self,
        local: LocalFunction,
        arguments: Mapping[str, Any],
        context: Context,
        *,
        require: Callable[[], object] = lambda: None,
    ) -> Any:
        """Run the function within the call's time and return its result, or the `Failure` that it raised.

        Raises `TimeoutError` if the time is over: the function is cancelled then, and told so by its context. Raises
        `NotBegun` if it was over before there was a thread, `ModuleBusy` if the machine has none or all hang, and
        anything that `require` raises, which is called immediately before the function; nothing has happened then.
        """
        begun = threading.Event()
        # In a task of its own: what the function does to its task, or with a cancellation, does not reach ours.
        called = self._called(local, arguments, context, require, begun)
        task = asyncio.create_task(called, name=f"local-{local.definition.name}")
        done = False
        try:
            if not local.is_plain or await _is_begun(task, begun, context.seconds_left):
                await asyncio.wait({task}, timeout=context.seconds_left)
            done = task.done()
        finally:
            if not task.done():
                context._cancelled = True
                await self._end(task)
        if done:
            return Failure("CancelledError", "") if task.cancelled() else task.result()
        if task.done() and not task.cancelled() and isinstance(task.exception(), NotBegun):
            raise NotBegun
        raise TimeoutError

    async def aclose(self) -> None:
        """Give functions that have outlived their calls a last chance to end."""
        for task in self._left_behind:
            task.cancel()
        if self._left_behind:
            await asyncio.wait(self._left_behind, timeout=_GRACE_SECONDS)

    async def _called(
        self,
        local: LocalFunction,
        arguments: Mapping[str, Any],
        context: Context,
        require: Callable[[], object],
        begun: threading.Event,
    ) -> Any:
        run_for(context)
        given = arguments if local.call_context is None else {**arguments, local.call_context: context}
        if not local.is_plain:
            require()
            return await _kept(functools.partial(local.function, **given))

        def may_begin() -> bool:
            require()
            if not context.cancelled:
                begun.set()
            return begun.is_set()

        returned = await self._threads.run(_keeping(local.function), given, may_begin)
        if not inspect.isawaitable(returned):
            return returned
        if context.cancelled:  # a thread's end is waited for though the call has ended; the next step is not started
            if isinstance(returned, Coroutine):
                returned.close()
            return None
        return await _kept(lambda: returned)  # a plain function that makes a coroutine, as a decorated one may

    async def _end(self, task: asyncio.Task[Any]) -> None:
        task.cancel()
        self._left_behind.add(task)
        task.add_done_callback(self._forget)
        try:
            await asyncio.wait({task}, timeout=_GRACE_SECONDS)
        finally:  # also where its agent takes a call back whose time is over here already
            if not task.done():
                log.warning("local_tool_left_behind", function=task.get_name(), grace_seconds=_GRACE_SECONDS)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._left_behind.discard(task)
        if not task.cancelled():
            task.exception()  # seen: asyncio would write it to the log


async def _is_begun(task: asyncio.Task[Any], begun: threading.Event, seconds: float | None) -> bool:
    """Wait for the task's end, or until it is too late to start: a call that waited in vain gets its answer while its client still listens."""
    if seconds is not None:
        await asyncio.wait({task}, timeout=seconds - min(ANSWER_SECONDS, seconds / 4))
    return task.done() or begun.is_set()


async def _kept(begin: Callable[[], Awaitable[Any]]) -> Any:
    """Return the result, or the `Failure` that was raised. `SystemExit` would otherwise end the process."""
    try:
        return await begin()
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as exc:  # noqa: BLE001 - nothing that a function does ends more than its call
        return Failure.of(exc)


def _keeping(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same for a plain one: what it raises cannot be mistaken for what its thread says."""

    @functools.wraps(function)
    def call(**arguments: Any) -> Any:
        try:
            return function(**arguments)
        except BaseException as exc:  # noqa: BLE001 - as above
            return Failure.of(exc)

    return call
