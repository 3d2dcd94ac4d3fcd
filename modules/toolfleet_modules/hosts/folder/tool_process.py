"""Starts a process for the tools of a folder, communicates with it, and ends it with all its children."""

import asyncio
import contextlib
import json
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from toolfleet_modules.hosts.child_process import ChildProcess
from toolfleet_modules.hosts.fence import Fence
from toolfleet_modules.hosts.folder.frames import Frames, FramesClosed, Head, LoadOutcome, LoadPlan
from toolfleet_modules.hosts.secrets import Secrets, output_without
from toolfleet_registry.contracts.call_context import LogSink, Progress, log_message_in, progress_of

_CHILD = "toolfleet_modules.hosts.folder.tool_child"
_START_SECONDS = 30.0  # for Python to start on a busy machine
_PONG_SECONDS = 2.0


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
        """Its process id; also that of its group."""
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
        """Send a call; returns its number here, and what comes of it. Raises `FramesClosed`: nothing was sent."""
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
        """Wait for news. Raises `LoadStopped`."""
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
