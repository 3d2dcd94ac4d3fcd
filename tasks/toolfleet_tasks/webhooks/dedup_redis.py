"""A core's memory of wake-ups in Redis: a hash each, with a TTL."""

from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from toolfleet_registry.errors import WakeLost
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.redis_errors import answering
from toolfleet_registry.redis.script import Script, ScriptFolder
from toolfleet_registry.redis.servers import async_client
from toolfleet_tasks.webhooks.dedup import REMEMBERED_SECONDS, Standing

_PATIENCE_SECONDS = 5

FILES = ScriptFolder(Path(__file__).parent / "lua")
_CLAIM, _RENEW, _DONE, _RELEASE = (FILES.script(name) for name in ("claim", "renew", "done", "release"))


class RedisSeen:
    """A `Seen` in Redis, which should keep what it has: without an append-only file a restart forgets, and acts may be repeated.

    `receiver` tells cores apart that share a Redis. `remember_seconds` must exceed the fleet's `wake_give_up_seconds`.
    """

    def __init__(
        self,
        url: str,
        *,
        receiver: str = "core",
        remember_seconds: int = REMEMBERED_SECONDS,
        key_prefix: str = "",
        sentinel_master: str | None = None,
    ) -> None:
        self._redis: Redis = async_client(url, master=sentinel_master, timeout_seconds=_PATIENCE_SECONDS)
        self._receiver = receiver
        self._remember_seconds = remember_seconds
        self._keys = Keys(key_prefix)

    async def claim(self, wake_id: str, token: str, *, seconds: float) -> Standing:
        """As `Seen`."""
        rest = await self._run(_CLAIM, wake_id, token, ms=int(seconds * 1000), kept_seconds=self._remember_seconds)
        if rest < 0:
            return Standing("done")
        return Standing("busy", rest / 1000) if rest > 0 else Standing("ours")

    async def renew(self, wake_id: str, token: str, *, seconds: float) -> bool:
        """As `Seen`."""
        return await self._run(_RENEW, wake_id, token, ms=int(seconds * 1000)) == 1

    async def done(self, wake_id: str, token: str) -> bool:
        """As `Seen`."""
        return await self._run(_DONE, wake_id, token, kept_seconds=self._remember_seconds) == 1

    async def is_done(self, wake_id: str) -> bool:
        """As `Seen`."""
        async with self._answering():
            return bool(await self._redis.execute_command("HEXISTS", self._key(wake_id), "done"))

    async def release(self, wake_id: str, token: str) -> None:
        """As `Seen`."""
        await self._run(_RELEASE, wake_id, token)

    def done_in(self, transaction: object, wake_id: str, token: str) -> Awaitable[None]:
        """As `Seen`: await it with a fresh `redis.asyncio` pipeline to the same Redis, then queue the act's commands and execute."""
        if not isinstance(transaction, Pipeline):
            raise TypeError("RedisSeen marks in a pipeline of redis.asyncio, which is a MULTI.")
        return self._mark(transaction, wake_id, token)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._redis.aclose()

    async def _mark(self, pipe: Pipeline, wake_id: str, token: str) -> None:
        key = self._key(wake_id)
        await pipe.watch(key)  # whoever takes it from now on breaks the MULTI
        held = await pipe.immediate_execute_command("HGET", key, "token")
        if held not in {token, token.encode()}:
            raise WakeLost(wake_id)
        pipe.multi()
        pipe.execute_command("HSET", key, "token", token, "done", 1)
        pipe.execute_command("EXPIRE", key, self._remember_seconds)

    async def _run(self, script: Script, wake_id: str, token: str, **args: int) -> int:
        command = script.command(seen=self._key(wake_id), token=token, **args)
        async with self._answering():
            answer: Any = await self._redis.execute_command(*command)
        return int(answer)

    def _key(self, wake_id: str) -> str:
        return self._keys.seen(self._receiver, wake_id)

    @asynccontextmanager
    async def _answering(self) -> AsyncGenerator[None]:
        async with answering(self._redis, seconds=_PATIENCE_SECONDS):
            yield
