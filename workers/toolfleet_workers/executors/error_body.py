"""The start of an error's body: words for the model, on which nothing may depend, so it is not waited for."""

import asyncio
import contextlib

import aiohttp

from toolfleet_workers.executors.connections import CONNECTION_ERRORS
from toolfleet_workers.executors.error_text import readable
from toolfleet_workers.executors.headers import read_header

_MAX_BYTES = 16 * 2**10  # as sent: 2 kB of text, however much of it is colour
# The status has said what happened. A body that trickles must not turn "busy" into "timed out".
_PATIENCE_SECONDS = 2


async def start_of_error(response: aiohttp.ClientResponse) -> str:
    """Readable text from the body: what came of it in time and before the connection was lost."""
    encoding = (read_header(response, "Content-Encoding") or "identity").strip().lower()
    if encoding != "identity":  # we asked for none; not worth a decompression bomb
        return readable(f"[{encoding} data]")
    body = bytearray()
    with contextlib.suppress(TimeoutError, *CONNECTION_ERRORS):
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while len(body) < _MAX_BYTES and (chunk := await response.content.readany()):
                body += chunk
    return readable(body[:_MAX_BYTES].decode(errors="replace"))
