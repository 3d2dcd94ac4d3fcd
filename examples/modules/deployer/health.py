"""Whether a process answers as it should."""

import asyncio
import contextlib
import re

from modules.deployer.front import Upstream

_STATUS = re.compile(rb"HTTP/1\.[01] [23]\d\d[ \r\n]")


async def is_healthy(upstream: Upstream, path: str, *, seconds: float) -> bool:
    """Whether `GET path` is answered within `seconds` with a status from 200 to 399. Of the answer only the status is read."""
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    with contextlib.suppress(OSError, ValueError):  # of a first line without an end, too
        async with asyncio.timeout(seconds):
            reader, writer = await upstream.connect()
            with contextlib.closing(writer):
                writer.write(request.encode("ascii"))
                return _STATUS.match(await reader.readline()) is not None
    return False
