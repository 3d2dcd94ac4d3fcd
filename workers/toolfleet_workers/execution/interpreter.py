"""Runs steps of programs in processes of Monty, an interpreter of Python for code that a model has written.

A program has no files, network or environment there, and is bounded in time and memory. Its steps are repeatable: the
clock stands still at its creation, and random numbers come from its id.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic_core import from_json

from toolfleet_registry.contracts import ErrorCode
from toolfleet_registry.system.loggers import get_logger

if TYPE_CHECKING:
    from pydantic_monty import Monty, MontySession, OSPolicy, ResourceLimits, SyncSnapshot

log = get_logger(__name__)

PROCESSES = 2
"""Processes of Monty, each with a thread that waits for it: a program that uses its time up delays few others."""

_OPENING = Lock()  # the pool, by the first of its threads
_SCRIPT = "program.py"
_LONGEST_TRACEBACK = 2048  # characters
_HEAD = b"MONTY\0"  # of every snapshot; the two bytes that follow are its format
_HUNG_SECONDS = (
    15  # without an answer, more than a program may use: its process is stopped, or swapped out, and is replaced
)
_LIMITS: "ResourceLimits" = {
    "max_feed_duration_secs": 10,  # of the whole program: the time that is used goes with its snapshots
    "max_turn_duration_secs": 1,  # between two calls
    "max_memory": 32 << 20,
    "max_suspensions": 500,  # in a step
    "max_recursion_depth": 200,
}
_NO_JSON = "no JSON: use None, bool, numbers, str, lists and dicts with text keys, not too deep"


@dataclass(frozen=True, slots=True)
class Called:
    """A call that a program has made; `monty_id` is its number in the snapshot."""

    monty_id: int
    tool_name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Suspended:
    """A program that waits: for `calls`, which are new, and others, all of them `pending`."""

    snapshot: bytes
    calls: tuple[Called, ...]
    pending: frozenset[int]


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a program, with its value as JSON has it."""

    value: Any


@dataclass(frozen=True, slots=True)
class Broken:
    """A program that has failed; `text` is for the model that wrote it."""

    code: ErrorCode
    text: str


@dataclass(frozen=True, slots=True)
class Returned:
    """The value that a call returns."""

    value: Any


@dataclass(frozen=True, slots=True)
class Raised:
    """The text of the `RuntimeError` that a call raises."""

    text: str


Reply: TypeAlias = Returned | Raised
Step: TypeAlias = Suspended | Finished | Broken
Functions: TypeAlias = Callable[[str], str | None]
"""Returns the tool that a function's name stands for; `None` if there is none."""


class SnapshotNotRead(Exception):
    """A snapshot that this Monty cannot read, or that does not wait for a call."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of a step in this process: so many calls, with so many bytes of arguments, or a value of so many."""

    calls: int = 100
    value_bytes: int = 2 * 2**20


class Interpreter:
    """Begins and resumes programs. Its processes belong to this process, and start with the first step."""

    def __init__(self, bounds: Bounds | None = None) -> None:
        self._bounds = bounds or Bounds()

    async def begin(self, source: str, *, program_id: str, created_at: float, functions: Functions) -> Step:
        """Run a program until it ends, or all that it does waits for calls."""
        policy: OSPolicy = {
            "datetime": datetime.fromtimestamp(created_at, UTC),
            "sleep": "zero",
            "random_start": {"seed": program_id},
        }

        def start(pool: "Monty") -> Step:
            with pool.checkout(script_name=_SCRIPT, limits=_LIMITS, os_policy=policy) as session:
                return _until_it_waits(session.feed_start(source, print_callback=_ignored), functions, self._bounds)

        return await _in_thread(start)

    async def resume(self, snapshot: bytes, replies: Mapping[int, Reply], *, functions: Functions) -> Step:
        """Hand replies over to a program that waits, by its own numbers, and run it on. Others than the pending ones are left out.

        Raises `SnapshotNotRead`.
        """

        def start(pool: "Monty") -> Step:
            with pool.checkout() as session:  # the limits come with the snapshot
                return _resumed(session, snapshot, replies, functions, self._bounds)

        return await _in_thread(start)


