"""Checks the servers: how each Redis is set up, how full and fast it is, what the fleet may do there and which keys grow; and RabbitMQ."""

import asyncio
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError

from toolfleet_cli.console import shown_url
from toolfleet_cli.doctor.check import CheckResult, Diagnosis, Patient, error, remark, warning
from toolfleet_registry.redis.keys import Keys, canary_key
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.settings import HARD_LIMIT_MARGIN, Settings
from toolfleet_registry.system import machine_clock, randomness
from toolfleet_tasks.control.server_check import faults_in

_TRIES = 25  # a machine that is busy answers a few late, one after the other
_SLOW_MS, _VERY_SLOW_MS = 20.0, 100.0  # a call has some five round trips, one after the other
_FULL, _NEARLY_FULL = 0.95, 0.8
_CLIENTS = 0.8
_SHOWN = tuple(
    """
    redis_version role uptime_in_seconds used_memory maxmemory total_system_memory maxmemory_policy
    connected_clients maxclients evicted_keys aof_enabled aof_last_write_status rdb_last_bgsave_status
    connected_slaves mem_fragmentation_ratio instantaneous_ops_per_sec
    """.split()
)

_SECONDS_LEFT = 5

_ASK_SECONDS = 5.0
_TIMEOUT = "rabbitmqctl eval 'application:get_env(rabbit, consumer_timeout).'"
_FIX = "consumer_timeout = {} in rabbitmq.conf, then restart RabbitMQ"

_MOST = 200_000  # keys: a second or two of Redis, a millisecond at a time
_AT_ONCE = 1000  # keys of one step of SCAN: Redis is at them for about a millisecond
_NEARLY = 0.9


@dataclass(slots=True)
class _KeyCensus:
    """Keys with the fleet's prefix: `by_rule` by the pattern of their rule, `endless` without the TTL that their rule needs, `foreign` without a rule.

    `is_whole`: all keys were seen. Names of keys may hold ids, and are not in here.
    """

    by_rule: Counter[str] = field(default_factory=Counter[str])
    endless: Counter[str] = field(default_factory=Counter[str])
    foreign: int = 0
    seen: int = 0
    is_whole: bool = True


async def check_redis(patient: Patient) -> CheckResult:
    """Check both Redis servers, where the broker has one of its own."""
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
        "Whether it deletes keys, or loses them in a crash, is not known.",
        "ACL SETUSER NAME +info",
    )


async def check_rights(patient: Patient) -> CheckResult:
    """Check that this user may send the commands that agents and workers send. Leaves one key, which expires after seconds."""
    findings, refused = list[Diagnosis](), dict[str, list[str]]()
    for name, url in patient.servers().items():
        async with async_client(url, master=patient.settings.sentinel_master, timeout_seconds=3) as redis:
            refused[name] = await _refused(redis, patient.settings.keys)
        findings += _refused_rights(name, refused[name], patient.settings.key_prefix)
    return CheckResult(tuple(findings), {"refused": refused})


async def _refused(redis: Redis, keys: Keys) -> list[str]:
    """Return the commands of agents and workers that this user may not send."""
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


async def check_keys(patient: Patient) -> CheckResult:
    """Check the stored keys; of more than 200,000 only the first ones that Redis returns."""
    settings, keys = patient.settings, patient.settings.keys
    async with patient.redis() as redis:
        census = await _count_keys(redis, keys)
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


async def _count_keys(redis: Redis, keys: Keys) -> _KeyCensus:
    census, cursor = _KeyCensus(), 0
    while True:
        cursor, found = await redis.scan(cursor, match=f"{keys.prefix}*", count=_AT_ONCE)
        names = [key if isinstance(key, str) else key.decode(errors="replace") for key in found]
        known = [(name, rule) for name in names if (rule := keys.rule_of(name)) is not None]
        census.seen += len(names)
        census.foreign += len(names) - len(known)
        census.by_rule.update(rule.pattern.pattern for _, rule in known)
        ending = [(name, rule.pattern.pattern) for name, rule in known if rule.lasting is None]
        pipe = redis.pipeline(transaction=False)
        for name, _ in ending:
            pipe.ttl(name)
        census.endless.update(
            pattern for (_, pattern), left in zip(ending, await pipe.execute(), strict=True) if left == -1
        )
        if cursor == 0 or census.seen >= _MOST:
            census.is_whole = cursor == 0
            return census


