"""Reserves messages of the queues that may hold some for a worker, which holds them under its leases from then on.

A notification names its queue, and a turn says in which queues something was left. Of very many queues all others are looked at once a
second, by a command that costs Redis far less than a turn: a notification may be lost, or never have been sent. Where turns find
something they are looked at more often: of many that were notified, a wait brings the first only, and the last would wait for a second.

A reservation that stands is sent behind the command that waits for a notification, over the same connection. Redis runs it as soon as
that one has ended, in the same turn: a worker that waits needs no round trip to take a message, and Redis syncs its file once for both.
"""

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

from redis.exceptions import RedisError, ResponseError

from toolfleet_registry.redis.script import Parameters
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock, machine_clock
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.redis_connection import PipelinedConnection, RedisConnectionLost, is_unknown_script
from toolfleet_tasks.transport import scripts
from toolfleet_tasks.transport.leases import Leases, asked, sending
from toolfleet_tasks.transport.scripts import RESERVE

log = get_logger(__name__)

QUARANTINED_AT_MOST = 1000
KEPT_CHARACTERS = 2**18  # of each; Redis must hold all of them

AT_ONCE = 64  # queues a turn asks for: more would cost Redis as much time as the calls' own commands
_SLICE = 512  # queues of one request: some tenths of a millisecond, for which Redis serves no other client
_POLL_SECONDS = 1.0  # so long a message may stay in a queue whose notification no worker has taken
_BUSY_SECONDS = 0.0001  # the same for each queue of a worker that finds something: Redis looks at one in 0.2 us

Reserved: TypeAlias = list[tuple[str, str, bytes]]
"""Tag, queue and content of messages."""

_STANDING = 1  # message: more would be kept from other workers that wait, and lost for a while with a machine
_BLOCKED_SECONDS = 3.0  # by then Redis has run what stood behind a wait of a second at most, over a connection of whose loss it has not heard
_SLOT_MS = 5000  # that a slot of a module is kept for a call that was taken and not claimed yet


@dataclass(frozen=True, slots=True)
class Quarantine:
    """The place of messages that no worker can run: a list, newest first, and a counter."""

    messages: str
    counter: str


async def quarantine(settings: Settings, queue: str, reason: str, message: str) -> None:
    """Quarantine a message, at the broker's Redis, or at that of the results. Raises nothing."""
    url = settings.broker if settings.has_redis_broker else settings.redis_url
    kept = kept_message(queue, reason, message)
    try:
        async with async_client(str(url), master=settings.sentinel_master) as redis, redis.pipeline() as commands:
            commands.lpush(settings.keys.quarantine, kept)
            commands.ltrim(settings.keys.quarantine, 0, QUARANTINED_AT_MOST - 1)
            commands.incr(settings.keys.quarantined)
            await commands.execute()
    except (RedisError, OSError) as exc:
        log.warning("message_not_quarantined", queue=queue, error=str(exc))


def kept_message(queue: str, reason: str, message: str) -> str:
    """Return a message's record, as JSON: when, where, why, and its text."""
    return json.dumps({"at": fleet_clock.now(), "queue": queue, "reason": reason, "message": message[:KEPT_CHARACTERS]})


