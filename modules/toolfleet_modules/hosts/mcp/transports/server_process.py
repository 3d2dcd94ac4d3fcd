"""Starts the program of an MCP server behind its fence, and ends it with all that it has started."""

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path

from toolfleet_modules.hosts.mcp.options import StdioServer
from toolfleet_modules.hosts.processes import supervisor
from toolfleet_modules.hosts.serving.own_folder import OwnFolder

_MARK = "TOOLFLEET_SERVER"  # a variable that all that a server starts inherits
_LEAVE_SECONDS = 1.0  # for a server to end by itself when its input does
_END_SECONDS = 6.0  # for what it has started to be gone
_CHECK_SECONDS, _ENDED_SECONDS = (
    0.01,
    0.1,
)  # between two looks whether it has ended: while that is awaited, and in its life
_STDOUT = 1
_STREAM_BYTES = 2**20  # that are read ahead


class ServerProcess:
    """A server's process, with the one that watches over it between. Whoever has it calls `end`."""

    def __init__(self, process: asyncio.subprocess.Process, folder: OwnFolder) -> None:
        self._process = process
        self._folder = folder
        assert process.stdin is not None  # noqa: S101 - all three are pipes
        assert process.stdout is not None  # noqa: S101
        assert process.stderr is not None  # noqa: S101
        self.stdin, self.stdout, self.stderr = process.stdin, process.stdout, process.stderr

    @classmethod
    async def start(cls, server: StdioServer) -> "ServerProcess":
        """Start one, with a folder of its own. Raises `OSError` where the machine has no room, and `FenceMissing`."""
        folder = OwnFolder.make()
        process = None
        try:
            command = server.fence.command(list(server.command), folder.path)
            paths = server.fence.paths(folder.path)
            words = supervisor.command_of(os.getpid(), server.fence.limits(), paths, command)
            starting = asyncio.ensure_future(
                asyncio.create_subprocess_exec(
                    *words,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    env={**server.fence.environment(folder.path), **server.environment, _MARK: folder.path.name},
                    cwd=folder.path if server.directory is None else server.directory,
                    limit=_STREAM_BYTES,
                    start_new_session=True,
                )
            )
            try:
                process = await asyncio.shield(starting)
            except asyncio.CancelledError:
                process = await starting
                raise
            server.fence.lower_priority(process.pid)
            return cls(process, folder)
        except BaseException:
            if process is None:
                folder.remove()
            else:
                await cls(process, folder).end()
            raise

    @property
    def pid(self) -> int:
        """The number of the process that watches over the server; the server is its child."""
        return self._process.pid

    async def gather_output(self, seconds: float) -> None:
        """Let what it writes gather in its pipe for so many seconds."""
        transport = getattr(self._process, "_transport", None)
        pipe = None if transport is None else transport.get_pipe_transport(_STDOUT)
        if pipe is not None:
            pipe.pause_reading()
        try:
            await asyncio.sleep(seconds)
        finally:
            if pipe is not None:
                pipe.resume_reading()

    async def ended(self) -> None:
        """Return when it has ended, whoever still has its pipes."""
        while self._process.returncode is None:  # noqa: ASYNC110 - `Process.wait` waits for the pipes as well
            await asyncio.sleep(_ENDED_SECONDS)

    async def end(self) -> None:
        """Let it end by itself for a moment, then end it and whatever it has started."""
        ending = asyncio.ensure_future(self._end())
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            await ending
            raise

    async def _end(self) -> None:
        self.stdin.close()
        if not await self._is_gone(_LEAVE_SECONDS):
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)
            if not await self._is_gone(_END_SECONDS):
                self._signal(signal.SIGKILL)  # the server is ended with it
                await self._is_gone(_END_SECONDS)
        if self._process.returncode != 0:  # whoever watched over it may have been killed, and could end nothing
            await asyncio.to_thread(_end_marked, self._folder.path.name)
        transport = getattr(self._process, "_transport", None)
        if transport is not None:  # a process that was left behind may hold the pipes
            transport.close()
        await asyncio.to_thread(self._folder.remove)

    async def _is_gone(self, seconds: float) -> bool:
        """Not by `Process.wait`, which waits for the pipes' end as well."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + seconds
        while self._process.returncode is None:
            if loop.time() > give_up_at:
                return False
            await asyncio.sleep(_CHECK_SECONDS)
        return True

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)


def _end_marked(mark: str) -> None:
    """Kill what has this mark in its environment, until none is left."""
    sought = f"{_MARK}={mark}".encode()
    give_up_at = time.monotonic() + _END_SECONDS
    while (found := [each for each in Path("/proc").glob("[0-9]*") if _has(each, sought)]) and (
        time.monotonic() < give_up_at
    ):
        for process in found:
            with contextlib.suppress(OSError):
                os.kill(int(process.name), signal.SIGKILL)
        time.sleep(_CHECK_SECONDS)


def _has(process: Path, sought: bytes) -> bool:
    try:
        return sought in (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
