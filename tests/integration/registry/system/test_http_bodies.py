"""Bodies from modules: bounded on the wire and unpacked, and parsed strictly."""

import gzip
import json
import sys
import tracemalloc
import zlib
from typing import Any

import httpx
import pytest

from support.modules.raw_modules import Behaviour, answering, raw_module, trickling, writing
from toolfleet_registry.errors import BodyTooLarge, BodyUnreadable
from toolfleet_registry.manifests.http_get import requested
from toolfleet_registry.system.http_bodies import MAX_DEPTH, loads_strict, read_body

LIMIT = 100_000
DOCUMENT = b'{"some": "text"}' * 100


async def fetch(behave: Behaviour, limit: int = LIMIT) -> bytes:
    async with raw_module(behave) as url, requested(httpx.URL(url), headers={}, connect_seconds=10) as answer:
        return await read_body(answer.headers, answer.chunk, limit)


def encoded(body: bytes, encoding: str) -> Behaviour:
    return answering(body, headers={"content-encoding": encoding})


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


async def read_pieces(packed: bytes, encoding: str, *, size: int, limit: int) -> bytes:
    """Read a body that comes in pieces of `size` bytes."""
    pieces = iter(packed[start : start + size] for start in range(0, len(packed), size))

    async def chunk() -> bytes:
        return next(pieces, b"")

    return await read_body({"content-encoding": encoding}, chunk, limit)


@pytest.mark.parametrize(
    ("body", "encoding"),
    [
        (b"", "gzip"),  # announced for a body that is not sent
        (b"", "deflate"),
        (DOCUMENT, "identity"),
        (gzip.compress(DOCUMENT, mtime=0), "gzip"),
        (gzip.compress(DOCUMENT, mtime=0), " GZip "),
        (gzip.compress(DOCUMENT, mtime=0), "x-gzip"),
        (zlib.compress(DOCUMENT), "deflate"),  # as the standard says
        (raw_deflate(DOCUMENT), "deflate"),  # as some servers do
    ],
)
async def test_plain_gzip_and_both_kinds_of_deflate_are_read(body: bytes, encoding: str) -> None:
    """What common servers send arrives as it was before they packed it."""
    assert await fetch(encoded(body, encoding)) == (DOCUMENT if body else b"")


@pytest.mark.parametrize("packed", [zlib.compress(DOCUMENT), raw_deflate(DOCUMENT), gzip.compress(DOCUMENT, mtime=0)])
async def test_a_packed_body_may_come_byte_by_byte(packed: bytes) -> None:
    """How the network cuts a body is without meaning."""
    encoding = "gzip" if packed.startswith(b"\x1f\x8b") else "deflate"

    assert await read_pieces(packed, encoding, size=1, limit=LIMIT) == DOCUMENT


@pytest.mark.parametrize(
    "encoding",
    ["br", "zstd", "compress", "gzip, gzip", "deflate,gzip", "aes128gcm"],
)
async def test_other_encodings_and_stacks_of_them_are_unreadable(encoding: str) -> None:
    """Only what can be unpacked within a limit is accepted."""
    with pytest.raises(BodyUnreadable, match="gzip and deflate can be read"):
        await fetch(encoded(DOCUMENT, encoding))


@pytest.mark.parametrize(
    ("body", "encoding", "reason"),
    [
        (gzip.compress(DOCUMENT, mtime=0)[:-3], "gzip", "ends in the middle"),
        (gzip.compress(DOCUMENT, mtime=0)[:5], "gzip", "ends in the middle"),
        (zlib.compress(DOCUMENT)[:1], "deflate", "ends in the middle"),
        (b"no gzip at all", "gzip", "not valid gzip"),
        (b"\xff\xff no deflate", "deflate", "not valid deflate"),
        (gzip.compress(DOCUMENT, mtime=0)[:-8] + b"\0" * 8, "gzip", "not valid gzip"),  # a wrong checksum
        (gzip.compress(DOCUMENT, mtime=0) * 2, "gzip", "goes on after"),
        (gzip.compress(DOCUMENT, mtime=0) + b"rubbish", "gzip", "goes on after"),
    ],
)
async def test_broken_packed_data_is_unreadable(body: bytes, encoding: str, reason: str) -> None:
    """Half a body is never taken for a whole one."""
    with pytest.raises(BodyUnreadable, match=reason):
        await fetch(encoded(body, encoding))


