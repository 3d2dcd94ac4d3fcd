"""What must hold after a run, of Redis and of the processes: nothing is held, nothing lasts, everybody works."""

import asyncio
import itertools
import json
import time
from collections.abc import Iterator
from typing import Any, cast

from redis import Redis

from chaos.checks.call_checks import Violation
from chaos.faults.moments import until
from chaos.plan import EFFECTS, MODULES
from chaos.records.acts import LIST as ACTS
from chaos.stage import Stage
from support.servers.rabbitmq import RabbitMq
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.errors import FleetError
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.queues import CONTROL

_NOTHING_HELD = "Nothing is left in queues or in workers' hands"
_QUIET_SECONDS = 45  # redelivery after the last fault, and every retry and deadline that is still to come
_PROBES = 600
_FOUND_SECONDS = 40  # a worker whose connections to RabbitMQ are half open knows it by its heartbeats
_DRAIN_SECONDS = 20  # for workers to do what beat has sent last
_QUEUES = (*(f"tools.{name}" for name in MODULES), CONTROL)
_CHUNK = 500
_NEWS = Keys().completions("").rpartition(":")[0] + ":*"
_OF_USERS = Keys().jobs_of(None).rpartition(":")[0] + ":"


async def becomes_quiet(stage: Stage) -> bool:
    """Whether all queues are empty, no worker holds a message, and no job nor news of one wait, within a while."""
    look = stage.redis.look
    return await until(lambda: is_quiet(look), seconds=_QUIET_SECONDS) and await _is_rabbitmq_quiet(stage)


def is_quiet(look: Redis) -> bool:
    """Return whether Redis has nothing more to do; news that wait after vain tries are due at once from now on."""
    keys = Keys()
    queues = [queue for queue in _QUEUES if queue != CONTROL]
    waiting = (keys.jobs_due, keys.wakes_due, keys.calls_due)
    for due in waiting[1:]:  # what was refused in vain often waits for minutes; nothing is in its way any more
        for wake_id in cast("list[str]", look.zrange(due, 0, -1)):
            if not look.hexists(keys.wake(wake_id), "token"):
                look.zadd(due, {wake_id: 0}, xx=True)
    news = [str(key) for key in look.scan_iter(match=_NEWS, count=_CHUNK)]
    is_idle = not look.hlen("unacked") and not any(look.llen(queue) for queue in queues)
    is_read = not any(look.xlen(key) for key in news)
    return is_idle and is_read and not any(look.zcard(due) for due in waiting)


async def _is_rabbitmq_quiet(stage: Stage) -> bool:
    give_up_at = time.monotonic() + _QUIET_SECONDS
    while stage.rabbitmq is not None and any((await asyncio.to_thread(_kept, stage.rabbitmq)).values()):
        if time.monotonic() > give_up_at:
            return False
    return True


def check_redis(stage: Stage) -> dict[str, list[Violation]]:
    """What is left in Redis, check by check."""
    found = left_in(stage.redis.look)
    found[_NOTHING_HELD] += [Violation(_NOTHING_HELD, text) for text in _held_by_rabbitmq(stage)]
    more = {
        "No worker and no beat ended by itself": stage.ended_alone,
        "No worker started at a Redis that evicts": stage.not_refused,
    }
    return found | {name: [Violation(name, text) for text in texts] for name, texts in more.items()}


def left_in(look: Redis) -> dict[str, list[Violation]]:
    """Return what a Redis has that must not be left, check by check."""
    return {
        name: [Violation(name, text) for text in found]
        for name, found in (
            (_NOTHING_HELD, list(_held(look))),
            ("Every key is known, and expires unless it may last", list(_lasting(look))),
            ("No call's record is open, and no place is taken", list(_open(look))),
            ("No job and no news wait, and no news are dead", list(_waiting(look))),
        )
    }


def stored_results(look: Redis, call_ids: list[str]) -> dict[str, ToolResult]:
    """What Redis has as these calls' results."""
    found: dict[str, ToolResult] = {}
    for start in range(0, len(call_ids), _CHUNK):
        chunk = call_ids[start : start + _CHUNK]
        texts: Any = look.mget([Keys().result(call_id) for call_id in chunk])
        for call_id, text in zip(chunk, texts, strict=True):
            meta = json.loads(text) if text else {}
            if meta.get("status") == "SUCCESS":
                found[call_id] = ToolResult.model_validate_json(meta["result"])
    return found


