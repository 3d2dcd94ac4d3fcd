"""What must hold after a run, of Redis and of the processes: nothing is held, nothing lasts, everybody works."""

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

from redis import Redis

from chaos.checks import Violation
from chaos.moments import until
from chaos.plan import EFFECTS, MODULES
from chaos.stage import Stage
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.errors import FleetError
from toolfleet_registry.keys import Keys

_QUIET_SECONDS = 45  # redelivery after the last fault, and every retry and deadline that is still to come
_PROBES = 600
_CHUNK = 500


async def becomes_quiet(stage: Stage) -> bool:
    """Whether all queues are empty and no worker holds a message, within a while."""
    look = stage.redis.look
    queues = [f"tools.{name}" for name in MODULES]
    return await until(
        lambda: not look.hlen("unacked") and not any(look.llen(queue) for queue in queues), seconds=_QUIET_SECONDS
    )


def check_redis(stage: Stage) -> dict[str, list[Violation]]:
    """What is left in Redis, check by check."""
    look = stage.redis.look
    return {
        name: [Violation(name, text) for text in found]
        for name, found in (
            ("Nothing is left in queues or in workers' hands", list(_held(look))),
            ("Every key is known, and expires unless it may last", list(_lasting(look))),
            ("No call's record is open, and no place is taken", list(_open(look))),
            ("No worker and no beat ended by itself", stage.ended_alone),
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
    found: list[Violation] = []
    try:
        async with ToolFleet(settings=stage.settings) as fleet:
            for number in range(_PROBES):
                tool = f"{MODULES[number % 2]}.{EFFECTS[number // 2 % 4]}"
                call = ToolCall(tool_name=tool, arguments={**arguments, "ref": f"probe-{number}"})
                result = await fleet.call(call, caller, timeout=10)
                if not result.success:
                    found.append(Violation(name, f"{tool}: {result.error_code} {result.error}"))
                worker = (result.audit and result.audit.worker) or ""
                missing = {start for start in missing if not worker.startswith(start)}
                if (not missing and number >= 2 * len(EFFECTS)) or len(found) > len(EFFECTS):
                    break
                await asyncio.sleep(0.01)
    except FleetError as exc:
        found.append(Violation(name, str(exc)))
    return found + [Violation(name, f"no call was run by {start!r} in {_PROBES}") for start in sorted(missing)]


def _held(look: Redis) -> Iterator[str]:
    for queue in (*(f"tools.{name}" for name in MODULES), "toolfleet.control"):
        if left := look.llen(queue):
            yield f"{queue} has {left} messages"
    if left := look.hlen("unacked"):
        yield f"unacked has {left} messages: {look.hgetall('unacked')}"[:1000]
    if left := look.zcard("unacked_index"):
        yield f"unacked_index has {left} tags"


def _lasting(look: Redis) -> Iterator[str]:
    for key in look.scan_iter(count=_CHUNK):
        rule = Keys().rule_of(str(key))
        if rule is None:
            yield f"{key!r} is not in keys.py"
        elif not rule.lasting and look.ttl(key) == -1:
            yield f"{key!r} never expires"


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
    for key in look.scan_iter(match="toolfleet:running:*", count=_CHUNK):
        if left := look.zcard(str(key)):
            yield f"{key} counts {left} calls"
    for key in look.scan_iter(match="toolfleet:share:*", count=_CHUNK):
        if left := look.zcount(str(key), time.time(), "+inf"):
            yield f"{key} counts {left} calls"
