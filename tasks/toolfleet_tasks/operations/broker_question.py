"""Asks a broker that is no Redis for a bounded time, in a thread: kombu has no deadline for an answer."""

from collections.abc import Callable
from typing import TypeVar

from kombu.exceptions import OperationalError

from toolfleet_registry.errors import BrokerAway, BrokerUnavailable
from toolfleet_registry.redis.servers import reason_of
from toolfleet_tasks.aio.abandoned_thread import in_abandoned_thread

T = TypeVar("T")


async def ask_broker(ask: Callable[[], T], *, seconds: float) -> T:
    """Return the result of `ask`. Raises `BrokerAway` if the broker does not answer, after `seconds` at the latest."""
    try:
        return await in_abandoned_thread(ask, seconds=seconds)
    except TimeoutError as exc:
        raise BrokerAway(f"The broker does not answer within {seconds:g} s.") from exc
    except (BrokerUnavailable, OperationalError) as exc:
        raise BrokerAway(f"The broker does not answer: {reason_of(exc, 'no answer')}.") from exc