async def test_a_body_of_exactly_the_limit_is_read() -> None:
    """The limit is the last size that passes."""
    assert len(await fetch(answering(b"x" * LIMIT))) == LIMIT
    assert len(await fetch(encoded(gzip.compress(b"x" * LIMIT, mtime=0), "gzip"))) == LIMIT


@pytest.mark.parametrize(
    "behave",
    [
        answering(b"x" * (LIMIT + 1)),
        encoded(gzip.compress(b"x" * (LIMIT + 1)), "gzip"),
        # Announced and never sent: refused without waiting.
        writing(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n"),
        # Sent for ever without a length.
        trickling(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * LIMIT, b"x"),
    ],
)
async def test_a_larger_body_is_refused(behave: Behaviour) -> None:
    """One byte more is too much, announced or sent, packed or not."""
    with pytest.raises(BodyTooLarge, match=f"larger than {LIMIT} bytes") as caught:
        await fetch(behave)
    assert caught.value.limit == LIMIT


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_a_bomb_never_reaches_memory(encoding: str) -> None:
    """A hundred megabytes in a hundred kilobytes are refused after `limit` of them."""
    bomb = (gzip.compress if encoding == "gzip" else zlib.compress)(bytes(100 * 2**20))
    tracemalloc.start()
    try:
        with pytest.raises(BodyTooLarge):
            await read_pieces(bomb, encoding, size=65536, limit=2**20)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * 2**20


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'{"a": [1, 2.5, null, true, "\xc3\xa9"]}', {"a": [1, 2.5, None, True, "é"]}),
        (b"\xef\xbb\xbf{}", {}),  # a byte order mark is allowed, and some platforms write it
        (b" \r\n\t{} \r\n\t", {}),
        (b'{"a": 1, "a": 2}', {"a": 2}),
        (b'"\\ud83d\\ude00"', "\U0001f600"),  # a whole pair is a character
        (b'"\\ud83d"', "\ufffd"),
        (b'{"\\udc00": ["x\\ud800y"]}', {"\ufffd": ["x\ufffdy"]}),
        (b'"\\\\ud800"', "\\ud800"),  # a backslash, not a surrogate
        (b"9" * 4300, int("9" * 4300)),
        (b"[" * MAX_DEPTH + b"]" * MAX_DEPTH, json.loads("[" * MAX_DEPTH + "]" * MAX_DEPTH)),
        (b'["' + b"[" * 500 + b'"]', ["[" * 500]),  # brackets in a text nest nothing
    ],
)
def test_json_is_parsed(text: bytes, value: Any) -> None:
    """What the standard allows is read; half a surrogate pair becomes U+FFFD."""
    assert loads_strict(text) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[1,]", "line 1 column"),
        (b"{'a': 1}", "not JSON"),
        (b"<html>", "not JSON"),
        (b"{} {}", "Extra data"),
        ("{}\u00a0".encode(), "Extra data"),
        (b'"a\nb"', "not JSON"),
        (b"NaN", "NaN is no JSON number"),
        (b'{"a": [-Infinity]}', "-Infinity is no JSON number"),
        (b"1e999", "number is too large"),
        (b"-1" + b"0" * 400 + b".0", "number is too large"),
        (b"9" * 5000, "too many digits"),
        (b'"\xff"', r"not UTF-8 \(byte 1\)"),
        ('{"a": 1}'.encode("utf-16"), "not UTF-8"),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "nested deeper than 100 levels"),
        (b'{"a":' * 150 + b"1" + b"}" * 150, "nested deeper"),
        (b"[" * 200_000, "nested deeper"),
        (b"[" * 200_000 + b"]" * 200_000, "nested deeper"),
    ],
)
def test_what_is_not_json_is_refused_with_a_reason(text: bytes, reason: str) -> None:
    """A `ValueError` says what is wrong, and never shows the text."""
    with pytest.raises(ValueError, match=reason) as caught:
        loads_strict(text)
    assert len(str(caught.value)) < 100


def test_what_was_parsed_can_always_be_written() -> None:
    """Nothing that comes out of here stops a JSON writer or UTF-8 later."""
    value = loads_strict(
        b'{"\\ud800": ["\\udfff", ' + b"[" * 90 + b"9" * sys.get_int_max_str_digits() + b"]" * 91 + b"}"
    )
    json.dumps(value, ensure_ascii=False).encode()
