"""Writes and answers canaries, messages by which one sees that a queue is served and its module reached.

A canary is no call: no tool runs, and nothing counts it. Workers of versions that do not know it drop it, and say so.

A canary runs no tool, claims nothing and leaves no line in the audit. Fails open: one that cannot be answered is only missed.
"""

import re
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from celery import Celery
from pydantic import BaseModel, ConfigDict, ValidationError
from redis.exceptions import RedisError

from toolfleet_registry.contracts.message import DEFERS_BUILD
from toolfleet_registry.redis.keys import canary_key
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock, machine_clock
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.system.process import this_process
from toolfleet_tasks.control.housekeeping import register_task
from toolfleet_tasks.greenlet_bridge import bridged
from toolfleet_tasks.messages import json_text

log = get_logger(__name__)

TASK = "toolfleet.canary"
"""The task that answers a canary. Its arguments: the canary's id, and the module that the worker asks for its health, '' for none."""

KEPT_SECONDS = 60
"""How long an answer is kept for whoever has asked."""

_ID = re.compile(r"[0-9a-f]{32}")

_HEALTH_SECONDS = 2.0
_ANSWER_SECONDS = 2.0
_LIMIT_SECONDS = 10.0
_MARGIN_SECONDS = 5.0


class CanaryAnswer(BaseModel):
    """A worker's answer.

    Times are the fleet's, in seconds since the epoch; `health` is that of the module, if it was asked.

    `worker`: its host and process id. `version`: the newest version of messages that it reads; `release` is
    Toolfleet's. `clock_lead`: by how many seconds its machine is ahead of the fleet's time.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=DEFERS_BUILD)

    worker: str
    version: int
    release: str = ""
    taken_at: float
    answered_at: float
    health: str | None = None
    health_seconds: float | None = None
    clock_lead: float = 0.0


def is_canary_id(text: object) -> bool:
    """Return whether a message's argument may be a canary's id: it becomes a part of a key."""
    return isinstance(text, str) and _ID.fullmatch(text) is not None


def read_answers(texts: Sequence[bytes | str]) -> list[CanaryAnswer]:
    """Return the answers in these texts, in their order; invalid ones are left out."""
    found = list[CanaryAnswer]()
    for text in texts:
        try:
            found.append(CanaryAnswer.model_validate_json(text))
        except ValidationError:
            continue
    return found


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
