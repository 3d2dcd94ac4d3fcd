"""No queue: the agent posts to the module itself. As many do it (a client per call), pooled, and with aiohttp."""

from typing import Any

import httpx
from benchmarks.posting import AsyncPoster
from benchmarks.work import MODULE_URL, Call, path_of

_SECONDS = 60


class NewClientEachTime:
    """A new httpx client for every call: each reads the certificates, and connects."""

    async def open(self) -> None:
        """Nothing to connect."""

    async def call(self, call: Call) -> dict[str, Any]:
        """Post the call."""
        async with httpx.AsyncClient(timeout=_SECONDS) as client:
            return await _post(client, call)

    async def publish(self, call: Call) -> None:
        """There is nothing to publish to."""
        raise NotImplementedError


class PooledClient(NewClientEachTime):
    """One httpx client for all calls."""

    async def open(self) -> None:
        """Make the client."""
        limits = httpx.Limits(max_connections=600, max_keepalive_connections=600)
        self._client = httpx.AsyncClient(timeout=_SECONDS, limits=limits)

    async def call(self, call: Call) -> dict[str, Any]:
        """Post the call."""
        return await _post(self._client, call)


class AiohttpClient(NewClientEachTime):
    """One aiohttp session for all calls: what the module and the machine can do at most."""

    async def open(self) -> None:
        """Make the poster."""
        self._post = AsyncPoster()

    async def call(self, call: Call) -> dict[str, Any]:
        """Post the call."""
        return await self._post(call.tool_name, call.arguments, call.user_id)


async def _post(client: httpx.AsyncClient, call: Call) -> dict[str, Any]:
    response = await client.post(MODULE_URL + path_of(call.tool_name), json=call.body())
    response.raise_for_status()
    return response.json()


def connect(variant: str) -> NewClientEachTime:
    """Which of the three: `new`, `pooled`, `aiohttp`."""
    return {"new": NewClientEachTime, "pooled": PooledClient, "aiohttp": AiohttpClient}[variant]()
