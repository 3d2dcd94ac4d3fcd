"""Carries messages between a session and the program of an MCP server: bounded, for any output of the program, which it also logs."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage

from toolfleet_modules.hosts.child_process import ChildProcess, Fence
from toolfleet_modules.hosts.mcp.exchanges import (
    SentRequests,
    is_answer,
    outcome_of,
    read_json,
    unread_answer,
)
from toolfleet_modules.hosts.mcp.transport import FIRST_ID, CallLane, MessageStreams
from toolfleet_modules.hosts.secrets import HiddenStream, Secrets
from toolfleet_registry.contracts.call_context import LogMessage

_log = logging.getLogger("toolfleet.host.server")

_CHUNK_BYTES = 64 * 2**10
_LONGEST_TEXT = 2000  # characters of a line
_LONGEST_LINE = 64 * 2**10  # bytes that are held until a line ends
_LOGGED_BYTES = (16 * 2**10, 4 * 2**10)  # at once, and a second
_LOG_LINE_COST = 100  # bytes of the log in addition to a line's own
_LINES_AT_ONCE = 100  # of what was read in one piece; more than that is no log
_NOTICES = (1, 0.1)  # that lines were left out, at once and a second
_LOG_READ_BYTES = (4 * 2**20, 2**20)  # at once and a second: a server that writes more waits

_STDOUT = 1
_STREAM_BYTES = 2**20  # that are read ahead

MOST_BYTES = 32 * 2**20
"""The most bytes of one message."""

_UNASKED = (1000, 500)  # messages that are no answers, at once and a second: what is more is left out
# Bytes that are no messages or left out, at once and a second: a server that writes more waits.
_REFUSED_BYTES = (2**20, 2**20)
# Bytes of all sorts, at once and a second: each passes through the host several times, at the cost of others on its machine.
_READ_BYTES = (MOST_BYTES, 16 * 2**20)
_EDGE_BYTES = 256  # of each end of a line that is too long: one of them has the id, in any order of its members
_LINE_COST = 20  # bytes of them in addition to a line's own: each takes its time
# With many calls waiting, answers are taken together: each look wakes the host beside a server that could have gone on, then
# the worker, Redis and the agent for one call more. Seconds for each call that waits, seconds at most, and from how many calls on.
_GATHER_SECONDS, _MOST_GATHER_SECONDS, _GATHERED_CALLS = 5e-5, 0.005, 16
_SURELY_READ = 16 * 2**10  # bytes; a writer of more at a time may wait for its output to be read
_REST_SECONDS = 0.5  # for what a program has written before its end to be read

ToSession = MemoryObjectSendStream[SessionMessage | Exception]
FromSession = MemoryObjectReceiveStream[SessionMessage]


class Allowance:
    """An amount that is used up, and comes again with time: `burst` at most, `rate` a second."""

    def __init__(self, burst: float, rate: float) -> None:
        self._burst, self._rate = burst, rate
        self._left = burst
        self._at = asyncio.get_running_loop().time()

    def take(self, amount: float) -> bool:
        """Take an amount; returns whether there was that much."""
        self._renew()
        if self._left < amount:
            return False
        self._left -= amount
        return True

    async def spend(self, amount: float) -> None:
        """Take it in any case, and wait until that is made up for."""
        self._renew()
        self._left -= amount
        if self._left < 0:
            await asyncio.sleep(-self._left / self._rate)

    def _renew(self) -> None:
        now = asyncio.get_running_loop().time()
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now


class ServerLog:
    """The log of one server, in the running loop."""

    def __init__(self, name: str, secrets: Secrets) -> None:
        self._name = name
        self._secrets = secrets
        self._allowance = Allowance(*_LOGGED_BYTES)
        self._notices = Allowance(*_NOTICES)
        self._left_out = 0
        self._said = set[str]()

    def say(self, text: str) -> None:
        """Write a line, if there is room for it."""
        shown = self._secrets.hide(text)[:_LONGEST_TEXT]
        if not self._allowance.take(len(shown) + _LOG_LINE_COST):
            self._left_out += 1
            return
        if self._left_out and self._notices.take(1):
            _log.warning("%s: %d lines were left out", self._name, self._left_out)
            self._left_out = 0
        _log.info("%s: %s", self._name, "".join(c if c.isprintable() or c == "\t" else "\ufffd" for c in shown))

    def say_message(self, message: LogMessage) -> None:
        """Write a server's log message without a known call."""
        words = message.data if isinstance(message.data, str) else json.dumps(message.data, ensure_ascii=False)
        self.say(f"{message.level}: {words}")

    def warn_once(self, text: str) -> None:
        """Warn of what a server does wrong, the first time."""
        if text not in self._said:
            self._said.add(text)
            _log.warning("%s: %s", self._name, text)

    async def follow(self, stream: asyncio.StreamReader) -> None:
        """Write what comes, until its end."""
        hidden, held, pace = HiddenStream(self._secrets), b"", Allowance(*_LOG_READ_BYTES)
        while data := await stream.read(_CHUNK_BYTES):
            await pace.spend(len(data))
            *lines, held = (held + hidden.feed(data)).split(b"\n")
            for line in lines[:_LINES_AT_ONCE]:
                self.say(line.decode(errors="replace").rstrip("\r"))
            self._left_out += len(lines[_LINES_AT_ONCE:])
            if len(held) > _LONGEST_LINE:
                self.say(held.decode(errors="replace"))
                held = b""
        if rest := held + hidden.end():
            self.say(rest.decode(errors="replace"))


