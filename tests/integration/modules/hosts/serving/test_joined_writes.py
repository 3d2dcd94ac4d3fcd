"""Replies of a host on their connection."""

import asyncio
import socket

import pytest

from toolfleet_modules.sdk.serve import JoinedWrites

pytestmark = pytest.mark.asyncio


async def test_what_is_written_in_one_turn_of_the_loop_is_sent_in_the_next_and_nothing_is_lost_by_closing() -> None:
    """Nothing is sent before the turn has ended; all else of the transport is its own."""
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
    joined = JoinedWrites(transport, loop)

    joined.write(b"head ")
    joined.write(b"body")
    with pytest.raises(BlockingIOError):
        theirs.recv(100)
    assert await loop.sock_recv(theirs, 100) == b"head body"

    joined.write(b"last")
    joined.close()
    assert joined.is_closing()
    assert await loop.sock_recv(theirs, 100) == b"last"
    assert await loop.sock_recv(theirs, 100) == b""
    theirs.close()