def _growing_keys(census: _KeyCensus, settings: Settings) -> Iterable[Diagnosis]:
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
            "Another program that uses the database can fill it, or flush it.",
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


async def check_rabbitmq(patient: Patient) -> CheckResult:
    """Check RabbitMQ; with Redis as the broker there is nothing to ask."""
    from toolfleet_tasks.aio import in_abandoned_thread

    settings = patient.settings
    if settings.has_redis_broker:
        return CheckResult()
    shown = shown_url(str(settings.broker))
    try:
        kinds = await in_abandoned_thread(lambda: _foreign_queues(settings), seconds=2 * _ASK_SECONDS)
    except Exception as exc:  # noqa: BLE001 - kombu and its transports raise anything
        text = f"The broker at {shown} does not answer: {exc or 'no answer in time'}."
        fix = "Start RabbitMQ, or correct TOOLFLEET_BROKER_URL."
        return CheckResult((error(text, "No call can be published or begun.", fix),))
    milliseconds = await _consumer_timeout()
    needed = int((settings.max_timeout + HARD_LIMIT_MARGIN) * 1000)
    facts = {"foreign_queues": kinds, "consumer_timeout_ms": milliseconds}
    return CheckResult((*_of_queues(kinds), *_of_timeout(milliseconds, needed)), facts)


def _of_queues(kinds: dict[str, str]) -> Iterable[Diagnosis]:
    for queue, reason in kinds.items():
        yield error(
            f"The queue {queue} is of another kind than the fleet's: {reason}.",
            "Workers cannot consume it: they end when they start.",
            f"Empty it, end all workers, then: rabbitmqctl delete_queue {queue}",
        )


def _of_timeout(milliseconds: int | None, needed: int) -> Iterable[Diagnosis]:
    if milliseconds is None:
        yield remark(
            "RabbitMQ's `consumer_timeout` cannot be asked from here.",
            f"It must exceed the longest call ({needed} ms): else RabbitMQ closes the worker's channel, and delivers its calls again.",
            f"Where RabbitMQ runs: {_TIMEOUT}",
        )
    elif milliseconds < needed:
        text = f"RabbitMQ lets a worker hold a message for {milliseconds} ms, and a call may take {needed} ms."
        why = "It closes the worker's channel then, and delivers all of its calls again."
        yield warning(text, why, f"{_FIX.format(needed)}; or lower TOOLFLEET_MAX_TIMEOUT")


def _foreign_queues(settings: Settings) -> dict[str, str]:
    """Return the queues that exist with other arguments than the fleet declares, and what RabbitMQ says about each."""
    from amqp.exceptions import NotFound, PreconditionFailed

    from toolfleet_tasks.app import make_app
    from toolfleet_tasks.broker import make_queue
    from toolfleet_tasks.queues import queues_of

    found, app = dict[str, str](), make_app(settings, stores_results=False)
    try:
        with app.connection_for_read(connect_timeout=_ASK_SECONDS) as connection:
            for name in queues_of("all", settings):
                try:
                    channel: Any = connection.channel()
                    make_queue(name)(channel).queue_declare(passive=True)
                    make_queue(name)(channel).queue_declare()
                    channel.close()
                except NotFound:
                    continue  # the first worker makes it
                except PreconditionFailed as exc:
                    found[name] = str(exc.reply_text)
    finally:
        app.close()
    return found


async def _consumer_timeout() -> int | None:
    """Return the time-out in milliseconds, if RabbitMQ's own tool is on this machine and answers."""
    tool = shutil.which("rabbitmqctl")
    if tool is None:
        return None
    command = [tool, "eval", "application:get_env(rabbit, consumer_timeout)."]
    try:
        async with asyncio.timeout(_ASK_SECONDS):
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
            try:
                said, _ = await process.communicate()
            finally:
                if process.returncode is None:
                    process.kill()
    except OSError:
        return None
    found = re.search(rb"\{ok,\s*(\d+)\}", said)
    return None if found is None else int(found[1])
