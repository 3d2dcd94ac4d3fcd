"""Pauses, drains and resumes queues, and follows in each process what operators have set.

What is stored is a hash of JSON texts, by module, and by lane as `lane:<lane>`. Scripts that admit and claim calls read it where it is
there at all: they use `state_holds` of `lua/queue_states.lua`.
"""

import difflib
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

from pydantic import BaseModel, ConfigDict
from redis.asyncio import Redis
from redis.client import NEVER_DECODE

from toolfleet_registry.directory.known_modules import KnownModules
from toolfleet_registry.errors import NoSuchQueue, OperationRefused
from toolfleet_registry.live_copy import LiveCopy
from toolfleet_registry.redis.servers import answering, sync_client
from toolfleet_registry.settings import Settings
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.queues import CONTROL, queue_of
from toolfleet_tasks.scripts import script

log = get_logger(__name__)

QueueCondition: TypeAlias = Literal["paused", "draining"]
"""`paused`: workers begin nothing of it; `draining`: it takes no new calls, and those that wait are run."""

LANE_PREFIX: Final = "lane:"
"""What the names of lanes begin with, where queues are named: no module's may have a colon."""

_NAMED = 3
_PATIENCE_SECONDS = 5
_AS_BYTES: Final[dict[str, Any]] = {NEVER_DECODE: True}

CHANGE = script("queue_states/change")
"""Returns 1 if another state holds now than before, else 0, and the text that was there, '' for none."""

_POLL_SECONDS = 0.5  # one small question, as for the directory of modules


class QueueState(BaseModel):
    """The state of a queue, or of all queues of a lane, until an operator resumes it.

    A field of a later version is ignored.

    `since`: seconds since the epoch, by Redis's clock. `by`: its author; `reason`: in their own words.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    state: QueueCondition
    since: float
    by: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class QueueStates:
    """All queue states at one moment, by module, and by lane as `lane:<lane>`."""

    stored: Mapping[str, QueueState] = field(default_factory=dict[str, QueueState])

    def of(self, module: str, lane: str) -> QueueState | None:
        """Return the state to show for a module's queue: `paused` before `draining`, and its own before its lane's."""
        both = [state for name in (module, lane_name(lane)) if (state := self.stored.get(name)) is not None]
        return next((state for state in both if state.state == "paused"), both[0] if both else None)

    def is_paused(self, module: str, lane: str) -> bool:
        """Return whether workers take nothing from a module's queue."""
        found = self.of(module, lane)
        return found is not None and found.state == "paused"


def lane_name(lane: str) -> str:
    """Return a lane's name among the names of queues."""
    return LANE_PREFIX + lane


_LANES: Final = (lane_name("fast"), lane_name("slow"))


def states_of(answer: Mapping[bytes, bytes]) -> QueueStates:
    """Parse the stored states. Fails open: an unreadable one is ignored, as in Redis's scripts, and logged."""
    found = dict[str, QueueState]()
    for name, text in answer.items():
        try:
            found[name.decode()] = QueueState.model_validate_json(text)
        except ValueError as exc:
            log.warning("queue_state_ignored", queue=name.decode(errors="replace"), error=str(exc))
    return QueueStates(found)


def stored_name(name: str, known: KnownModules, states: QueueStates) -> str:
    """Return the name under which a state is stored: the module, also for its queue's name, or `lane:<lane>`.

    Raises `NoSuchQueue` with the nearest names, and `OperationRefused` for the fleet's own queue.
    """
    if name == CONTROL:
        raise OperationRefused(f"The queue {CONTROL!r} has the fleet's own tasks, which must go on: it is not paused.")
    there = [*sorted(known.names | known.served | known.ending | states.stored.keys()), *_LANES]
    module = name.removeprefix(queue_of(""))
    for candidate in (name, module):
        if candidate in there:
            return candidate
    raise NoSuchQueue(name, _nearest(module, there))


def _nearest(name: str, there: Collection[str]) -> list[str]:
    if lane_name(name) in there:
        return [lane_name(name)]
    return difflib.get_close_matches(name, list(dict.fromkeys(there)), n=_NAMED, cutoff=0.5)


class StateChange(NamedTuple):
    """The state before a change, and whether it is another one now."""

    before: QueueState | None
    is_new: bool


class QueueStateStore:
    """The queue states of the fleet in the client's Redis.

    Raises `FleetUnavailable` when that does not answer within 5 s.
    """

    def __init__(self, redis: Redis, settings: Settings) -> None:
        self._redis = redis
        self._key = settings.keys.queue_states

    async def read(self) -> QueueStates:
        """Return all of them."""
        async with answering(self._redis, seconds=_PATIENCE_SECONDS):
            answer = await self._redis.execute_command("HGETALL", self._key, **_AS_BYTES)
        return states_of(cast("Mapping[bytes, bytes]", answer))

    async def change(self, name: str, state: QueueState | None) -> StateChange:
        """Set a state, or none, at once for all processes. An equal one stays, with its time and reason."""
        kind, text = ("", "") if state is None else (state.state, state.model_dump_json())
        command = CHANGE.command(states=self._key, name=name, state=kind, text=text)
        async with answering(self._redis, seconds=_PATIENCE_SECONDS):
            answer = await cast("Awaitable[Any]", self._redis.execute_command(*command, **_AS_BYTES))
        is_new, before = cast("tuple[int, bytes]", answer)
        return StateChange(states_of({name.encode(): before}).stored.get(name) if before else None, bool(is_new))


def read_states_now(settings: Settings, *, seconds: float) -> QueueStates:
    """Return all of them, for a process that has no loop yet.

    Raises redis-py's errors, or `OSError`, after about so long.
    """
    with sync_client(str(settings.redis_url), master=settings.sentinel_master, timeout_seconds=seconds) as redis:
        answer = redis.execute_command("HGETALL", settings.keys.queue_states, **_AS_BYTES)
    return states_of(cast("Mapping[bytes, bytes]", answer))


async def follow_queue_states(settings: Settings, on_read: Callable[[QueueStates], None]) -> None:
    """Call `on_read` with the states after each look, whether they have changed or not, until cancelled.

    While Redis is away, the states that were read last stay in effect.
    """
    if settings.redis_url is None:
        return
    async with settings.redis_client() as redis:
        store = QueueStateStore(redis, settings)

        async def read() -> None:
            on_read(await store.read())

        await LiveCopy(read, event="queue_states_not_read").keep(_POLL_SECONDS)
