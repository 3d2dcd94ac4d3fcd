"""Checks each Redis: how it is set up, how full it is and how soon it answers, what the fleet may do there, and which keys grow without an end."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError

from toolfleet_cli.doctor.check import CheckResult, Diagnosis, Patient, error, remark, warning
from toolfleet_registry.redis.keys import Keys, canary_key
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import machine_clock, randomness
from toolfleet_tasks.control.server_check import faults_in
from toolfleet_tasks.operations.fleet_status import KeyCensus, count_keys

_TRIES = 25  # a machine that is busy answers a few late, one after the other
_SLOW_MS, _VERY_SLOW_MS = 20.0, 100.0  # a call has some five round trips, one after the other
_FULL, _NEARLY_FULL = 0.95, 0.8
_CLIENTS = 0.8
_SHOWN = (
    "redis_version",
    "role",
    "uptime_in_seconds",
    "used_memory",
    "maxmemory",
    "total_system_memory",
    "maxmemory_policy",
    "connected_clients",
    "maxclients",
    "evicted_keys",
    "aof_enabled",
    "aof_last_write_status",
    "rdb_last_bgsave_status",
    "connected_slaves",
    "mem_fragmentation_ratio",
    "instantaneous_ops_per_sec",
)

_SECONDS_LEFT = 5

_MOST = 200_000  # keys: a second or two of Redis, a millisecond at a time
_NEARLY = 0.9


@dataclass(frozen=True, slots=True)
class RedisCheck:
    """Both servers, where the broker has one of its own."""

    name: str = "redis"
    asks_redis: bool = True
    seconds: float = 15.0

    async def examine(self, patient: Patient) -> CheckResult:
        """See the module."""
        findings, facts = list[Diagnosis](), dict[str, Any]()
        for name, url in patient.servers().items():
            async with async_client(url, master=patient.settings.sentinel_master, timeout_seconds=3) as redis:
                found, seen = await _at(redis, name, allows_eviction=patient.settings.allow_eviction)
            findings += found
            facts[name] = seen
        return CheckResult(tuple(findings), facts)


async def _at(redis: Redis, name: str, *, allows_eviction: bool) -> tuple[list[Diagnosis], dict[str, Any]]:
    try:
        info: Mapping[str, Any] = await redis.info()
    except ResponseError as exc:
        return [_no_info(name, exc)], {}
    fsync, milliseconds = await _fsync(redis), await _round_trip_ms(redis)
    found = [
        *_faults(info, name, allows_eviction=allows_eviction),
        *_durability(info, name, fsync),
        *_memory(info, name),
        *_clients(info, name),
        *_latency(name, milliseconds),
    ]
    return found, {
        **{key: info[key] for key in _SHOWN if key in info},
        "appendfsync": fsync,
        "round_trip_ms": milliseconds,
    }


def _faults(info: Mapping[str, Any], name: str, *, allows_eviction: bool) -> Iterable[Diagnosis]:
    """Yield the faults with which workers refuse to start, or that they log, at their start."""
    for fault in faults_in(info, name, allows_eviction=allows_eviction):
        make = error if fault.is_fatal else warning
        yield make(fault.text, fault.why, fault.mend)


def _durability(info: Mapping[str, Any], name: str, fsync: str | None) -> Iterable[Diagnosis]:
    why = "What Redis has confirmed is gone after a crash, and calls that had begun are begun again."
    if info.get("role") == "slave":
        yield error(
            f"{name} is a replica: it takes no writes.",
            "No call can be published or ended there.",
            "Set TOOLFLEET_REDIS_URL to the master, or to the sentinels that know it (sentinel://…).",
        )
    if info.get("loading"):
        yield warning(
            f"{name} is still reading its file.", "Until then it refuses everything.", "Wait, and look again."
        )
    if info.get("aof_enabled") and fsync not in {None, "always"}:
        text = f"{name} writes its file later than it answers (appendfsync {fsync})."
        yield warning(text, why, "toolfleet redis-cli config set appendfsync always, and the same in redis.conf")
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        text = f"{name} could not write its last snapshot."
        yield warning(
            text, "With `stop-writes-on-bgsave-error` it refuses writes.", "See its log: the disk may be full."
        )
    if info.get("aof_last_bgrewrite_status", "ok") != "ok":
        text = f"{name} could not rewrite its append-only file."
        yield warning(text, "The file grows until the disk is full.", "See its log: the disk may be full.")


def _memory(info: Mapping[str, Any], name: str) -> Iterable[Diagnosis]:
    used, most = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    limit = most or int(info.get("total_system_memory", 0))
    if limit and used > _NEARLY_FULL * limit:
        make = error if used > _FULL * limit else warning
        yield make(
            f"{name} uses {used / limit:.0%} of the memory that it may have ({limit / 2**20:,.0f} MB).",
            "When it is full it refuses writes, and calls end as `fleet_unavailable`.",
            "Raise `maxmemory`, or lower TOOLFLEET_RESULT_TTL_SECONDS and TOOLFLEET_BACKLOG_BYTES.",
        )
    if int(info.get("evicted_keys", 0)):
        yield error(
            f"{name} has deleted {info['evicted_keys']} keys because it was full.",
            "Queues and the record of what was executed may be among them: calls are lost, or run twice.",
            "toolfleet redis-cli config set maxmemory-policy noeviction, and raise maxmemory",
        )


def _clients(info: Mapping[str, Any], name: str) -> Iterable[Diagnosis]:
    clients, most = int(info.get("connected_clients", 0)), int(info.get("maxclients", 0))
    if most and clients > _CLIENTS * most:
        yield warning(
            f"{name} has {clients} of at most {most} connections.",
            "Further agents and workers cannot connect.",
            f"toolfleet redis-cli config set maxclients {2 * most}, and raise its limit of open files",
        )


def _latency(name: str, milliseconds: float) -> Iterable[Diagnosis]:
    if milliseconds > _SLOW_MS:
        make = error if milliseconds > _VERY_SLOW_MS else warning
        yield make(
            f"{name} takes {milliseconds:.0f} ms for an answer, at best.",
            "A call waits for several, one after the other.",
            "Run agents, workers and Redis in one network; `toolfleet redis-cli --latency` measures, `slowlog get` says what blocks it.",
        )


async def _fsync(redis: Redis) -> str | None:
    """Return when its file is written; `None` if this user may not ask."""
    try:
        found = await redis.config_get("appendfsync")
    except ResponseError:
        return None
    return next((str(value) for value in found.values()), None)


async def _round_trip_ms(redis: Redis) -> float:
    """Return the shortest of several round trips: the network's time, without this machine's load."""
    best = float("inf")
    for _ in range(_TRIES):
        begun_at = machine_clock.monotonic()
        await redis.execute_command("PING")
        best = min(best, machine_clock.monotonic() - begun_at)
    return round(best * 1000, 3)


def _no_info(name: str, exc: RedisError) -> Diagnosis:
    return warning(
        f"{name} does not say how it is set up ({exc}).",
        "Nobody sees whether it deletes keys, or forgets them.",
        "ACL SETUSER NAME +info",
    )


@dataclass(frozen=True, slots=True)
class RightsCheck:
    """Leaves one key, which expires after seconds."""

    name: str = "redis rights"
    asks_redis: bool = True
    seconds: float = 10.0

    async def examine(self, patient: Patient) -> CheckResult:
        """See the module."""
        findings, refused = list[Diagnosis](), dict[str, list[str]]()
        for name, url in patient.servers().items():
            async with async_client(url, master=patient.settings.sentinel_master, timeout_seconds=3) as redis:
                refused[name] = await _refused(redis, patient.settings.keys)
            findings += _refused_rights(name, refused[name], patient.settings.key_prefix)
        return CheckResult(tuple(findings), {"refused": refused})


async def _refused(redis: Redis, keys: Keys) -> list[str]:
    """The commands that this user may not send, of those that agents and workers do."""
    key, channel = canary_key(keys, randomness.uuid4().hex), keys.manifests_changed
    tried: list[tuple[str | int, ...]] = [
        ("TIME",),
        ("EVAL", "redis.call('SET', KEYS[1], 1, 'EX', ARGV[1]) return 1", 1, key, _SECONDS_LEFT),
        ("GET", key),
        ("PUBLISH", channel, ""),
        ("PUBSUB", "CHANNELS", keys.holder("*")),
        ("SCAN", 0, "COUNT", 1),
        ("LLEN", keys.queue("toolfleet.control")),
        ("ZCARD", keys.jobs_due),
        ("XLEN", keys.audit),
        ("INFO", "server"),
    ]
    refused = list[str]()
    for command in tried:
        try:
            await redis.execute_command(*command)
        except (NoPermissionError, AuthenticationError):
            refused.append(str(command[0]))
        except ResponseError as exc:
            if "NOPERM" in str(exc) or "acl" in str(exc).lower():  # from inside a script, too
                refused.append(str(command[0]))
    return refused


def _refused_rights(name: str, refused: list[str], prefix: str) -> Iterable[Diagnosis]:
    if refused:
        names = ", ".join(refused)
        yield error(
            f"{name} refuses {names} to this user.",
            "Calls that need it end as `fleet_unavailable`, or workers miss each other.",
            f"ACL SETUSER NAME resetchannels ~{prefix}* &{prefix}* -@all +@read +@write +@connection +@pubsub +@transaction "
            "+@scripting +time -@dangerous +info (docs/operations/redis.md)",
        )


@dataclass(frozen=True, slots=True)
class KeyCheck:
    """Checks the stored keys; of more than 200,000 only the first ones that Redis returns."""

    name: str = "keys"
    asks_redis: bool = True
    seconds: float = 20.0

    async def examine(self, patient: Patient) -> CheckResult:
        """See the module."""
        settings, keys = patient.settings, patient.settings.keys
        async with patient.redis() as redis:
            census = await count_keys(redis, keys, at_most=_MOST)
            kinds = keys.dead_order, keys.dead_wakes_order, keys.dead_webhooks("-order")
            size = max([await redis.zcard(order) for order in kinds])
            sizes = {"TOOLFLEET_DEAD_LETTERS_KEPT": (size, settings.dead_letters_kept)}
        facts = {
            "seen": census.seen,
            "is_whole": census.is_whole,
            "by_rule": dict(census.by_rule),
            "endless": dict(census.endless),
            "foreign": census.foreign,
        }
        return CheckResult((*_growing_keys(census, settings), *_full(sizes)), facts)


def _growing_keys(census: KeyCensus, settings: Settings) -> Iterable[Diagnosis]:
    for pattern, count in census.endless.items():
        yield warning(
            f"{count} keys like {settings.key_prefix}{pattern} never expire.",
            "They stay for ever, and fill Redis.",
            "Something else than Toolfleet writes there, or a defect does. Have a look, then give them an end: "
            "toolfleet redis-cli expire KEY 86400. Please report it with `toolfleet doctor --bundle FILE`.",
        )
    if census.foreign:
        yield remark(
            f"{census.foreign} keys in this database are none of this fleet's.",
            "Whatever else uses it can fill it, or flush it.",
            "Give the fleet a database or a prefix of its own (TOOLFLEET_KEY_PREFIX).",
        )


def _full(sizes: dict[str, tuple[int, int]]) -> Iterable[Diagnosis]:
    for name, (size, most) in sizes.items():
        if size > _NEARLY * most:
            text = f"{size} of at most {most} are kept ({name})."
            yield warning(
                text,
                "The oldest are dropped from then on, unseen.",
                "toolfleet dead-letters list, then replay or drop them",
            )
