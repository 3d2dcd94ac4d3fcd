"""Carries messages between a session and the program of an MCP server: bounded, whatever the program writes."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager

import anyio
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage

from toolfleet_modules.hosts.mcp.options import StdioServer
from toolfleet_modules.hosts.mcp.transports.server_log import Allowance, ServerLog
from toolfleet_modules.hosts.mcp.transports.server_process import ServerProcess

MOST_BYTES = 32 * 2**20
"""Of one message."""

_CHUNK_BYTES = 64 * 2**10
_UNASKED = (1000, 500)  # messages that are no answers, at once and a second: what is more is left out
_REFUSED_BYTES = (
    2**20,
    2**20,
)  # that are no messages or left out, at once and a second: a server that writes more waits
_REST_SECONDS = 0.5  # for what a program has written before its end to be read
_LINE_COST = 20  # bytes of them beside a line's own: each takes its time

ReadStream = MemoryObjectReceiveStream[SessionMessage | Exception]
WriteStream = MemoryObjectSendStream[SessionMessage]


@asynccontextmanager
async def stdio_transport(server: StdioServer, log: ServerLog) -> AsyncGenerator[tuple[ReadStream, WriteStream]]:
    """Start the program, and give what a session reads and writes; the first one ends when the program does.

    Raises `OSError` and `FenceMissing`. Leaving it ends the program and all that it has started.
    """
    process = await ServerProcess.start(server)
    to_session, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    to_server, from_session = anyio.create_memory_object_stream[SessionMessage](0)
    tasks = [
        asyncio.ensure_future(_read(process, to_session, log)),
        asyncio.ensure_future(_write(process, from_session, to_session)),
        asyncio.ensure_future(log.follow(process.stderr)),
        asyncio.ensure_future(_close_after(process, to_session)),
    ]
    try:
        yield from_server, to_server
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
    """Divides what a program writes into messages, one a line. `refused` counts bytes that are none."""

    def __init__(self, log: ServerLog) -> None:
        self._log = log
        self._held = bytearray()
        self._is_too_long = False
        self.refused = 0

    def feed(self, data: bytes) -> Iterator[types.JSONRPCMessage]:
        """The messages that are complete."""
        start = 0
        while (end := data.find(b"\n", start)) != -1:
            self._held += data[start:end]
            start = end + 1
            written, self._held = bytes(self._held), bytearray()
            if self._is_too_long:
                self._is_too_long = False
            elif (message := self._message_in(written)) is not None:
                yield message
        self._hold(data[start:])

    def _hold(self, rest: bytes) -> None:
        if self._is_too_long:
            self.refused += len(rest)
            return
        self._held += rest
        if len(self._held) > MOST_BYTES:
            self._log.warn_once(f"it wrote a line of more than {MOST_BYTES} bytes, which is ignored")
            self.refused += len(self._held)
            self._held, self._is_too_long = bytearray(), True

    def _message_in(self, written: bytes) -> types.JSONRPCMessage | None:
        begin = written.lstrip()[:1]
        if not begin:
            return None
        try:
            if begin == b"{":
                return types.jsonrpc_message_adapter.validate_json(written, by_name=False)
        except ValueError:
            pass
        self.refused += len(written) + _LINE_COST
        self._log.warn_once("it writes to standard output what is no message of the protocol; that is ignored")
        return None


async def _read(
    process: ServerProcess, to_session: MemoryObjectSendStream[SessionMessage | Exception], log: ServerLog
) -> None:
    """Give the session what the program writes, until it writes no more."""
    splitter = MessageSplitter(log)
    unasked, refused = Allowance(*_UNASKED), Allowance(*_REFUSED_BYTES)
    with to_session, contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
        while data := await process.stdout.read(_CHUNK_BYTES):
            for message in splitter.feed(data):
                if isinstance(message, types.JSONRPCResponse | types.JSONRPCError) or unasked.take(1):
                    await to_session.send(SessionMessage(message))
                else:
                    log.warn_once("it sends more notifications than anybody could follow; some are left out")
                    splitter.refused += _LINE_COST
            if splitter.refused:
                await refused.spend(splitter.refused)
                splitter.refused = 0


async def _close_after(process: ServerProcess, to_session: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
    """Let the session end when the program has, also if something that it has started keeps its output."""
    await process.ended()
    await asyncio.sleep(_REST_SECONDS)
    to_session.close()


async def _write(
    process: ServerProcess,
    from_session: MemoryObjectReceiveStream[SessionMessage],
    to_session: MemoryObjectSendStream[SessionMessage | Exception],
) -> None:
    """Write what the session sends. A program that takes nothing more is lost to it."""
    try:
        with from_session:
            async for each in from_session:
                written = each.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(written.encode() + b"\n")
                await process.stdin.drain()
    except (OSError, anyio.ClosedResourceError):
        to_session.close()
