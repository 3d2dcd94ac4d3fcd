"""Messages between a host and its process."""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.waiting import wait_until
from toolfleet_modules.hosts.folder.frames import Frames, FramesClosed, Head

pytestmark = pytest.mark.asyncio


class End:
    """One end, and what came there."""

    def __init__(self) -> None:
        self.came: list[tuple[Head, bytes]] = []
        self.is_lost = False
        self.frames = Frames(lambda head, body: self.came.append((head, body)), self._lose)

    def _lose(self) -> None:
        self.is_lost = True


@asynccontextmanager
async def connected() -> AsyncGenerator[tuple[End, socket.socket]]:
    """An end, and the bare socket at the other one."""
    ours, theirs = socket.socketpair()
    end = End()
    await asyncio.get_running_loop().create_connection(lambda: end.frames, sock=ours)
    try:
        yield end, theirs
    finally:
        end.frames.close()
        theirs.close()
        await wait_until(lambda: end.is_lost, "the end is closed")


def _written(head: object, body: bytes = b"") -> bytes:
    text = json.dumps(head).encode()
    return struct.pack("!II", len(text), len(body)) + text + body


async def test_messages_come_whole_and_in_order_however_they_are_cut() -> None:
    """Byte by byte, and several at once."""
    messages = [({"kind": "a"}, b""), ({"kind": "b", "text": "é"}, bytes(300)), ({}, b"x")]
    async with connected() as (end, theirs):
        data = b"".join(_written(head, body) for head, body in messages)
        for at in range(len(data)):
            end.frames.data_received(data[at : at + 1])
        theirs.sendall(data)
        await wait_until(lambda: len(end.came) == 6, "all have come")
        assert end.came == messages * 2


async def test_what_is_sent_is_what_comes() -> None:
    """Heads with every kind of value, and bodies larger than the socket's buffer."""
    ours, theirs = socket.socketpair()
    one, other = End(), End()
    loop = asyncio.get_running_loop()
    await loop.create_connection(lambda: one.frames, sock=ours)
    await loop.create_connection(lambda: other.frames, sock=theirs)
    body = bytes(range(256)) * 20_000

    one.frames.send({"kind": "x", "n": 1, "none": None, "text": "é\ud800"}, body)

    await wait_until(lambda: bool(other.came), "it has come")
    assert other.came == [({"kind": "x", "n": 1, "none": None, "text": "é\ud800"}, body)]
    one.frames.close()
    await wait_until(lambda: one.is_lost and other.is_lost, "both ends know")
    with pytest.raises(FramesClosed):
        one.frames.send({})


@pytest.mark.parametrize(
    "data",
    [struct.pack("!II", 2**31, 0), struct.pack("!II", 2, 2**31), struct.pack("!II", 2, 0) + b"no", _written([1])],
    ids=["long head", "long body", "no JSON", "no object"],
)
async def test_what_is_no_message_closes_the_socket(data: bytes) -> None:
    """A process that sends such things is not believed in anything."""
    async with connected() as (end, theirs):
        theirs.sendall(data)
        await wait_until(lambda: end.is_lost, "it is closed")
        assert end.came == []


@given(st.binary(max_size=200))
async def test_whatever_bytes_come_nothing_is_raised(data: bytes) -> None:
    """They are messages, or the end."""
    end = End()
    end.frames.data_received(data)
