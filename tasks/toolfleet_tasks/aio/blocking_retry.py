"""Retries a blocking call in a thread until it succeeds; the message is acked afterwards."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.aio.greenlet_bridge import await_

T = TypeVar("T")

log = get_logger(__name__)

_PAUSE_SECONDS = 1.0


def retry_blocking(act: Callable[[], T]) -> T:
    """Repeat `act` until no server is away, and return its result; doing it twice must do no harm. In a job only."""
    while True:
        try:
            return await_(asyncio.to_thread(act))
        except (OperationalError, RedisError, OSError) as exc:
            log.warning("not_done_yet", act=getattr(act, "__name__", "publish"), error=type(exc).__name__)
            await_(asyncio.sleep(_PAUSE_SECONDS))
