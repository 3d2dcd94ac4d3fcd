"""Runs the tools of a folder in processes: starts and ends them with all their children, and sends them calls."""

import asyncio
import contextlib
import json
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from toolfleet_modules.calls.reply import Reply
from toolfleet_modules.calls.work import RunMeans, ServedRun
from toolfleet_modules.hosts.child_process import ChildProcess, Fence
from toolfleet_modules.hosts.folder.frames import Frames, FramesClosed, Head, LoadOutcome, LoadPlan
from toolfleet_modules.hosts.secrets import Secrets, output_without
from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.contracts.call_context import Context, LogSink, Progress, log_message_in, progress_of
from toolfleet_registry.functions.failures import ModuleBusy
from toolfleet_registry.functions.threads import NotBegun
from toolfleet_registry.spans import carried

_CHILD = "toolfleet_modules.hosts.folder.tool_child"
_START_SECONDS = 30.0  # for Python to start on a busy machine
_PONG_SECONDS = 2.0

_RETURN_SECONDS = 1.0  # until there may be a process again

_BUSY_SECONDS = 1.0
_STUCK_SECONDS = 1.0  # after a call's end, until a check whether its process still takes messages


class ProcessLost(Exception):
    """The process has ended. The message says how, in a few words."""


class LoadStopped(Exception):
    """The process did not get beyond a file: it ended there, or did not come back. `stem` is the file's name without `.py`."""

    def __init__(self, stem: str, kind: str, message: str) -> None:
        super().__init__(message)
        self.stem, self.kind = stem, kind


@dataclass(slots=True, eq=False)
class SentCall:
    """A call in the process. `answer` ends with its last message, or raises `ProcessLost`."""

    answer: asyncio.Future[tuple[Head, bytes]]
    on_progress: Callable[[Progress], object] | None = None
    log: LogSink | None = None


