"""Reaches a port in the network of a program that runs in a sandbox, which nobody else reaches.

What runs in the sandbox beside the program makes sockets there and hands them out (`sandboxes/sandbox.py`). A socket
belongs to the network it was made in, so that whoever has it connects to that network's loopback interface.
"""

import asyncio
import contextlib
import socket
from asyncio import StreamReader, StreamWriter

LOOPBACK = "127.0.0.1"
_SOCKET_SECONDS = 5.0


class Gate:
    """Our end of the way in; `theirs` goes to who starts the program. Both belong to the gate until it is closed."""

    def __init__(self) -> None:
        self._ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        self._turn = asyncio.Lock()

    async def connect(self, port: int) -> tuple[StreamReader, StreamWriter]:
        """A connection to the port in there. Raises `OSError`, `TimeoutError` among them."""
        async with self._turn, asyncio.timeout(_SOCKET_SECONDS):
            made = await self._socket()
        try:
            made.setblocking(False)
            await asyncio.get_running_loop().sock_connect(made, (LOOPBACK, port))
            return await asyncio.open_connection(sock=made)
        except BaseException:
            made.close()
            raise

    async def close(self) -> None:
        """Let nobody in any more; who is just asking is refused."""
        self.theirs.close()
        with contextlib.suppress(OSError):
            self._ours.shutdown(socket.SHUT_RDWR)
        async with self._turn:
            self._ours.close()

    async def _socket(self) -> socket.socket:
        """One that was asked for: should somebody have given up waiting for theirs, it serves as well."""
        loop = asyncio.get_running_loop()
        self._ours.send(b"c")
        answered = asyncio.Event()
        loop.add_reader(self._ours, answered.set)
        try:
            await answered.wait()
        finally:
            loop.remove_reader(self._ours)
        _, descriptors, _, _ = socket.recv_fds(self._ours, 1, 1)
        if not descriptors:
            raise ConnectionRefusedError("the program has ended")
        return socket.socket(fileno=descriptors[0])
