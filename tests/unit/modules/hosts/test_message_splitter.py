"""What an MCP server writes, as messages: however it comes, and whatever stands between them."""

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolfleet_modules.hosts.mcp import stdio_transport
from toolfleet_modules.hosts.mcp.stdio_transport import MessageSplitter, ServerLog
from toolfleet_modules.hosts.mcp.transport import FIRST_ID
from toolfleet_modules.hosts.secrets import Secrets

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
    b'[{"id": 5}, 7, {"id": 6}]',
    b'{"text": "cut \\ud83d"}',
    b'{"text": "caf\xe9"}',
    b'\xef\xbb\xbf{"text": "first"}',
]
FOUND: list[dict[str, object]] = [
    {"id": 1},
    {"text": "ä"},
    {},
    {"id": 5},
    {"id": 6},
    {"text": "cut \ufffd"},
    {"text": "caf\ufffd"},
    {"text": "first"},
]


def split(*pieces: bytes) -> tuple[list[dict[str, object]], int]:
    """The objects in it, and how many bytes were refused."""

    async def run() -> tuple[list[dict[str, object]], int]:
        splitter = MessageSplitter(ServerLog("owls", Secrets({})), lambda number: number in {3, FIRST_ID})
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


@pytest.mark.parametrize(
    ("line", "is_end"),
    [
        (b'{"id": %d, "result": {"a": 1,}}', True),
        (b'{"id": "%d", "error": {\'message\': 1}}', True),
        (b'{"jsonrpc": "2.0", "result": {"deep": ' + b"[" * 5000 + b'}, "id": %d}', True),
        (b'Got {"id": %d, "method": "tools/call", "params": {"result": 1}}', False),
        (b'handles "id": %d', False),
        (b'{"id": 7, "result": {"a": 1,}}', False),  # of no open request
    ],
)
def test_a_line_that_cannot_be_read_ends_the_call_whose_id_it_has(line: bytes, is_end: bool) -> None:
    """With the server's words. What a server prints of its requests is no answer."""
    written = line.replace(b"%d", str(FIRST_ID).encode())
    found, refused = split(written + b"\n")

    assert found == ([{"id": FIRST_ID, "result": written.decode()}] if is_end else [])
    assert bool(refused) != is_end


def test_a_line_that_cannot_be_read_ends_any_open_request() -> None:
    """Also one that is no call, such as a list."""
    found, _ = split(b'{"id": 3, "result": {"tools": oops}}\n')

    assert found == [{"id": 3, "result": '{"id": 3, "result": {"tools": oops}}'}]


@pytest.mark.parametrize("form", [b'{"id": %d, "result": {"text": "%s"}}', b'{"result": {"text": "%s"}, "id": %d}'])
def test_an_answer_that_is_too_long_ends_its_call(monkeypatch: pytest.MonkeyPatch, form: bytes) -> None:
    """Wherever its id stands."""
    monkeypatch.setattr(stdio_transport, "MOST_BYTES", 2000)
    written = form.replace(b"%d", str(FIRST_ID).encode()).replace(b"%s", b"x" * 3000)
    ((found,), _) = split(written[:2500], written[2500:] + b"\n")

    assert found["id"] == FIRST_ID
    assert str(found["result"]).startswith("a line of more than 2000 bytes: {")


def test_a_line_that_is_too_long_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without being held, and what follows is read."""
    monkeypatch.setattr(stdio_transport, "MOST_BYTES", 20)
    found, refused = split(b'{"text": "', b"x" * 30, b"y" * 30, b'"}\n{"id"', b": 4}\n")

    assert found == [{"id": 4}]
    assert refused >= 60