@dataclass(frozen=True, slots=True)
class StdioServer:
    """A program that speaks over its standard streams. `environment` is added to that of the fence; `directory` is where it runs, `None` for its own."""

    command: tuple[str, ...]
    fence: Fence = field(default_factory=lambda: Fence(memory_bytes=None))
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    directory: Path | None = None


class ProgramInput:
    """The input of a program, one message a line. `lost` is called when it reads no more."""

    def __init__(self, stream: asyncio.StreamWriter, lost: Callable[[], None]) -> None:
        self._stream, self._lost = stream, lost
        self._held: list[bytes] = []

    def write(self, message: bytes) -> None:
        """Write a message soon. Unread messages are held: a sender of many waits with `drain`."""
        if not self._held:
            asyncio.get_running_loop().call_soon(self._flush)
        self._held.append(message)

    async def drain(self) -> None:
        """Return when there is place for more. Raises `OSError` if the program reads no more."""
        self._flush()
        await self._stream.drain()

    def _flush(self) -> None:
        held, self._held = self._held, []
        if held and not self._stream.is_closing():
            self._stream.write(b"\n".join((*held, b"")))
        if self._stream.is_closing():
            self._lost()


@asynccontextmanager
async def stdio_transport(server: StdioServer, log: ServerLog) -> AsyncGenerator[MessageStreams]:
    """Start the program, and give what a session reads and writes; the first one ends when the program does.

    Raises `OSError` and `FenceMissing`. Leaving it ends the program and all that it has started.
    """
    process = await ChildProcess.start(
        server.command,
        server.fence,
        is_guarded=True,
        environment=server.environment,
        directory=server.directory,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=_STREAM_BYTES,
    )
    pipes = process.streams
    assert pipes.stdin is not None
    assert pipes.stderr is not None
    to_session, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    to_server, from_session = anyio.create_memory_object_stream[SessionMessage](0)
    program = ProgramInput(pipes.stdin, to_session.close)
    lane, requests = CallLane(program.write, log.say_message), SentRequests()
    tasks = [
        asyncio.ensure_future(_read(pipes, to_session, lane, requests, log)),
        asyncio.ensure_future(_write(program, from_session, to_session)),
        asyncio.ensure_future(log.follow(pipes.stderr)),
        asyncio.ensure_future(_close_after(process, to_session)),
    ]
    try:
        yield MessageStreams(from_server, to_server, requests, lane)
    finally:
        try:
            await process.end()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for stream in (to_session, from_server, to_server, from_session):
                stream.close()


