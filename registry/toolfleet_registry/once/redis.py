"""Keeps records in a Redis: for processes on several machines, and such as restart."""

import asyncio
import json
import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from toolfleet_registry.once.port import Record
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.script import ScriptFolder
from toolfleet_registry.redis.servers import answering, async_client
from toolfleet_registry.system import machine_clock

FILES = ScriptFolder(Path(__file__).parent / "lua")
_SWAP, _SINCE = FILES.script("swap"), FILES.script("since")


class RedisStore:
    """Asks a Redis over connections of each event loop's own, which are made at the first question.

    Raises `SettingsError` for a URL that is none, and `FleetUnavailable` where no answer comes within `patience_seconds`.
    """

    def __init__(self, url: str, *, master: str | None, patience_seconds: float) -> None:
        self._url, self._master, self._patience_seconds = url, master, patience_seconds
        self._made: tuple[asyncio.AbstractEventLoop, Redis, asyncio.Semaphore] | None = None
        async_client(url, master=master)  # says what is wrong with the URL

    async def ask(self, *command: Any) -> Any:
        """Have one command answered."""
        async with self.asking() as redis:
            return await redis.execute_command(*command)

    @asynccontextmanager
    async def asking(self) -> AsyncGenerator[Redis]:
        """Yield the client, for as long as one answer may take."""
        redis, slots = self._client()
        async with answering(redis, seconds=self._patience_seconds), slots:
            yield redis

    async def aclose(self) -> None:
        """Close the connections."""
        if self._made is not None:
            (_, redis, _), self._made = self._made, None
            await redis.aclose()

    def _client(self) -> tuple[Redis, asyncio.Semaphore]:
        loop = asyncio.get_running_loop()
        if self._made is None or self._made[0] is not loop:
            client = async_client(self._url, master=self._master, timeout_seconds=self._patience_seconds)
            self._made = loop, client, asyncio.Semaphore(_CONNECTIONS)
        return self._made[1:]


class RedisReplies(RedisStore):
    """Keeps the outcome of calls in Redis. It connects at the first call.

    It can say that a call was never started only if no record can have been lost: not within `longest_call_seconds` after
    Redis was started or a replica took over, as the latest writes can be lost then, and not in a Redis that evicts keys.

    Args:
        url: The Redis.
        seconds: How long each call is kept.
        prefix: The prefix of every key.
        master: The name of the master that the sentinels of a `sentinel://` URL watch.

    Raises:
        SettingsError: The URL is invalid.

    """

    def __init__(self, url: str, *, seconds: float = 86_400, prefix: str = "", master: str | None = None) -> None:
        if seconds <= 0:
            raise ValueError("seconds must be positive.")
        super().__init__(url, master=master, patience_seconds=_PATIENCE_SECONDS)
        self._keys = Keys(prefix)
        self._seconds = seconds

    async def get(self, name: str) -> Record | None:
        """Implements `OnceStore.get`."""
        found = await self.ask("GET", self._keys.module_reply(name))
        return None if found is None else Record(**json.loads(_text(found).partition("\n")[2]))

    async def swap(self, name: str, seen: str | None, record: Record | None) -> bool:
        """Implements `OnceStore.swap`."""
        value = "" if record is None else f"{record.token}\n{json.dumps(asdict(record))}"
        command = _SWAP.command(
            reply=self._keys.module_reply(name),
            replies=self._keys.module_replies,
            seen=seen or "",
            value=value,
            kept_ms=math.ceil(self._seconds * 1000),
            kept_field=f"{_KEPT_FOR}{self._seconds!r}",
            now_s=str(machine_clock.wall()),
        )
        return bool(await self.ask(*command))

    async def complete_since(self) -> float:
        """Implements `OnceStore.complete_since`: a Redis that was replaced may have lost the latest writes."""
        async with self.asking() as redis:
            server, memory = await redis.info("server"), await redis.info("memory")
        if memory.get("maxmemory") and memory.get("maxmemory_policy") != "noeviction":
            return math.inf
        now = machine_clock.wall()
        names = {"replies": self._keys.module_replies, "run_id": str(server["run_id"]), "now_s": str(now)}
        known = [_text(each) for each in await self.ask(*_SINCE.command(**names))]
        fields = dict(zip(known[::2], known[1::2], strict=True))
        # Records written with a shorter time expire after that, even if it is longer now.
        seconds = {
            float(name.removeprefix(_KEPT_FOR)): float(until)
            for name, until in fields.items()
            if name.startswith(_KEPT_FOR)
        }
        shorter = [min(until, now - each) for each, until in seconds.items() if each < self._seconds]
        return max(float(fields["since"]), now - self._seconds, *shorter)


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


_PATIENCE_SECONDS = 2.0  # for one answer: the fleet waits 5 s for a reconciliation
_CONNECTIONS = 32
_KEPT_FOR = "kept_for:"  # and a number of seconds: when something was last written to be kept for that long
