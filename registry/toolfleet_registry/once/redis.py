"""Replies in a Redis: for a module of several processes or machines, and one that restarts."""

import asyncio
import json
import math
import time
from dataclasses import asdict
from typing import Any

from redis.asyncio import Redis

from toolfleet_registry.once.port import Record
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.servers import async_client


class RedisReplies:
    """Remembers each call for `seconds`. `prefix` goes before every key.

    It can say that a call was never begun only if nothing can have been lost: not within `longest_call_seconds` after
    Redis has (re)started or a replica took over, as the latest writes may be gone then, nor in a Redis that evicts keys.
    Connects at the first call. Raises `SettingsError` for a URL that is none.
    """

    def __init__(self, url: str, *, seconds: float = 86_400, prefix: str = "", master: str | None = None) -> None:
        if seconds <= 0:
            raise ValueError("seconds must be positive.")
        self._url, self._master = url, master
        self._keys = Keys(prefix)
        self._seconds = seconds
        self._made: tuple[asyncio.AbstractEventLoop, Redis, asyncio.Semaphore] | None = None
        async_client(url, master=master)  # says what is wrong with the URL

    async def get(self, call_id: str) -> Record | None:
        """As the protocol says."""
        redis, room = self._redis()
        async with room:
            found = await redis.get(self._keys.module_reply(call_id))
        return None if found is None else Record(**json.loads(_text(found).partition("\n")[2]))

    async def swap(self, call_id: str, seen: str | None, record: Record | None) -> bool:
        """As the protocol says."""
        value = "" if record is None else f"{record.token}\n{json.dumps(asdict(record))}"
        redis, room = self._redis()
        async with room:
            run: Any = redis.eval(
                _SWAP,
                2,
                self._keys.module_reply(call_id),
                self._keys.module_replies,
                seen or "",
                value,
                str(math.ceil(self._seconds * 1000)),
                f"{_KEPT_FOR}{self._seconds!r}",
                str(time.time()),
            )
            return bool(await run)

    async def complete_since(self) -> float:
        """As the protocol says: a Redis that is not the one it was has perhaps forgotten the last thing it was told."""
        redis, room = self._redis()
        async with room:
            server, memory = await redis.info("server"), await redis.info("memory")
            if memory.get("maxmemory") and memory.get("maxmemory_policy") != "noeviction":
                return math.inf
            now = time.time()
            run: Any = redis.eval(_SINCE, 1, self._keys.module_replies, str(server["run_id"]), str(now))
            known = [_text(each) for each in await run]
        kept = dict(zip(known[::2], map(float, known[1::2]), strict=True))
        since = kept.pop("since")
        # What was written when the seconds were fewer is forgotten after those, whatever they are now.
        seconds = {float(name.removeprefix(_KEPT_FOR)): until for name, until in kept.items()}
        shorter = [min(until, now - each) for each, until in seconds.items() if each < self._seconds]
        return max(since, now - self._seconds, *shorter)

    async def aclose(self) -> None:
        """Close the connections."""
        if self._made is not None:
            (_, redis, _), self._made = self._made, None
            await redis.aclose()

    def _redis(self) -> tuple[Redis, asyncio.Semaphore]:
        loop = asyncio.get_running_loop()
        if self._made is None or self._made[0] is not loop:
            client = async_client(self._url, master=self._master, timeout_seconds=_PATIENCE_SECONDS)
            self._made = loop, client, asyncio.Semaphore(_CONNECTIONS)
        return self._made[1:]


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


_PATIENCE_SECONDS = 2.0
_CONNECTIONS = 32
_KEPT_FOR = "kept_for:"  # and a number of seconds: when something was last written to be kept for that long

_SWAP = """
local found = redis.call('GET', KEYS[1])
if ARGV[1] == '' then
  if found then return 0 end
elseif not found or string.sub(found, 1, #ARGV[1] + 1) ~= ARGV[1] .. '\\n' then
  return 0
end
if ARGV[2] == '' then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
  redis.call('HSET', KEYS[2], ARGV[4], ARGV[5])
end
return 1
"""

_SINCE = """
if redis.call('HGET', KEYS[1], 'run_id') ~= ARGV[1] then
  redis.call('HSET', KEYS[1], 'run_id', ARGV[1], 'since', ARGV[2])
end
local known = redis.call('HGETALL', KEYS[1])
local told = {}
for at = 1, #known, 2 do
  if known[at] ~= 'run_id' then
    told[#told + 1] = known[at]
    told[#told + 1] = known[at + 1]
  end
end
return told
"""