class MessageSplitter:
    """Divides the output of a program into objects of JSON, one a line. `refused` counts bytes that are no messages.

    A line that cannot be read and has the id of a request that `is_open` ends this request.
    """

    def __init__(self, log: ServerLog, is_open: Callable[[int], bool]) -> None:
        self._log, self._is_open = log, is_open
        self._held = bytearray()
        self._edges: bytes | None = None  # of a line that is too long
        self.refused = 0

    def feed(self, data: bytes) -> Iterator[tuple[dict[str, Any], int]]:
        """Yield the complete objects, each with its size in bytes."""
        start = 0
        while (end := data.find(b"\n", start)) != -1:
            written = data[start:end]
            start = end + 1
            if self._edges is not None:
                written, self._edges = self._edges[:_EDGE_BYTES] + (self._edges + written)[-_EDGE_BYTES:], None
                found = [unread_answer(written, self._is_open, f"a line of more than {MOST_BYTES} bytes: ")]
            elif self._held:
                written, self._held = bytes(self._held + written), bytearray()
                found = self._objects_in(written)
            else:
                found = self._objects_in(written)
            for each in found:
                if isinstance(each, dict):
                    yield each, len(written)
        self._hold(data[start:])

    @property
    def is_within(self) -> bool:
        """Whether a line has begun, and not ended."""
        return bool(self._held) or self._edges is not None

    def refuse(self, size: int) -> None:
        """Ignore so many bytes, which are no message."""
        self.refused += size + _LINE_COST
        self._log.warn_once("it writes to standard output what is no message of the protocol; that is ignored")

    def _hold(self, rest: bytes) -> None:
        if self._edges is not None:
            self.refused += len(rest)
            self._edges = self._edges[:_EDGE_BYTES] + (self._edges[_EDGE_BYTES:] + rest)[-_EDGE_BYTES:]
            return
        self._held += rest
        if len(self._held) > MOST_BYTES:
            self._log.warn_once(f"it wrote a line of more than {MOST_BYTES} bytes, which is ignored")
            self.refused += len(self._held)
            self._edges, self._held = bytes(self._held[:_EDGE_BYTES] + self._held[-_EDGE_BYTES:]), bytearray()

    def _objects_in(self, written: bytes) -> list[Any]:
        """Return the objects of a line: one, or those of a batch."""
        try:
            found, _ = read_json(written)
        except ValueError:
            if (ended := unread_answer(written, self._is_open)) is not None:
                return [ended]
            if written.strip():
                self.refuse(len(written))
            return []
        if isinstance(found, dict):
            return [found]
        if isinstance(found, list) and any(isinstance(each, dict) for each in found):
            return found
        self.refuse(len(written))
        return []


async def _read(
    program: asyncio.subprocess.Process, to_session: ToSession, lane: CallLane, requests: SentRequests, log: ServerLog
) -> None:
    """Give the session the program's output, and the lane the calls' messages, until the output ends."""
    output = program.stdout
    assert output is not None
    splitter = MessageSplitter(log, lambda number: number >= FIRST_ID or number in requests)
    unasked, refused, pace = Allowance(*_UNASKED), Allowance(*_REFUSED_BYTES), Allowance(*_READ_BYTES)
    with to_session, contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
        while data := await output.read(_CHUNK_BYTES):
            for found, size in splitter.feed(data):
                if not is_answer(found) and not unasked.take(1):
                    log.warn_once("it sends more notifications than anybody could follow; some are left out")
                    splitter.refused += _LINE_COST
                elif not lane.take(found):
                    await _pass_on(found, size, to_session, requests, splitter)
            await pace.spend(len(data))
            if splitter.refused:
                await refused.spend(splitter.refused)
                splitter.refused = 0
            if len(data) == _CHUNK_BYTES:  # there may be more already: others have their turn first
                await asyncio.sleep(0)
            elif lane.waiting >= _GATHERED_CALLS and len(data) < _SURELY_READ and not splitter.is_within:
                await _gather_output(program, min(lane.waiting * _GATHER_SECONDS, _MOST_GATHER_SECONDS))


async def _gather_output(program: asyncio.subprocess.Process, seconds: float) -> None:
    """Let what it writes gather in its pipe for so many seconds."""
    transport = getattr(program, "_transport", None)
    pipe = None if transport is None else transport.get_pipe_transport(_STDOUT)
    if pipe is not None:
        pipe.pause_reading()
    try:
        await asyncio.sleep(seconds)
    finally:
        if pipe is not None:
            pipe.resume_reading()


async def _pass_on(
    found: dict[str, Any], size: int, to_session: ToSession, requests: SentRequests, splitter: MessageSplitter
) -> None:
    if (known := requests.known_id(found)) is not None:
        found = requests.settle(known, outcome_of(found))
    try:
        message = types.jsonrpc_message_adapter.validate_python(found, by_name=False)
    except ValueError:
        splitter.refuse(size)
    else:
        await to_session.send(SessionMessage(message))


async def _close_after(process: ChildProcess, to_session: ToSession) -> None:
    """Let the session end when the program has, also if something that it has started keeps its output."""
    await process.exit_code()
    await asyncio.sleep(_REST_SECONDS)
    to_session.close()


async def _write(program: ProgramInput, from_session: FromSession, to_session: ToSession) -> None:
    """Write what the session sends. A program that takes nothing more is lost to it."""
    try:
        with from_session:
            async for each in from_session:
                program.write(each.message.model_dump_json(by_alias=True, exclude_unset=True).encode())
                await program.drain()
    except (OSError, anyio.ClosedResourceError):
        to_session.close()