async def check_workers(stage: Stage) -> list[Violation]:
    """Every worker still runs calls, of every tool, and at once."""
    name = "Every worker works on after it all"
    missing = {f"{worker.name}@" for worker in stage.workers}
    caller = Caller(user_id="probe", permission="user", allowed_modules="*")
    arguments = {"ref": "probe", "first": "ok", "then": "ok", "before_ms": 0, "after_ms": 0}
    give_up_at = time.monotonic() + (_FOUND_SECONDS if stage.rabbitmq else 0)
    found: list[Violation] = []
    try:
        async with ToolFleet(settings=stage.settings) as fleet:
            for number in itertools.count():
                tool = f"{MODULES[number % 2]}.{EFFECTS[number // 2 % 4]}"
                call = ToolCall(tool_name=tool, arguments={**arguments, "ref": f"probe-{number}"})
                result = await fleet.call(call, caller, timeout=10)
                if not result.success:
                    found.append(Violation(name, f"{tool}: {result.error_code} {result.error}"))
                worker = result.audit.worker or ""
                missing = {start for start in missing if not worker.startswith(start)}
                is_over = number >= _PROBES and time.monotonic() >= give_up_at
                if is_over or (not missing and number >= 2 * len(EFFECTS)) or len(found) > len(EFFECTS):
                    break
                await asyncio.sleep(0.01)
    except FleetError as exc:
        found.append(Violation(name, str(exc)))
    return found + [Violation(name, f"no call was run by {start!r}") for start in sorted(missing)]


def _held(look: Redis) -> Iterator[str]:
    for queue in _QUEUES:
        if left := look.llen(queue):
            yield f"{queue} has {left} messages"
    if left := look.hlen("unacked"):
        yield f"unacked has {left} messages: {look.hgetall('unacked')}"[:1000]
    if left := look.zcard("unacked_index"):
        yield f"unacked_index has {left} tags"


def _held_by_rabbitmq(stage: Stage) -> Iterator[str]:
    broker = stage.rabbitmq
    if broker is None:
        return
    for beat in stage.beats:  # which has workers do something twice a second
        beat.stop()
    give_up_at = time.monotonic() + _DRAIN_SECONDS
    while (found := {queue: left for queue, left in _kept(broker).items() if left}) and time.monotonic() < give_up_at:
        pass
    for queue, left in found.items():
        yield f"{queue} in RabbitMQ has {left} messages, {broker.waiting(queue)} of them in no worker's hands"


def _kept(broker: RabbitMq) -> dict[str, int]:
    return {queue: left for queue, left in broker.kept().items() if queue in _QUEUES}


def _lasting(look: Redis) -> Iterator[str]:
    for key in look.scan_iter(count=_CHUNK):
        rule = Keys().rule_of(str(key))
        if rule is None and key != ACTS:
            yield f"{key!r} is not in keys.py"
        elif rule is not None and not rule.lasting and look.ttl(key) == -1:
            yield f"{key!r} never expires"


def _waiting(look: Redis) -> Iterator[str]:
    keys = Keys()
    for due in (keys.jobs_due, keys.wakes_due, keys.calls_due):
        yield from (f"{due} has {one}" for one in cast("list[str]", look.zrange(due, 0, -1)))
    for key in look.scan_iter(match=_NEWS, count=_CHUNK):
        if left := look.xlen(str(key)):
            yield f"{key} has {left} news"
    dead = cast("dict[str, str]", look.hgetall(keys.dead_wakes))
    yield from (f"dead: {name}: {text}"[:500] for name, text in dead.items())
    for pattern in (keys.wake("*"), f"{_OF_USERS}*"):
        yield from (
            f"{key} is there" for key in look.scan_iter(match=pattern, count=_CHUNK) if ":ended" not in str(key)
        )


def _is_ended_by_celery(look: Redis, call_id: str) -> bool:
    stored = look.get(Keys().result(call_id))
    return stored is not None and json.loads(str(stored))["status"] in {"REVOKED", "FAILURE"}


def _open(look: Redis) -> Iterator[str]:
    if look.exists("unacked_mutex"):
        yield "unacked_mutex is held"
    for key in look.scan_iter(match="toolfleet:call:*", count=_CHUNK):
        record: Any = look.hgetall(str(key))
        # What Celery has ended itself, after its agent could not reach the ledger, stays open until somebody asks for it.
        if record.get("state") != "done" and not _is_ended_by_celery(look, str(key).rpartition(":")[2]):
            yield f"{key}: {record}"
    seconds, micros = look.time()  # a place whose lease is over is nobody's, and goes with the next call of its module
    for key in look.scan_iter(match="toolfleet:running:*", count=_CHUNK):
        if left := look.zcount(str(key), seconds * 1000 + micros / 1000, "+inf"):
            yield f"{key} counts {left} calls"
    for key in look.scan_iter(match="toolfleet:share:*", count=_CHUNK):
        if left := look.zcount(str(key), time.time(), "+inf"):
            yield f"{key} counts {left} calls"
