"""The start of an error's body: words for the model, on which nothing may depend, so it is not waited for."""

import asyncio
import contextlib

import httpx

from toolfleet_workers.executors.connections import CONNECTION_ERRORS
from toolfleet_workers.executors.error_text import readable

_MAX_BYTES = 16 * 2**10  # as sent: 2 kB of text, however much of it is colour
# The status has said what happened. A body that trickles must not turn "busy" into "timed out".
_PATIENCE_SECONDS = 2


async def start_of_error(response: httpx.Response) -> str:
    """Readable text from the body: what came of it in time and before the connection was lost."""
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":  # we asked for none; not worth a decompression bomb
        return readable(f"[{encoding} data]")
    body = bytearray()
    with contextlib.suppress(TimeoutError, *CONNECTION_ERRORS):
        async with asyncio.timeout(_PATIENCE_SECONDS):
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) >= _MAX_BYTES:
                    break
    return readable(body[:_MAX_BYTES].decode(errors="replace"))