@dataclass(slots=True, eq=False)
class _Loading:
    stem: str = ""
    offered: dict[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    faults: dict[str, tuple[str, str, int | None]] | None = None


class ToolProcess:
    """One process, in the running loop; `start` makes it. Its owner calls `end`.

    `secrets` may be given to calls; their values are hidden in all output of the process.
    """

    def __init__(self, process: ChildProcess, secrets: Secrets) -> None:
        self.secrets = secrets
        self.frames = Frames(self._on_frame, self._on_lost)
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._calls: dict[int, SentCall] = {}
        self._next = 0
        self._messages = asyncio.Event()  # set with each message that is no answer to a call
        self._is_ready = False
        self._pongs = 0
        self._loading = _Loading()
        self._on_ended: list[Callable[[], None]] = []
        self.is_lost = False

    @classmethod
    async def start(cls, fence: Fence, secrets: Secrets) -> "ToolProcess":
        """Start one. Raises `OSError` where the machine has no room, and `FenceMissing`."""
        process = None
        ours, theirs = socket.socketpair()
        try:
            with output_without(secrets) as output:
                process = await ChildProcess.start(
                    [sys.executable, "-m", _CHILD, str(theirs.fileno())],
                    fence,
                    is_guarded=False,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=(theirs.fileno(),),
                )
            self = cls(process, secrets)
            await asyncio.get_running_loop().create_connection(lambda: self.frames, sock=ours)
        except BaseException:
            if process is not None:
                process.kill()
                await process.end()
            ours.close()
            raise
        finally:
            theirs.close()
        return self

    @property
    def pid(self) -> int:
        """The process id; also the id of its group."""
        return self._process.pid

    @property
    def in_flight(self) -> int:
        """The number of its calls."""
        return len(self._calls)

    async def load(self, plan: LoadPlan, *, seconds: float) -> LoadOutcome:
        """Have it import the files of a plan, each within `seconds`. Raises `LoadStopped`, after which it has ended."""
        await self._until(lambda: self._is_ready, "", _START_SECONDS)
        texts = {stem: (each.path, each.text) for stem, each in plan.files.items()}
        head = {
            "kind": "load",
            "module": plan.module,
            "stems": [*plan.stems, *plan.named],
            "secrets": self.secrets.names,
        }
        limits = {"threads": plan.threads, "result_bytes": plan.result_bytes, "packages": plan.packages}
        with contextlib.suppress(FramesClosed):
            more = {"python_path": list(plan.python_path), "exception_text": plan.exception_text}
            self.frames.send({**head, **limits, **more}, json.dumps(texts).encode())
        while self._loading.faults is None:
            stem = self._loading.stem
            await self._until(partial(self._has_left, stem), stem, seconds)
        return LoadOutcome(self._loading.offered, self._loading.faults)

    def begin(
        self,
        head: Head,
        body: bytes,
        on_progress: Callable[[Progress], object] | None,
        log: LogSink | None = None,
    ) -> tuple[int, SentCall]:
        """Send a call; returns its number here, and its answer to wait for. Raises `FramesClosed`: nothing was sent."""
        self._next += 1
        self.frames.send({**head, "kind": "call", "id": self._next}, body)
        call = self._calls[self._next] = SentCall(self._loop.create_future(), on_progress, log)
        return self._next, call

    def cancel(self, number: int) -> None:
        """Have a call stopped."""
        with contextlib.suppress(FramesClosed):
            self.frames.send({"kind": "cancel", "id": number})

    async def is_alive(self) -> bool:
        """Ask whether it still takes messages: not if a tool keeps its loop, or it has ended."""
        before = self._pongs
        with contextlib.suppress(FramesClosed):
            self.frames.send({"kind": "ping"})
        try:
            async with asyncio.timeout(_PONG_SECONDS):
                while self._pongs == before and not self.is_lost:
                    await self._next_message()
        except TimeoutError:
            return False
        return not self.is_lost

    def kill(self) -> None:
        """End it and all of its group now."""
        self._process.kill()

    def when_lost(self, hook: Callable[[], None]) -> None:
        """Have it called once the process is gone."""
        self._on_ended.append(hook)

    async def end(self) -> None:
        """End it, and all its children; a call that it still has is lost."""
        with contextlib.suppress(FramesClosed):
            self.frames.send({"kind": "end"})
        await self._process.end()
        self.frames.close()

    async def exit_words(self) -> str:
        """Return how it ended, once it has."""
        code = await self._process.exit_code()
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    async def _until(self, is_so: Callable[[], bool], stem: str, seconds: float) -> None:
        """Wait until something is so. Raises `LoadStopped`."""
        try:
            async with asyncio.timeout(seconds):
                while not is_so():
                    if self.is_lost:
                        raise LoadStopped(
                            stem, "ProcessEnded", f"Its import ended the process ({await self.exit_words()})."
                        )
                    await self._next_message()
        except TimeoutError:
            self.kill()
            raise LoadStopped(stem, "LoadTimeout", f"Its import did not end within {seconds:g} s.") from None

    def _has_left(self, stem: str) -> bool:
        return self._loading.stem != stem or self._loading.faults is not None

    async def _next_message(self) -> None:
        self._messages.clear()
        await self._messages.wait()

    def _on_frame(self, head: Head, body: bytes) -> None:
        kind = head.get("kind")
        number = head.get("id")
        body = self.secrets.hide_json(body)
        if isinstance(number, int):
            self._on_call_frame(kind, number, head, body)
            return
        if kind == "ready":
            self._is_ready = True
        elif kind == "pong":
            self._pongs += 1
        elif kind == "loading":
            self._loading.stem = str(head.get("file"))
        elif kind == "loaded":
            self._loading.offered[str(head.get("file"))] = json.loads(body)
        elif kind == "all_loaded":
            self._loading.faults = {stem: tuple(each) for stem, each in json.loads(body).items()}
        self._messages.set()

    def _on_call_frame(self, kind: object, number: int, head: Head, body: bytes) -> None:
        if kind == "progress":
            call = self._calls.get(number)
            if call is not None and call.on_progress is not None:
                message = self.secrets.hide(str(head.get("message")))
                call.on_progress(progress_of(head.get("fraction"), message))
            return
        if kind == "log":
            call, logged = self._calls.get(number), log_message_in(json.loads(body))
            if call is not None and call.log is not None and logged is not None:
                call.log.pass_on(logged)
            return
        call = self._calls.pop(number, None)
        if call is not None and not call.answer.done():
            call.answer.set_result((head, body))

    def _on_lost(self) -> None:
        self.is_lost = True
        self._messages.set()
        calls, self._calls = self._calls, {}
        for call in calls.values():
            if not call.answer.done():
                call.answer.set_exception(ProcessLost("its process ended"))
                call.answer.exception()  # the waiter sees it: asyncio need not tell
        self.kill()  # what it has started
        for hook in self._on_ended:
            hook()


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
        """Wait for room, and give a process. One that did not answer its call is ended."""
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
        """Return a run with these arguments, which its process checks."""
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
            report, log = self.context._report, self.context._log
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
        context, known = self.context, self.context._agent_context
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
            "ends_at": context._ends_at,
            "begin_by": context._last_moment(),
        }


def _written(arguments: Mapping[str, Any]) -> bytes:
    return json.dumps(arguments, separators=(",", ":")).encode()
