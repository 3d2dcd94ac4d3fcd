"""Redis lists as queues, with nothing around them: one item a command, or as many as there are."""

from benchmarks.work import REDIS_URL
from redis.asyncio import Redis

CALLS = "raw:calls"
_WAIT_SECONDS = 5
_BLMPOP_SINCE = 7  # of Redis


class Lists:
    """Takes from the old end; waits for some seconds when there is nothing."""

    def __init__(self) -> None:
        # As many connections as there are calls in flight; a wait may take its time.
        self.redis = Redis.from_url(REDIS_URL, max_connections=2000, socket_timeout=None)

    async def open(self) -> None:
        """See what this Redis can do."""
        version = (await self.redis.info("server"))["redis_version"]
        self._has_blmpop = int(version.partition(".")[0]) >= _BLMPOP_SINCE

    async def take_one(self, name: str) -> list[bytes]:
        """One item, or none."""
        found = await self.redis.brpop(name, timeout=_WAIT_SECONDS)
        return [found[1]] if found else []

    async def take_many(self, name: str, most: int) -> list[bytes]:
        """Up to `most` items, or none."""
        if self._has_blmpop:
            found = await self.redis.blmpop(_WAIT_SECONDS, 1, name, direction="RIGHT", count=most)
            return found[1] if found else []
        return await self.redis.rpop(name, most) or await self.take_one(name)
