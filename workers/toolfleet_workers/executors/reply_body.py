"""The body of a module's reply, read within a limit."""

import aiohttp

from toolfleet_registry.bodies import BodyReader
from toolfleet_workers.executors.headers import read_header


async def read_reply(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The body, as `BodyReader` reads it; aiohttp's errors pass."""
    reader = BodyReader(
        limit,
        encoding=read_header(response, "Content-Encoding") or "",
        announced=read_header(response, "Content-Length") or "",
    )
    while chunk := await response.content.readany():
        reader.feed(chunk)
    return reader.finish()
