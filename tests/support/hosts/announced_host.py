"""Announces a module as its host does, heartbeat by heartbeat, or all the time."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio import Redis

from toolfleet_registry.directory.hosts import Announcement, AnnouncingHost, hosts_seal
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.settings import Settings


class AnnouncedHost:
    """One host's heartbeats, with a counter that grows. `key` signs them."""

    def __init__(self, redis: Redis, name: str, *, key: str = "", module: str = "owls", **fields: Any) -> None:
        self.fields: dict[str, Any] = {"module": module, "url": f"http://{name}.test", "digest": "one"} | fields
        self.id = f"host-{name}"
        self.module = module
        self.writer = AnnouncingHost(redis, Settings(), hosts_seal(key))
        self.counter = 0

    async def announce(self, **fields: Any) -> Announcement:
        """Write one heartbeat, with these fields instead of the right ones."""
        self.counter += 1
        facts: dict[str, Any] = (
            self.fields | {"id": self.id, "at": await self.writer.now(), "counter": self.counter} | fields
        )
        said = Announcement(**facts)
        await self.writer.announce(said)
        return said

    async def leave(self) -> int:
        """End in good order. Returns how many others go on."""
        return await self.writer.leave(self.module, self.id)


@asynccontextmanager
async def announced(redis_url: str, name: str, *, leaves: bool = True, **fields: Any) -> AsyncGenerator[AnnouncedHost]:
    """A host that announces itself meanwhile. Without `leaves` it falls silent at the end, as if it were killed."""
    async with async_client(redis_url) as redis:
        host = AnnouncedHost(redis, name, **fields)
        await host.announce()

        async def keep() -> None:
            while True:
                await asyncio.sleep(0.5)
                await host.announce()

        keeping = asyncio.create_task(keep())
        try:
            yield host
        finally:
            keeping.cancel()
            await asyncio.wait([keeping])
            if leaves:
                await host.leave()
