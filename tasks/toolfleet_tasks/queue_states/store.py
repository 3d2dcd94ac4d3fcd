"""Reads and changes the states of queues in the fleet's Redis.

What is stored is a hash of JSON texts, by module, and by lane as `lane:<lane>`. Scripts that admit and claim calls read it where it is
there at all: they include `queue_states/holds`.
"""

from collections.abc import Awaitable, Mapping
from typing import Any, Final, NamedTuple, cast

from redis.asyncio import Redis
from redis.client import NEVER_DECODE

from toolfleet_registry.redis.queue_keys import QueueKeys
from toolfleet_registry.redis.redis_errors import answering
from toolfleet_registry.redis.servers import sync_client
from toolfleet_registry.settings import Settings
from toolfleet_tasks.lua.files import script
from toolfleet_tasks.queue_states.states import QueueState, QueueStates, states_of

_PATIENCE_SECONDS = 5
_AS_BYTES: Final[dict[str, Any]] = {NEVER_DECODE: True}

CHANGE = script("queue_states/change")
"""Returns 1 if another state holds now than before, else 0, and the text that was there, '' for none."""


class StateChange(NamedTuple):
    """The state before a change, and whether it is another one now."""

    before: QueueState | None
    is_new: bool


class QueueStateStore:
    """The queue states of the fleet whose Redis the client is.

    Raises `FleetUnavailable` when that does not answer within 5 s.
    """

    def __init__(self, redis: Redis, settings: Settings) -> None:
        self._redis = redis
        self._key = QueueKeys(settings.key_prefix).states

    async def read(self) -> QueueStates:
        """All of them."""
        async with answering(self._redis, seconds=_PATIENCE_SECONDS):
            answer = await self._redis.execute_command("HGETALL", self._key, **_AS_BYTES)
        return states_of(cast("Mapping[bytes, bytes]", answer))

    async def now(self) -> float:
        """Return the time by Redis's clock: an operator's machine may have another."""
        async with answering(self._redis, seconds=_PATIENCE_SECONDS):
            seconds, micros = await self._redis.time()
        return float(seconds) + float(micros) / 1e6

    async def change(self, name: str, state: QueueState | None) -> StateChange:
        """Set a state, or none, at once for all processes. An equal one stays, with its time and reason."""
        kind, text = ("", "") if state is None else (state.state, state.model_dump_json())
        command = CHANGE.command(states=self._key, name=name, state=kind, text=text)
        async with answering(self._redis, seconds=_PATIENCE_SECONDS):
            answer = await cast("Awaitable[Any]", self._redis.execute_command(*command, **_AS_BYTES))
        is_new, before = cast("tuple[int, bytes]", answer)
        return StateChange(states_of({name.encode(): before}).stored.get(name) if before else None, bool(is_new))


def read_states_now(settings: Settings, *, seconds: float) -> QueueStates:
    """All of them, for a process that has no loop yet. Raises redis-py's errors, or `OSError`, after about so long."""
    with sync_client(str(settings.redis_url), master=settings.sentinel_master, timeout_seconds=seconds) as redis:
        answer = redis.execute_command("HGETALL", QueueKeys(settings.key_prefix).states, **_AS_BYTES)
    return states_of(cast("Mapping[bytes, bytes]", answer))
