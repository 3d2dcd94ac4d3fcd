"""Remembers the wake-ups that a core has acted on, so that it acts on each once: in any store, or in Redis as a hash each, with a TTL."""

import math
from collections.abc import Awaitable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

from redis.asyncio.client import Pipeline

from toolfleet_registry.errors import SettingsError, WakeLost
from toolfleet_registry.once.port import OnceStore, PatientStore, Record
from toolfleet_registry.once.redis import RedisStore
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.script import ScriptFolder
from toolfleet_registry.system import machine_clock

REMEMBERED_SECONDS = 30 * 86_400
"""Longer than any fleet tries a wake-up; and than it makes sense to replay a dead one."""

_PATIENCE_SECONDS = 15.0  # for a user's own store; ours give up sooner
_MOST_TRIES = 10  # of a change while others change the same record
_DONE = "#done"  # after the token of the delivery that has acted: each writing but a renewal has its own


@dataclass(frozen=True, slots=True)
class ClaimState:
    """The state of a wake-up: `ours`; `done`; or `busy`, being processed by another delivery for at most so many seconds more."""

    state: Literal["ours", "done", "busy"]
    rest_seconds: float = 0


class Seen(OnceStore, Protocol):
    """A store that a core's own transaction can write to."""

    def swap_in(self, transaction: object, name: str, seen: str, record: Record) -> object:
        """Have the caller's own transaction do a `swap`, or nothing. Raises `WakeLost` where another record is there.

        Raises `TypeError` for a transaction of another kind.
        """
        ...


class WakeMemory:
    """The shared memory of several processes of a core, in one store.

    Each method raises `FleetUnavailable` when that does not answer.

    A `token` is one delivery's: a delivery that has lost a wake-up to another can neither mark nor release it.
    """

    def __init__(self, store: OnceStore) -> None:
        self._store = store  # for what belongs to a transaction
        self._patient = PatientStore(store, seconds=_PATIENCE_SECONDS)

    async def claim(self, wake_id: str, token: str, *, seconds: float) -> ClaimState:
        """Ask for a wake-up, to be at it for so many seconds. Asked again with the same token, it is `ours` again."""
        seen: str | None = None
        for _ in range(_MOST_TRIES):
            if await self._patient.swap(wake_id, seen, _running(token, seconds)):
                return ClaimState("ours")
            found = await self._patient.get(wake_id)
            seen = None if found is None else found.token
            if found is not None and found.state == "done":
                return ClaimState("done")
            if found is not None and seen != token and (rest := found.until - machine_clock.wall()) > 0:
                if rest > seconds + 1:  # the store's clock was set back: it must not hold for that much longer
                    await self._patient.swap(wake_id, seen, replace(found, until=machine_clock.wall() + seconds))
                return ClaimState("busy", min(rest, seconds))
        return ClaimState("busy", 1)

    async def renew(self, wake_id: str, token: str, *, seconds: float) -> bool:
        """Extend the claim by so many seconds from now on. `False` if it is no longer ours."""
        return await self._patient.swap(wake_id, token, _running(token, seconds))

    async def done(self, wake_id: str, token: str) -> bool:
        """Remember that it was acted on, also when nothing is known of it any more. `False`: another has it."""
        seen: str | None = token
        for _ in range(_MOST_TRIES):
            if await self._patient.swap(wake_id, seen, _done(token)):
                return True
            found = await self._patient.get(wake_id)
            if found is not None and found.token != token:
                return found == _done(token)  # the answer to our own writing was lost
            seen = None if found is None else found.token
        return False

    async def is_done(self, wake_id: str) -> bool:
        """Return whether it was processed."""
        found = await self._patient.get(wake_id)
        return found is not None and found.state == "done"

    async def release(self, wake_id: str, token: str) -> None:
        """Forget it, if it is ours and not done: the next delivery may have it."""
        await self._patient.swap(wake_id, token, None)

    def done_in(self, transaction: object, wake_id: str, token: str) -> object:
        """Have the mark made by the caller's own transaction, or not at all. Raises as `Seen.swap_in`."""
        swap_in = getattr(self._store, "swap_in", None)
        if swap_in is None:
            raise TypeError(f"{type(self._store).__name__} marks in no transaction: RedisSeen and SQLSeen do.")
        answer: object = swap_in(transaction, wake_id, token, _done(token))
        return answer


def check_kept(record: Record) -> Record:
    """The record, if a store of wake-ups can keep it: who is at one, or has acted. Raises `ValueError`."""
    if record.state not in {"running", "done"} or record.fingerprint or record.reply:
        raise ValueError("What a core remembers of wake-ups has no replies: a module needs another store.")
    return record


def _running(token: str, seconds: float) -> Record:
    return Record("running", token, until=machine_clock.wall() + seconds)


def _done(token: str) -> Record:
    return Record("done", f"{token}{_DONE}")


FILES = ScriptFolder(Path(__file__).parent / "lua")
_SWAP = FILES.script("swap")
_REDIS_PATIENCE_SECONDS = 5.0


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
            from toolfleet_registry.settings import load_settings  # a core with a URL reads none

            settings = load_settings()
            if settings.redis_url is None:
                raise SettingsError(
                    "There is no Redis to remember in: give RedisSeen a URL, or set TOOLFLEET_REDIS_URL."
                )
            url, key_prefix, sentinel_master = settings.redis_url, settings.key_prefix, settings.sentinel_master
        super().__init__(url, master=sentinel_master, patience_seconds=_REDIS_PATIENCE_SECONDS)
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