def format_of(snapshot: bytes) -> int:
    """Return a snapshot's format. Raises `ValueError` for what is no snapshot of Monty's."""
    if not snapshot.startswith(_HEAD):
        raise ValueError("This is no snapshot of Monty's.")
    return int.from_bytes(snapshot[len(_HEAD) : len(_HEAD) + 2], "little")


async def _in_thread(start: "Callable[[Monty], Step]") -> Step:
    return await asyncio.get_running_loop().run_in_executor(_threads(), partial(_step, start))


@cache
def _threads() -> ThreadPoolExecutor:
    # Of their own: where a program uses its time up, other work of this process does not wait for a thread.
    return ThreadPoolExecutor(PROCESSES, "program")


@cache
def _pool() -> "Monty":
    from pydantic_monty import Monty  # 60 ms, in a thread: most workers never have a program

    pool = Monty(min_processes=1, max_processes=PROCESSES, request_timeout=_HUNG_SECONDS)
    pool.__enter__()  # its processes end with this one
    return pool


def _step(start: "Callable[[Monty], Step]", *, is_repeat: bool = False) -> Step:
    from pydantic_monty import MontyCrashedError, MontyError, MontyRuntimeError, MontySyntaxError

    with _OPENING:
        pool = _pool()
    try:
        return start(pool)
    except (MontySyntaxError, MontyRuntimeError) as exc:
        return Broken(
            "invalid_arguments" if isinstance(exc, MontySyntaxError) else "module_error", _tail(exc.display())
        )
    except MontyCrashedError as exc:
        if exc.timed_out and f"{_HUNG_SECONDS}s" in str(exc):  # not the program's fault: it is due again
            raise
        if exc.timed_out:
            return Broken("module_error", "The program has used more time than it may.")
        log.warning("program_process_lost", is_repeat=is_repeat, reason=str(exc))
        if is_repeat:
            return Broken("internal", "The program cannot be run: its process ends each time.")
        return _step(start, is_repeat=True)
    except MontyError as exc:  # a value that cannot go in or out
        return Broken("module_error", f"The program cannot go on: {exc}")


def _resumed(
    session: "MontySession", data: bytes, replies: Mapping[int, Reply], functions: Functions, bounds: Bounds
) -> Step:
    from pydantic_monty import ExternalSettledResult, FutureSnapshot, MontyRuntimeError

    try:
        snapshot = session.load_snapshot(data, print_callback=_ignored)
    except MontyRuntimeError as exc:  # it is sealed: another Monty has written it
        raise SnapshotNotRead(str(exc)) from exc
    if not isinstance(snapshot, FutureSnapshot):
        raise SnapshotNotRead("It waits for no call.")
    answers = dict[int, "ExternalSettledResult"]()
    for monty_id in replies.keys() & set(snapshot.pending_call_ids):
        match replies[monty_id]:
            case Returned(value):
                answers[monty_id] = {"return_value": value}
            case Raised(text):
                answers[monty_id] = {"exc_type": "RuntimeError", "message": text}
    if not answers:
        return Suspended(data, (), frozenset(snapshot.pending_call_ids))
    return _until_it_waits(snapshot.resume(answers), functions, bounds)


