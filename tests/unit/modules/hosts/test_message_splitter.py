"""What an MCP server writes, as messages: however it comes, and whatever stands between them."""

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolfleet_modules.hosts.mcp.transports import stdio_transport
from toolfleet_modules.hosts.mcp.transports.server_log import ServerLog
from toolfleet_modules.hosts.mcp.transports.stdio_transport import MessageSplitter
from toolfleet_modules.hosts.serving.secrets import Secrets

LINES = [
    b'{"id": 1}',
    b"",
    b"  ",
    b"Starting owls...",
    b"[1, 2]",
    b'{"id": 2',
    b' {"text": "\xc3\xa4"} \r',
    b"\xff",
    b"{}",
]
FOUND = [{"id": 1}, {"text": "ä"}, {}]


def split(*pieces: bytes) -> tuple[list[dict[str, object]], int]:
    """The objects in it, and how many bytes were refused."""

    async def run() -> tuple[list[dict[str, object]], int]:
        splitter = MessageSplitter(ServerLog("owls", Secrets({})))
        return [found for piece in pieces for found, _ in splitter.feed(piece)], splitter.refused

    return asyncio.run(run())


@given(st.lists(st.integers(0, 80), max_size=20))
def test_objects_are_found_however_they_are_cut(cuts: list[int]) -> None:
    """What is none is refused, an empty line is nothing, and a line without its end waits."""
    text = b"\n".join([*LINES, b'{"id": 3}'])
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    found, refused = split(*(text[at:to] for at, to in pairwise(places)))

    assert found == FOUND
    assert refused == split(text)[1] > 0


def test_a_line_that_is_too_long_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without being held, and what follows is read."""
    monkeypatch.setattr(stdio_transport, "MOST_BYTES", 20)
    found, refused = split(b'{"text": "', b"x" * 30, b"y" * 30, b'"}\n{"id"', b": 4}\n")

    assert found == [{"id": 4}]
    assert refused >= 60
