"""Whether a process answers as it should."""

import asyncio
import ssl

import httpx

from modules.deployer.front import LOOPBACK

_NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Nobody on a loopback port speaks TLS to us, and to read the machine's certificates takes longer than a look."""


async def is_healthy(port: int, path: str, *, seconds: float) -> bool:
    """Whether `GET path` is answered within `seconds` with a status below 400. Of the answer only the status is read."""
    try:
        async with (
            asyncio.timeout(seconds),
            httpx.AsyncClient(trust_env=False, timeout=seconds, verify=_NO_CERTIFICATES) as client,
            client.stream("GET", f"http://{LOOPBACK}:{port}{path}") as response,
        ):
            return response.status_code < httpx.codes.BAD_REQUEST
    except (httpx.HTTPError, httpx.InvalidURL, OSError, TimeoutError):
        return False