class ReadyQueues:
    """Asks over `connection`. A queue that is chosen is ready no longer, until it is noted or put again."""

    def __init__(
        self, connection: PipelinedConnection, queue_prefix: str, clock: Callable[[], float] | None = None
    ) -> None:
        self._connection = connection
        self._prefix = queue_prefix
        self._clock = clock or machine_clock.monotonic
        self._ready = OrderedDict[str, None]()
        self._refresh_at = self._busy_at = -1.0  # by the clock
        self._wait_queue = 0

    def note(self, queue: str) -> None:
        """Note a queue that was notified to this worker only: it comes first."""
        self._ready[queue] = None
        self._ready.move_to_end(queue, last=False)

    def put(self, queues: Iterable[str]) -> None:
        """Note queues with remaining messages: they come after those that are ready already."""
        self._ready.update(dict.fromkeys(queues))

    def doubt(self) -> None:
        """Notifications may be lost: the next turn looks at all queues."""
        self._refresh_at = self._busy_at = -1.0

    @property
    def seconds_left(self) -> float:
        """The seconds until all queues are to be checked. Never below 0.01."""
        return max(round(self._refresh_at - self._clock(), 3), 0.01)

    def is_any(self, queues: Sequence[str]) -> bool:
        """Return whether one of these is ready."""
        return bool(self._ready) and not self._ready.keys().isdisjoint(queues)

    def choose(self, queues: Sequence[str]) -> list[str]:
        """Choose at most 64 of these, for one turn: those that are ready, and if there are no more in all, the others in turns."""
        offered = set(queues)
        chosen = list(islice((queue for queue in self._ready if queue in offered), AT_ONCE))
        for queue in chosen:
            del self._ready[queue]
        if len(queues) <= AT_ONCE:
            first = self._wait_queue = (self._wait_queue + 1) % len(queues)
            offered.difference_update(chosen)
            chosen += [queue for queue in (*queues[first:], *queues[:first]) if queue in offered]
        return chosen

    async def refresh(self, queues: Sequence[str], *, is_busy: bool = False) -> None:
        """Note which of all queues hold something, if it is time, and a turn cannot ask for them. Raises `RedisConnectionLost`.

        `is_busy`: a turn has found something just now.
        """
        now = self._clock()
        if len(queues) > AT_ONCE:
            if now < (self._busy_at if is_busy else self._refresh_at):
                return
            for start in range(0, len(queues), _SLICE):
                some = queues[start : start + _SLICE]
                command = scripts.HOLDING.command(queues=[self._prefix + queue for queue in some])
                found: list[int] = await self._connection.send(*command)
                self.put(some[number - 1] for number in found)
        self._refresh_at = now + _POLL_SECONDS
        self._busy_at = now + min(len(queues) * _BUSY_SECONDS, _POLL_SECONDS)


@dataclass(frozen=True, slots=True)
class Capacity:
    """The number of calls that may run at once behind a queue, and the key under which running ones are counted."""

    running: str
    bound: int


class _Turn:
    """One command: from which queues it takes, under which tags, and when it was sent, by both clocks. `reply`: of one that stands."""

    __slots__ = ("possible", "queues", "reply", "sent_at")

    def __init__(self, queues: list[str], possible: list[str]) -> None:
        self.queues, self.possible = queues, possible
        self.sent_at = sending()
        self.reply: asyncio.Future[Any] | None = None


