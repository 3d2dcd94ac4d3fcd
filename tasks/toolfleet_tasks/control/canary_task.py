"""Answers canaries in a worker: says that it has taken one, and whether it reaches the module.

A canary runs no tool, claims nothing and leaves no line in the audit. Fails open: one that cannot be answered is only missed.
"""

from importlib.metadata import version
from typing import Any

from celery import Celery
from redis.exceptions import RedisError

from toolfleet_registry.redis.keys import canary_key
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.settings import Settings
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.system.process import this_process
from toolfleet_registry.time import fleet_clock, machine_clock
from toolfleet_tasks.aio.greenlet_bridge import bridged
from toolfleet_tasks.control.housekeeping import register_task
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.messages.canaries import KEPT_SECONDS, TASK, CanaryAnswer, is_canary_id

_HEALTH_SECONDS = 2.0
_ANSWER_SECONDS = 2.0
_LIMIT_SECONDS = 10.0
_MARGIN_SECONDS = 5.0

log = get_logger(__name__)


def register(app: Celery) -> None:
    """Give the app the task. It works for a few seconds; the limits are the net around that."""
    limits = {"soft_time_limit": _LIMIT_SECONDS, "time_limit": _LIMIT_SECONDS + _MARGIN_SECONDS}
    register_task(app, TASK, _answer, **limits)


@bridged
async def _answer(task: Any, canary_id: str, module: str = "") -> None:
    if not is_canary_id(canary_id) or task.app.settings.redis_url is None:
        return
    taken_at, health, seconds = fleet_clock.now(), None, None
    if module and task.app.runner is not None:
        asked_at = machine_clock.monotonic()
        health = str(await task.app.runner.probe(module, seconds=_HEALTH_SECONDS))
        seconds = machine_clock.monotonic() - asked_at
    answer = CanaryAnswer(
        worker=this_process().name,
        version=json_text.VERSION,
        release=version("toolfleet"),
        taken_at=taken_at,
        answered_at=fleet_clock.now(),
        health=health,
        health_seconds=seconds,
        clock_lead=fleet_clock.clock.wall_lead,
    )
    await _leave(task.app.settings, canary_id, answer)


async def _leave(settings: Settings, canary_id: str, answer: CanaryAnswer) -> None:
    key = canary_key(settings.keys, canary_id)
    url, master = str(settings.redis_url), settings.sentinel_master
    try:
        async with async_client(url, master=master, timeout_seconds=_ANSWER_SECONDS) as redis, redis.pipeline() as pipe:
            pipe.rpush(key, answer.model_dump_json())
            pipe.expire(key, KEPT_SECONDS)
            await pipe.execute()
    except (RedisError, OSError) as exc:
        log.warning("canary_not_answered", error=str(exc))
