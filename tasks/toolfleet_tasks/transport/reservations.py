"""Reserves messages for a worker, which holds them under its leases from then on: at once, or with the next notification.

A reservation that stands is sent behind the command that waits for a notification, over the same connection. Redis runs it as soon as
that one has ended, in the same turn: a worker that waits needs no round trip to take a message, and Redis syncs its file once for both.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from redis.exceptions import ResponseError

from toolfleet_registry.redis.script import Parameters
from toolfleet_tasks.lua.queues import RESERVE
from toolfleet_tasks.redis.connection import PipelinedConnection, RedisConnectionLost
from toolfleet_tasks.redis.script_runner import is_unknown_script
from toolfleet_tasks.transport.fetched_claims import asked, sending
from toolfleet_tasks.transport.leases import Leases
from toolfleet_tasks.transport.ready_queues import AT_ONCE, ReadyQueues

Reserved: TypeAlias = list[tuple[str, str, bytes]]
"""Tag, queue and content of messages."""

_STANDING = 1  # message: more would be kept from other workers that wait, and lost for a while with a machine
_BLOCKED_SECONDS = 3.0  # by then Redis has run what stood behind a wait of a second at most, over a connection of whose loss it has not heard
_SLOT_MS = 5000  # that a slot of a module is kept for a call that was taken and not claimed yet


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
            queue_states=store.queue_states,
            queues=[(store.queue_prefix + queue, store.notify_prefix + queue) for queue in queues],
            wanted=wanted,
            tag=tag,
            prefix_length=len(store.queue_prefix),
            reserve_ms=_SLOT_MS,
            record_prefix=store.record_prefix,
            breaker_prefix=store.breaker_prefix,
            **asked(claims, queues),
            bounds=[(number, one.bound, one.running) for number, one in bounded],
        )
