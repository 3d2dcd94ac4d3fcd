"""Reads the body of a module's reply within a limit, and of an error the start: words for the model, and perhaps a reply to the call."""

import asyncio
import contextlib

from toolfleet_registry.system.http_bodies import BodyReader
from toolfleet_workers.executors.http.module_client import ModuleResponse
from toolfleet_workers.executors.http.no_reply import NoReply

_MAX_BYTES = 16 * 2**10  # as sent: 2 kB of text, however much of it is colour; far more than a reply that says why
# The status has said what happened. A body that trickles must not turn "busy" into "timed out".
_PATIENCE_SECONDS = 2


async def read_reply(response: ModuleResponse, limit: int) -> bytes:
    """The body, as `BodyReader` reads it; `NoReply` passes."""
    reader = BodyReader(
        limit,
        encoding=response.field("content-encoding") or "",
        announced=response.field("content-length") or "",
    )
    while chunk := await response.read_chunk():
        reader.feed(chunk)
    return reader.finish()


async def start_of_error(response: ModuleResponse) -> bytes:
    """Return the part of an error's body that came in time and before the connection was lost."""
    encoding = (response.field("content-encoding") or "identity").strip().lower()
    if encoding != "identity":  # we asked for none; not worth a decompression bomb
        return f"[{encoding} data]".encode()
    body = bytearray()
    with contextlib.suppress(TimeoutError, NoReply):
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while len(body) < _MAX_BYTES and (chunk := await response.read_chunk()):
                body += chunk
    return bytes(body[:_MAX_BYTES])
