"""Checks the Redis servers that a process is given, and says what is wrong with them before data is lost.

Workers refuse a server that evicts keys or is too old; other processes warn and continue. Asks `INFO` only: hosted
services answer no `CONFIG GET`. Fails open if Redis is away or does not answer that; the former is noticed soon, the
latter logged.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from toolfleet_registry.errors import SettingsError
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.redis.urls import is_redis_url
from toolfleet_registry.settings import Settings
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.system.process import this_process

log = get_logger(__name__)

_OLDEST = (6, 2)  # whose commands the scripts need
_SECONDS = 2.0  # for an answer: an agent's start waits for it
_REST_SECONDS = 5.0
_NO_EVICTION = "toolfleet redis-cli config set maxmemory-policy noeviction, and the same in redis.conf"
_APPEND_ONLY = "toolfleet redis-cli config set appendonly yes, then appendfsync always, and the same in redis.conf"
_SEE_DISK = "Make room on Redis's disk: `df -h` there."
_SEE_REPLICAS = "toolfleet redis-cli info replication"
_LATE_SECONDS = 10  # of a replica, for its master's last sign of it


async def refuse_cluster(redis: Redis) -> None:
    """Raise `SettingsError` if this is a node of a cluster. Fails open: who gets no answer will hear of that soon."""
    try:
        info = await redis.info("cluster")
    except (RedisError, OSError):
        return
    if info.get("cluster_enabled"):
        raise SettingsError(
            "Redis Cluster cannot carry Celery's queues: use a standalone Redis, or RabbitMQ as broker."
        )


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a server, as a sentence. `is_fatal`: a worker must not start there.

    `why` says why it matters and `mend` how to fix it, as far as the sentence does not.
    """

    text: str
    is_fatal: bool = False
    why: str = "Calls may be lost, or run twice."
    mend: str = ""


async def faults_of(settings: Settings, redis: Redis | None = None) -> list[Fault]:
    """Return what is wrong with the Redis of the results and that of the broker, if that is another one.

    Raises redis-py's errors.

    `redis` is a client of the first, if there is one.
    """
    found = [] if redis is None else await _faults_at(redis, "Redis", settings)
    names = {settings.broker: "The broker's Redis", settings.redis_url: "Redis"}
    for url, name in names.items():
        if url is not None and is_redis_url(url) and not (redis is not None and url == settings.redis_url):
            async with async_client(url, master=settings.sentinel_master, timeout_seconds=_SECONDS) as client:
                found += await _faults_at(client, name, settings)
    return found


async def require_fit(settings: Settings, redis: Redis | None = None) -> None:
    """Check a worker's servers at its start, and log what is wrong. `redis` is a client of the results' Redis.

    Raises `SettingsError` if it must not start, else redis-py's errors.
    """
    faults = await faults_of(settings, redis)
    _warn(fault for fault in faults if not fault.is_fatal)
    if fatal := [fault.text for fault in faults if fault.is_fatal]:
        raise SettingsError(" ".join(fatal))


async def insist_on_fit(settings: Settings) -> None:
    """The same for a worker that has started without its Redis: as soon as that answers. Raises `SettingsError`."""
    while True:
        try:
            await require_fit(settings)
        except (RedisError, OSError):
            await asyncio.sleep(_REST_SECONDS)
        else:
            return


async def say_faults(settings: Settings, redis: Redis | None = None) -> None:
    """Check the servers of an agent or beat at its start, and log what is wrong. Raises nothing."""
    try:
        _warn(await faults_of(settings, redis))
    except (RedisError, OSError) as exc:
        log.warning("redis_not_looked_at", error=str(exc))


def _said() -> set[str]:
    return set()


def _warn(faults: Iterable[Fault]) -> None:
    """Once a process: an agent may open a fleet for each of its calls."""
    said = this_process().part(_said)
    for text in [fault.text for fault in faults if fault.text not in said]:
        said.add(text)
        log.warning("redis_not_as_it_should_be", reason=text)


async def _faults_at(redis: Redis, name: str, settings: Settings) -> list[Fault]:
    try:
        info = await redis.info()
    except ResponseError as exc:  # a user who may not
        return [Fault(f"{name} does not say how it is set up ({exc}): let its user have `+info`.")]
    return faults_in(info, name, allows_eviction=settings.allow_eviction)


def faults_in(info: Mapping[str, Any], name: str, *, allows_eviction: bool) -> list[Fault]:
    """Return what is wrong with a server, by its own `INFO`."""
    return [
        *_eviction(info, name, allows_eviction),
        *_age(info, name),
        *_persistence(info, name),
        *_replicas(info, name),
    ]


def _eviction(info: Mapping[str, Any], name: str, is_allowed: bool) -> list[Fault]:  # noqa: FBT001 - of one caller
    policy = info.get("maxmemory_policy")
    if policy is None:
        text = f"{name} does not say whether it deletes keys when its memory is full (maxmemory-policy)."
        return [Fault(text, mend=_NO_EVICTION)]
    if policy == "noeviction":
        return []
    text = f"{name} deletes keys when its memory is full (maxmemory-policy {policy}), and forgets with them what was executed: "
    if is_allowed:
        text += "it may be executed twice. TOOLFLEET_ALLOW_EVICTION has workers start all the same."
        return [Fault(text, mend=_NO_EVICTION)]
    text += "set `maxmemory-policy noeviction`, or TOOLFLEET_ALLOW_EVICTION=1."
    return [Fault(text, is_fatal=True, mend=_NO_EVICTION)]


def _age(info: Mapping[str, Any], name: str) -> list[Fault]:
    version = str(info.get("redis_version", ""))
    numbers = tuple(int(number) for number in version.split(".")[:2] if number.isdigit())
    if not numbers or numbers >= _OLDEST:
        return []
    oldest = ".".join(map(str, _OLDEST))
    text = f"{name} is too old ({version}): the fleet needs {oldest} or later."
    return [Fault(text, is_fatal=True, why="Workers do not start there.", mend="Upgrade Redis.")]


def _persistence(info: Mapping[str, Any], name: str) -> list[Fault]:
    if not info.get("aof_enabled", 1):
        return [
            Fault(
                f"{name} keeps no append-only file: when it ends it forgets calls that had begun, which are begun again. "
                "Set `appendonly yes` and `appendfsync always`.",
                mend=_APPEND_ONLY,
            )
        ]
    if info.get("aof_last_write_status", "ok") != "ok":
        return [Fault(f"{name} cannot write its append-only file: see its log.", mend=_SEE_DISK)]
    return []


def _replicas(info: Mapping[str, Any], name: str) -> list[Fault]:
    count = int(info.get("connected_slaves", 0))
    replicas = [info.get(f"slave{number}") for number in range(count)]
    late = sum(1 for replica in replicas if isinstance(replica, dict) and _is_late(replica))
    if not late:
        return []
    return [
        Fault(
            f"{late} of the {count} replicas of {name} lag behind: a failover to one forgets what was confirmed.",
            mend=_SEE_REPLICAS,
        )
    ]


def _is_late(replica: Mapping[str, Any]) -> bool:
    return replica.get("state") != "online" or int(replica.get("lag", 0)) > _LATE_SECONDS