def _until_it_waits(snapshot: "SyncSnapshot", functions: Functions, bounds: Bounds) -> Step:
    """Answer a program until it ends or waits. Its calls are made later, by their order."""
    from pydantic_monty import FunctionSnapshot, FutureSnapshot, NameLookupSnapshot

    calls, size = list[Called](), 0
    while True:
        if isinstance(snapshot, NameLookupSnapshot):
            is_tool = snapshot.object_id is None and functions(snapshot.variable_name) is not None
            snapshot = snapshot.resume(value=_stub(snapshot.variable_name)) if is_tool else snapshot.resume()
        elif isinstance(snapshot, FunctionSnapshot):
            if snapshot.is_os_function:  # imports of what Monty lacks, files, environment
                snapshot = snapshot.resume_not_handled()
                continue
            arguments = snapshot.kwargs
            size += _least_size(
                arguments, bounds.value_bytes - size
            )  # also of a call that is none: it takes its time here
            if size > bounds.value_bytes:
                return _too_large("The arguments of its calls have", bounds)
            called = _called(snapshot, arguments, functions)
            if isinstance(called, Called):
                calls.append(called)
                if len(calls) > bounds.calls:
                    return Broken("module_error", f"It makes more than {bounds.calls} calls.")
                snapshot = snapshot.resume({"future": ...})
            else:
                snapshot = snapshot.resume({"exc_type": called[0], "message": called[1]})
        elif isinstance(snapshot, FutureSnapshot):
            return Suspended(snapshot.dump(), tuple(calls), frozenset(snapshot.pending_call_ids))
        elif calls:
            name = calls[0].tool_name
            return Broken(
                "module_error", f"The program has ended without its call of {name!r}: write `await` before it."
            )
        else:
            return _value(snapshot.output, bounds)


def _value(output: Any, bounds: Bounds) -> Finished | Broken:
    if _least_size(output, bounds.value_bytes) <= bounds.value_bytes:
        try:
            value, size = _as_json(output)
        except ValueError:
            return Broken("module_error", f"The program's value is {_NO_JSON}.")
        if size <= bounds.value_bytes:
            return Finished(value)
    return _too_large("Its value has", bounds)


def _called(snapshot: Any, arguments: dict[str, Any], functions: Functions) -> "Called | tuple[Any, str]":
    """Return a call, or the type and the text of the error that it is instead."""
    name = str(snapshot.function_name)
    if snapshot.object_id is not None or (tool_name := functions(name)) is None:
        return "NameError", f"name {name!r} is not defined: no tool of yours has this name, or several have it"
    if snapshot.args:
        return "TypeError", f"{name}() takes keyword arguments only"
    try:
        return Called(snapshot.call_id, tool_name, _as_json(arguments)[0])
    except ValueError:
        return "TypeError", f"an argument of {name}() is {_NO_JSON}"


def _least_size(value: Any, most: int) -> int:
    """Return how many bytes a value has as JSON at least, counted until they are more than `most`.

    In JSON a list that is in others twice is there twice, so that a small value may have no end.
    """
    size, left = 0, [value]
    while left and size <= most:
        each = left.pop()
        if isinstance(each, str):
            size += len(each)
        elif isinstance(each, int):
            size += each.bit_length() // 4
        elif isinstance(each, dict | list | tuple):
            parts = [*each, *each.values()] if isinstance(each, dict) else each
            size += 2 * len(parts)
            if size <= most:
                left += parts
    return size


def _as_json(value: Any) -> tuple[Any, int]:
    """Return a value as JSON has it, and its bytes. Raises `ValueError`, also for one that is deeper than messages may be."""
    try:
        text = json.dumps(value, allow_nan=False)
        # It reads a depth of 201: at one of 200 Monty has put words in the place of what is deeper.
        return from_json(f"[[{text}]]")[0][0], len(text)
    except (TypeError, RecursionError) as exc:
        raise ValueError(_NO_JSON) from exc


def _too_large(what: str, bounds: Bounds) -> Broken:
    return Broken("module_error", f"{what} more than {bounds.value_bytes} bytes: keep large values elsewhere.")


def _stub(name: str) -> Callable[..., None]:
    """Return what Monty takes for a function of this name."""

    def stub(**_: Any) -> None: ...

    stub.__name__ = name
    return stub


def _ignored(stream: str, text: str) -> None:
    """Print nothing."""


def _tail(traceback: str) -> str:
    return traceback if len(traceback) <= _LONGEST_TRACEBACK else f"...{traceback[-_LONGEST_TRACEBACK:]}"
