"""Remembers a core's wake-ups in Redis: a hash each, with a TTL."""

import math
from collections.abc import Awaitable
from pathlib import Path

from redis.asyncio.client import Pipeline

from toolfleet_registry.errors import SettingsError, WakeLost
from toolfleet_registry.once.port import Record
from toolfleet_registry.once.redis import RedisStore
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.script import ScriptFolder
from toolfleet_registry.system import machine_clock
from toolfleet_tasks.webhooks.dedup import REMEMBERED_SECONDS, check_kept

FILES = ScriptFolder(Path(__file__).parent / "lua")
_SWAP = FILES.script("swap")
_PATIENCE_SECONDS = 5.0


class RedisSeen(RedisStore):
    """A `Seen` in Redis, which should keep what it has: without an append-only file a restart forgets, and acts may be repeated.

    Without a `url` it is the fleet's Redis, as the settings have it, with its key prefix. `receiver` tells cores apart that share a
    Redis. `remember_seconds` must exceed the fleet's `wake_give_up_seconds`. It keeps no replies, and leases by Redis's own clock.
    Raises `SettingsError` where neither names a Redis.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        receiver: str = "core",
        remember_seconds: int = REMEMBERED_SECONDS,
        key_prefix: str = "",
        sentinel_master: str | None = None,
    ) -> None:
        if url is None:
            from toolfleet_registry.settings import load_settings  # noqa: PLC0415 - a core with a URL reads none

            settings = load_settings()
            if settings.redis_url is None:
                raise SettingsError(
                    "There is no Redis to remember in: give RedisSeen a URL, or set TOOLFLEET_REDIS_URL."
                )
            url, key_prefix, sentinel_master = settings.redis_url, settings.key_prefix, settings.sentinel_master
        super().__init__(url, master=sentinel_master, patience_seconds=_PATIENCE_SECONDS)
        self._receiver = receiver
        self._remember_seconds = remember_seconds
        self._keys = Keys(key_prefix)

    async def get(self, name: str) -> Record | None:
        """Implements `Seen.get`."""
        async with self.asking() as redis, redis.pipeline(transaction=True) as pipe:
            pipe.time()
            pipe.execute_command("HMGET", self._key(name), "token", "until", "done")
            (seconds, micros), (token, until_ms, is_done) = await pipe.execute()
        if token is None:
            return None
        token = token if isinstance(token, str) else token.decode()
        if is_done:
            return Record("done", token)
        rest_seconds = float(until_ms or 0) / 1000 - seconds - micros / 1e6
        return Record("running", token, until=machine_clock.wall() + rest_seconds)

    async def swap(self, name: str, seen: str | None, record: Record | None) -> bool:
        """Implements `Seen.swap`."""
        command = _SWAP.command(
            seen=self._key(name),
            token=seen or "",
            new="" if record is None else check_kept(record).token,
            is_done=int(record is not None and record.state == "done"),
            lease_ms=0 if record is None else round((record.until - machine_clock.wall()) * 1000),
            kept_seconds=self._remember_seconds,
        )
        return bool(await self.ask(*command))

    async def complete_since(self) -> float:
        """Return `inf`: it is not recorded since when nothing is forgotten."""
        return math.inf

    def swap_in(self, transaction: object, name: str, seen: str, record: Record) -> Awaitable[None]:
        """Implements `Seen.swap_in`: await it with a fresh `redis.asyncio` pipeline to the same Redis, then queue the act's commands and execute."""
        if not isinstance(transaction, Pipeline):
            raise TypeError("RedisSeen marks in a pipeline of redis.asyncio, which is a MULTI.")
        return self._mark(transaction, name, seen, record)

    async def _mark(self, pipe: Pipeline, name: str, seen: str, record: Record) -> None:
        key = self._key(name)
        await pipe.watch(key)  # a process that takes it from now on breaks the MULTI
        held = await pipe.immediate_execute_command("HGET", key, "token")
        if held not in {seen, seen.encode()}:
            raise WakeLost(name)
        pipe.multi()
        pipe.execute_command("HSET", key, "token", record.token, "done", 1)
        pipe.execute_command("EXPIRE", key, self._remember_seconds)

    def _key(self, name: str) -> str:
        return self._keys.seen(self._receiver, name)
