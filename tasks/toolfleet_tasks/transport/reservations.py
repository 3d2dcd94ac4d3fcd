"""Reserves messages for a worker, which holds them under its leases from then on."""

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
from toolfleet_tasks.transport.ready_queues import ReadyQueues

Reserved: TypeAlias = list[tuple[str, str, bytes]]
"""Tag, queue and content of messages."""

_SLOT_MS = 5000  # that a slot of a module is kept for a call that was taken and not claimed yet


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many calls may run at once behind a queue, and the key under which those that do are counted."""

    running: str
    bound: int


class _Turn:
    """One command: from which queues it takes, under which tags, and when it was sent, by both clocks."""

    __slots__ = ("mark", "possible", "queues", "sent_at")

    def __init__(self, queues: list[str], possible: list[str], mark: str) -> None:
        self.queues, self.possible, self.mark = queues, possible, mark
        self.sent_at = sending()


class Reservations:
    """Reserves over `connection`. `bounds`, by queue: messages of these stay there while there is no slot for them."""

    def __init__(
        self, connection: PipelinedConnection, leases: Leases, ready: ReadyQueues, bounds: Mapping[str, Capacity]
    ) -> None:
        self._connection, self._leases, self._ready, self.bounds = connection, leases, ready, bounds

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

    async def _run(self, parameters: Parameters) -> Any:
        try:
            return await self._connection.send("EVALSHA", RESERVE.digest, *parameters)
        except ResponseError as exc:
            if not is_unknown_script(exc):
                raise
        return await self._connection.send("EVAL", RESERVE.text, *parameters)

    def _begin(self, queues: list[str], wanted: int) -> tuple[_Turn, Parameters]:
        tag = self._leases.next_tags()
        mark = "" if self._leases.claims is None else self._leases.claims.mark()
        turn = _Turn(queues, [f"{tag}{i}" for i in range(wanted)], mark)
        return turn, self._parameters(queues, wanted, tag, mark)

    def _read(self, turn: _Turn, reply: Any) -> Reserved:
        left, *found = reply
        queues = turn.queues
        held = [(found[i].decode(), queues[found[i + 1] - 1], found[i + 2]) for i in range(0, len(found), 4)]
        self._leases.hold([tag for tag, _, _ in held], of=turn.possible)
        claimed = [(tag, found[4 * i + 3]) for i, (tag, _, _) in enumerate(held)]
        self._leases.claimed(claimed, turn.sent_at, mark=turn.mark)
        served = {queue for _, queue, _ in held}
        self._ready.put(sorted((queues[number - 1] for number in left), key=served.__contains__))
        return held

    def _fail(self, turn: _Turn, error: BaseException) -> None:
        """What the command has moved belongs to nobody now; what Redis has refused has moved nothing."""
        self._ready.doubt()
        if isinstance(error, ResponseError) or (isinstance(error, RedisConnectionLost) and not error.sent):
            self._leases.hold([], of=turn.possible)
        else:
            self._leases.requeue(turn.possible, begun=False)

    def _parameters(self, queues: Sequence[str], wanted: int, tag: str, mark: str) -> Parameters:
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
            **asked(claims, queues, mark=mark),
            bounds=[(number, one.bound, one.running) for number, one in bounded],
        )
