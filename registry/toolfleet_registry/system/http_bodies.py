"""Reads HTTP bodies from untrusted modules: within a limit, and parsed as strict JSON."""

import json
import math
import re
import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn

from toolfleet_registry.errors import BodyTooLarge, BodyUnreadable

# Real data stays far below; pydantic's JSON parser stops at 200 levels, of which our envelopes need some.
MAX_DEPTH = 100


class BodyReader:
    """Takes a body in piece by piece, decompressed: at most `limit` bytes as sent, and as many when unpacked.

    `encoding` and `announced` are the headers `Content-Encoding` and `Content-Length`, empty if there are none.
    Raises `BodyTooLarge` as soon as it is, before the excess is in memory, and `BodyUnreadable`.
    """

    def __init__(self, limit: int, *, encoding: str, announced: str) -> None:
        _refuse_announced_excess(announced, limit)
        self._unpacker = _unpacker_for(encoding, limit)
        self._limit = limit
        self._wire_bytes = 0
        self._body = bytearray()

    def feed(self, chunk: bytes) -> None:
        """Take in what was sent next."""
        self._wire_bytes += len(chunk)
        if self._wire_bytes > self._limit:
            raise BodyTooLarge(self._limit)
        self._body += self._unpacker.feed(chunk) if self._unpacker else chunk

    def finish(self) -> bytes:
        """Return the body, when all of it was sent."""
        if self._unpacker and self._wire_bytes:
            self._unpacker.finish()
        return bytes(self._body)


async def read_body(headers: Mapping[str, str], chunk: Callable[[], Awaitable[bytes]], limit: int) -> bytes:
    """Return the body of an answer, as `BodyReader` reads it. Errors of the connection pass as they are.

    `headers` have names in lower case; `chunk` brings the next piece as it was sent, an empty one at the end.
    """
    reader = BodyReader(
        limit, encoding=headers.get("content-encoding", ""), announced=headers.get("content-length", "")
    )
    while piece := await chunk():
        reader.feed(piece)
    return reader.finish()


def loads_strict(data: bytes, *, depth: int = MAX_DEPTH) -> Any:
    """Parse JSON as its standard defines it. Raises `ValueError` with a reason that can be shown.

    Refused: any encoding but UTF-8, `NaN` and `Infinity`, numbers that overflow to infinity, integers over
    Python's digit limit, more than `depth` levels. Of duplicate keys the last one wins. Half a surrogate
    pair, which no UTF-8 output can carry, becomes U+FFFD: programs that cut strings by length send them.
    """
    try:
        text = data.decode()
        value, end = _STRICT.raw_decode(text)
        is_read = end == len(text) or not text[end:].strip(" \t\n\r")
    except UnicodeDecodeError as exc:
        raise ValueError(f"not UTF-8 (byte {exc.start})") from None
    except (ValueError, RecursionError):
        is_read = False
    if not is_read:  # it has blanks or a mark before it, or is to be refused
        value = _parse(text.removeprefix("\ufeff"))
    if len(data) > 2 * depth and is_too_deep(data, value, depth):  # a level is two characters
        raise ValueError(_DEPTH_REASON)
    if "\\u" in text and _SURROGATE_ESCAPE.search(text):
        return without_lone_surrogates(value)
    return value


def without_lone_surrogates(value: Any) -> Any:
    """Plain JSON with U+FFFD in the place of each half of a surrogate pair, which no UTF-8 output can carry."""
    text = json.dumps(value, ensure_ascii=False)  # pairs are joined by now, so that a surrogate left is a lone one
    return json.loads(_SURROGATE.sub("\ufffd", text)) if _SURROGATE.search(text) else value


def is_too_deep(data: bytes, value: Any, depth: int) -> bool:
    """Return whether a JSON text, and its parsed value, have more than `depth` levels.

    Works level by level instead of recursively, so that no depth can overflow the stack.
    """
    if data.count(b"[") + data.count(b"{") <= depth:
        return False
    level = [value]
    for _ in range(depth):
        level = [
            child
            for node in level
            if isinstance(node, (dict, list))
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return False
    return True


class _Unpacker:
    """Decompresses one gzip or deflate stream, with output bounded before it is made."""

    def __init__(self, encoding: str, limit: int) -> None:
        self._encoding = encoding
        self._limit = limit
        self._bytes_left = limit
        self._head = b""
        self._stream = zlib.decompressobj(_GZIP) if encoding != "deflate" else None

    def feed(self, chunk: bytes) -> bytes:
        if self._stream is None:
            chunk = self._head + chunk
            if len(chunk) < _ZLIB_HEADER:
                self._head = chunk
                return b""
            self._stream = zlib.decompressobj(_deflate_format(chunk))
        try:
            output = self._stream.decompress(chunk, self._bytes_left + 1)
        except zlib.error as exc:
            raise BodyUnreadable(f"body is not valid {self._encoding} data") from exc
        self._bytes_left -= len(output)
        if self._bytes_left < 0:
            raise BodyTooLarge(self._limit)
        # A second stream is legal in gzip and unheard of in HTTP; unpacking many tiny ones would cost CPU for ever.
        if self._stream.unused_data:
            raise BodyUnreadable(f"body goes on after its {self._encoding} data")
        return output

    def finish(self) -> None:
        if self._stream is None or not self._stream.eof:
            raise BodyUnreadable(f"body ends in the middle of its {self._encoding} data")


def _refuse_announced_excess(announced: str, limit: int) -> None:
    if announced.isascii() and announced.isdigit() and (len(announced) > _MAX_DIGITS or int(announced) > limit):
        raise BodyTooLarge(limit)


def _unpacker_for(header: str, limit: int) -> _Unpacker | None:
    encoding = header.strip().lower()
    if encoding in {"", "identity"}:
        return None
    if encoding in {"gzip", "x-gzip", "deflate"}:
        return _Unpacker(encoding, limit)
    raise BodyUnreadable(f"body has the content encoding {header[:_SHOWN]!r}; gzip and deflate can be read")


def _deflate_format(start: bytes) -> int:
    # The standard means zlib's format by "deflate"; some servers send the bare stream. zlib's header tells: RFC 1950.
    is_zlib = start[0] & 0x0F == zlib.DEFLATED and int.from_bytes(start[:_ZLIB_HEADER], "big") % 31 == 0
    return zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS


class _NotStrict(ValueError):
    """Valid for Python's parser, not for JSON."""


def _parse(text: str) -> Any:
    try:
        return _STRICT.decode(text)
    except json.JSONDecodeError as exc:
        raise ValueError(f"not JSON ({exc.msg}, line {exc.lineno} column {exc.colno})") from None
    except _NotStrict:
        raise
    except RecursionError:
        raise ValueError(_DEPTH_REASON) from None
    except ValueError:  # only an integer past sys.get_int_max_str_digits() is left
        raise ValueError("not usable JSON (an integer has too many digits)") from None


def _refuse_constant(name: str) -> NoReturn:
    raise _NotStrict(f"not JSON ({name} is no JSON number)")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise _NotStrict("not usable JSON (a number is too large)")
    return value


_STRICT = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
_GZIP = zlib.MAX_WBITS + 16
_ZLIB_HEADER = 2  # bytes
_SHOWN = 40  # characters of foreign text in a reason
_MAX_DIGITS = 19  # of a length; more is no length, and int() of thousands would raise
_DEPTH_REASON = f"not usable JSON (nested deeper than {MAX_DEPTH} levels)"
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")
