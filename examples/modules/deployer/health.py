"""Whether a process answers as it should."""

import asyncio

import httpx

from modules.deployer.front import LOOPBACK


async def is_healthy(port: int, path: str, *, seconds: float) -> bool:
    """Whether `GET path` is answered within `seconds` with a status below 400. Of the answer only the status is read."""
    try:
        async with (
            asyncio.timeout(seconds),
            httpx.AsyncClient(trust_env=False, timeout=seconds) as client,
            client.stream("GET", f"http://{LOOPBACK}:{port}{path}") as response,
        ):
            return response.status_code < httpx.codes.BAD_REQUEST
    except (httpx.HTTPError, httpx.InvalidURL, OSError, TimeoutError):
        return False
