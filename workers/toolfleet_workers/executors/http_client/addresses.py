"""Resolves the addresses of a host: once for all connections of some seconds, however many begin at once."""

import asyncio
import socket
from collections.abc import Sequence

from aiohappyeyeballs import AddrInfoType

# Long enough for a burst of connections, short enough for a module that moves.
_GOOD_SECONDS = 10


class Addresses:
    """What the name service has said to the running loop, by host and port."""

    def __init__(self) -> None:
        self._asked: dict[tuple[str, int], tuple[float, asyncio.Task[Sequence[AddrInfoType]]]] = {}

    async def of(self, host: str, port: int) -> Sequence[AddrInfoType]:
        """Raises `OSError`, or `UnicodeError` for what cannot be a host's name. Such an answer is not kept."""
        loop = asyncio.get_running_loop()
        since, answer = self._asked.get((host, port), (0.0, None))
        if answer is None or (answer.done() and (_has_failed(answer) or loop.time() > since + _GOOD_SECONDS)):
            answer = loop.create_task(_ask(host, port))
            answer.add_done_callback(_has_failed)  # or asyncio logs a failure for which nobody waits any more
            self._asked[host, port] = loop.time(), answer
        return await asyncio.shield(answer)  # others may wait for it, too


def _has_failed(answer: asyncio.Task[Sequence[AddrInfoType]]) -> bool:
    return answer.cancelled() or answer.exception() is not None


async def _ask(host: str, port: int) -> Sequence[AddrInfoType]:
    try:  # what is no name needs no name service, and no thread to wait for one
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