class Reservations:
    """Reserves over `connection`. `bounds`, by queue: messages of these stay there while there is no slot for them."""

    def __init__(
        self, connection: PipelinedConnection, leases: Leases, ready: ReadyQueues, bounds: Mapping[str, Capacity]
    ) -> None:
        self._connection, self._leases, self._ready, self.bounds = connection, leases, ready, bounds
        self._standing: _Turn | None = None

    async def reserve(self, queues: list[str], wanted: int) -> Reserved:
        """Reserve so many messages at most, of these queues. Raises `RedisConnectionLost`, and what Redis says to it."""
        if not queues:
            return []
        turn, parameters = self._begin(queues, wanted)
        self._leases.expect(turn.possible)
        try:
            reply = await self._run(parameters)
        except BaseException as exc:
            self._fail(turn, exc)
            raise
        return self._read(turn, reply)

    def stand(self, blocking: PipelinedConnection, queues: Sequence[str]) -> None:
        """Have Redis reserve a message of these queues as soon as it has answered the command just sent over `blocking`.

        Does nothing if they are more than one command may ask for. `stood` returns the result; a caller that does not
        wait for it `abandon`s it.
        """
        if len(queues) > AT_ONCE:
            return
        turn, parameters = self._begin(self._ready.choose(queues), _STANDING)
        turn.reply = blocking.send("EVALSHA", RESERVE.digest, *parameters)
        self._standing = turn

    async def stood(self) -> Reserved | None:
        """Wait for the end of the reservation that stands, and return what it has taken. `None`: none stands, or Redis has refused it.

        Raises `RedisConnectionLost`.
        """
        turn = self._standing
        if turn is None or turn.reply is None:
            return None
        if not turn.reply.done():
            await asyncio.wait([turn.reply])  # goes on if we are cancelled
        self._standing = None
        try:
            reply = turn.reply.result()
        except ResponseError as exc:
            self._fail(turn, exc)
            return None  # Redis does not know the script, say: the next reservation will show
        except RedisConnectionLost as exc:
            self._fail(turn, exc)
            raise
        return self._read(turn, reply)

    def abandon(self) -> None:
        """Wait no longer for the reservation that stands, if one does: a message that it takes goes back at once."""
        turn, self._standing = self._standing, None
        if turn is not None and turn.reply is not None:
            self._leases.expect(turn.possible)  # the worker may end before it has the answer
            turn.reply.add_done_callback(lambda reply: self._give_back(turn, reply))

    def _give_back(self, turn: _Turn, reply: "asyncio.Future[Any]") -> None:
        error = reply.exception()
        if error is None:
            self._leases.requeue([tag for tag, _, _ in self._read(turn, reply.result())], begun=False)
        else:
            self._fail(turn, error)

    async def _run(self, parameters: Parameters) -> Any:
        try:
            return await self._connection.send("EVALSHA", RESERVE.digest, *parameters)
        except ResponseError as exc:
            if not is_unknown_script(exc):
                raise
        return await self._connection.send("EVAL", RESERVE.text, *parameters)

    def _begin(self, queues: list[str], wanted: int) -> tuple[_Turn, Parameters]:
        tag = self._leases.next_tags()
        turn = _Turn(queues, [f"{tag}{i}" for i in range(wanted)])
        return turn, self._parameters(queues, wanted, tag)

    def _read(self, turn: _Turn, reply: Any) -> Reserved:
        left, mark, *found = reply
        queues = turn.queues
        held = [(found[i].decode(), queues[found[i + 1] - 1], found[i + 2]) for i in range(0, len(found), 4)]
        self._leases.hold([tag for tag, _, _ in held], of=turn.possible)
        claimed = [(tag, found[4 * i + 3]) for i, (tag, _, _) in enumerate(held)]
        self._leases.claimed(claimed, turn.sent_at, mark=mark.decode())
        served = {queue for _, queue, _ in held}
        self._ready.put(sorted((queues[number - 1] for number in left), key=served.__contains__))
        return held

    def _fail(self, turn: _Turn, error: BaseException) -> None:
        """Requeue after a failure: messages that the command has moved have no owner now; a refused one has moved nothing."""
        self._ready.doubt()
        if isinstance(error, ResponseError) or (isinstance(error, RedisConnectionLost) and not error.sent):
            self._leases.hold([], of=turn.possible)
            return
        self._requeue(turn)
        if turn.reply is not None:  # Redis may not have heard that the connection is lost, and run it later
            self._leases.loop.call_later(_BLOCKED_SECONDS, self._requeue, turn)

    def _requeue(self, turn: _Turn) -> None:
        self._leases.expect(turn.possible)
        self._leases.requeue(turn.possible, begun=False)

    def _parameters(self, queues: Sequence[str], wanted: int, tag: str) -> Parameters:
        store, claims, bounds = self._leases.store, self._leases.claims, self.bounds
        bounded = ((number, bounds[queue]) for number, queue in enumerate(queues, 1) if queue in bounds)
        return RESERVE.parameters(
            unacked=store.unacked,
            unacked_index=store.unacked_index,
            queues=[store.queue_prefix + queue for queue in queues],
            wanted=wanted,
            tag=tag,
            base=store.base,
            reserve_ms=_SLOT_MS,
            **asked(claims, queues),
            bounds=[(number, one.bound, one.running) for number, one in bounded],
        )
