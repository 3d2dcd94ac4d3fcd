"""Makes a module's tool of a function in another process: a call is sent to the folder's process, or to one of its own, and its reply comes back."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from toolfleet_modules.hosts.folder.frames import FramesClosed, Head
from toolfleet_modules.hosts.folder.tool_process import LoadStopped, ProcessLost, SentCall, ToolProcess
from toolfleet_modules.once.served_tool import RunMeans, ServedRun
from toolfleet_modules.requests.reply import Reply
from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.contracts.call_context import Context
from toolfleet_registry.functions.failures import ModuleBusy
from toolfleet_registry.functions.threads import NotBegun
from toolfleet_registry.spans import carried

_RETURN_SECONDS = 1.0  # until there may be a process again

_BUSY_SECONDS = 1.0
_STUCK_SECONDS = 1.0  # after a call's end, until a check whether its process still takes messages


class SharedLane:
    """One process for all calls; `process` is replaced when it has ended.

    With a `successor`, calls that come when the process is gone go there: they were admitted a moment before it took
    over.
    """

    def __init__(self) -> None:
        self.process: ToolProcess | None = None
        self.successor: SharedLane | None = None

    @asynccontextmanager
    async def taken(self) -> AsyncGenerator[ToolProcess]:
        """Give the process that there is. Raises `ModuleBusy` if there is none."""
        lane = self
        while lane.process is None and lane.successor is not None:
            lane = lane.successor
        if lane.process is None or lane.process.is_lost:
            raise ModuleBusy(_RETURN_SECONDS)
        yield lane.process


class OwnProcessLane:
    """A process for each call, at most `most` at once: one that has come to its end is used again."""

    def __init__(self, make: Callable[[], Awaitable[ToolProcess]], *, most: int) -> None:
        self._make = make
        self._slots = asyncio.Semaphore(most)
        self._idle: list[ToolProcess] = []
        self._is_closed = False

    @asynccontextmanager
    async def taken(self) -> AsyncGenerator[ToolProcess]:
        """Wait for room, and give a process. One whose call was not answered is ended."""
        async with self._slots:
            process = await self._next()
            try:
                yield process
            finally:
                if process.is_lost or process.in_flight or self._is_closed:
                    process.kill()
                    await asyncio.shield(process.end())
                else:
                    self._idle.append(process)

    async def _next(self) -> ToolProcess:
        while self._idle:
            process = self._idle.pop()
            if not process.is_lost:
                return process
        return await self._make()

    async def aclose(self) -> None:
        """End those that are idle; the others end with their calls."""
        self._is_closed = True
        idle, self._idle = self._idle, []
        with contextlib.suppress(OSError):
            await asyncio.gather(*(each.end() for each in idle))


Lane: TypeAlias = SharedLane | OwnProcessLane
"""Gives calls their process."""


@dataclass(frozen=True, slots=True)
class HostedTool:
    """A tool of the file `stem`; `lane` has the processes that run it.

    `is_alone`: a call has its process for itself. `secrets`: the names of the secrets that its calls get.
    """

    definition: ToolDefinition
    argument_names: frozenset[str]
    stem: str
    lane: Lane
    is_alone: bool = False
    secrets: Sequence[str] = ()

    def begin(self, arguments: Mapping[str, Any], context: Context, means: RunMeans) -> "HostedRun":
        """A run with these arguments, which its process checks."""
        del means  # its process has its own
        return HostedRun(self, context, arguments)


@dataclass(frozen=True, slots=True)
class HostedRun(ServedRun[HostedTool]):
    """One run."""

    arguments: Mapping[str, Any]

    async def run(self) -> Reply:
        """Run it in its process. Raises `ModuleBusy`, `NotBegun` and `asyncio.CancelledError`."""
        try:
            async with self.tool.lane.taken() as process:
                return await self._run_in(process)
        except (LoadStopped, OSError):  # of a process that was started for this call
            raise ModuleBusy(_BUSY_SECONDS) from None

    async def _run_in(self, process: ToolProcess) -> Reply:
        self.check_begin()
        try:
            report, log = self.context._report, self.context._log  # noqa: SLF001 - made for this run
            number, call = process.begin(self._head(process), _written(self.arguments), report, log)
        except FramesClosed:
            raise ModuleBusy(_BUSY_SECONDS) from None
        try:
            return await self._answer(number, call, process)
        except ProcessLost:
            return self._lost(await process.exit_words())

    async def _answer(self, number: int, call: SentCall, process: ToolProcess) -> Reply:
        """Return the answer.

        If stopped, the call's process decides the result, unless it takes no messages any more.
        """
        is_cancelled = False
        while not call.answer.done():
            try:
                await asyncio.wait({call.answer}, timeout=_STUCK_SECONDS if is_cancelled else None)
            except asyncio.CancelledError:
                is_cancelled = True
                process.cancel(number)
                continue
            if is_cancelled and not call.answer.done() and (self.tool.is_alone or not await process.is_alive()):
                process.kill()
                await asyncio.wait({call.answer})
                raise asyncio.CancelledError
        return self._reply(*call.answer.result())

    def _reply(self, head: Head, body: bytes) -> Reply:
        kind = head.get("kind")
        if kind == "busy":
            raise ModuleBusy(float(head["seconds"]))
        if kind == "not_begun":
            raise NotBegun
        if kind != "reply":
            raise asyncio.CancelledError
        return Reply(
            body.decode(),
            is_success=head.get("success") is True,
            surely_nothing=head.get("nothing") is True,
            is_stopped=head.get("stopped") is True,
        )

    def _lost(self, how: str) -> Reply:
        error = f"{self.name} did not end: the process that ran it ended in the middle ({how})."
        return Reply.lost(self.name, error, retryable=self.is_repeatable)

    def _head(self, process: ToolProcess) -> Head:
        context, known = self.context, self.context._agent_context  # noqa: SLF001 - made for this run
        trace = carried()
        return {
            "file": self.tool.stem,
            "tool": self.name,
            "call_id": context.call_id,
            "user_id": context.user_id,
            "permission": context.permission,
            "log_level": context.log_level,
            "secrets": process.secrets.plain(self.tool.secrets),
            "trace": {} if trace is None else trace.headers,
            "conversation": context.conversation.model_dump(exclude_none=True),
            "agent_context": None if known is None else known.model_dump(mode="json", exclude_defaults=True),
            "ends_at": context._ends_at,  # noqa: SLF001 - on this machine's clocks, which its processes share
            "begin_by": context._last_moment(),  # noqa: SLF001 - as above
        }


def _written(arguments: Mapping[str, Any]) -> bytes:
    return json.dumps(arguments, separators=(",", ":")).encode()
