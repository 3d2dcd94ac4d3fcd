"""How a worker takes calls out of its queues: asleep until a bell rings, then as many at once as it has room for.

Nothing here blocks the loop, and nothing raises when Redis is away: it goes on when Redis is back.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from redis.exceptions import ResponseError

from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.aio.greenlet_bridge import Bridge
from toolfleet_tasks.lua import queues as scripts
from toolfleet_tasks.redis.connection import Line, LineClosed, LineLost, Part
from toolfleet_tasks.transport.delivery import Message, read_message
from toolfleet_tasks.transport.leases import Leases
from toolfleet_tasks.transport.notify_keys import Bells
from toolfleet_tasks.transport.quarantine import QUARANTINED_AT_MOST, kept_message
from toolfleet_tasks.transport.ready_queues import ReadyQueues

log = get_logger(__name__)

BATCH = 32  # messages a turn: more would save no time, and keep them from other workers that are free
_PAUSE_SECONDS = 1.0  # after Redis has refused
_PLACE_MS = 5000  # that a place in a module is kept for a call that was taken and not claimed yet


class Consumer(Protocol):
    """Whom the intake works for."""

    def queues(self) -> Sequence[str]:
        """The names of the queues to take from; another object when they are others."""
        ...

    def room(self) -> int:
        """How many messages more may be held now, from any of them."""
        ...

    def burst(self) -> tuple[Sequence[str], int]:
        """While there is no such room: the queues from which messages may be held nevertheless, and how many."""
        ...

    def expect(self, count: int) -> None:
        """So many messages more were asked for, and their room is nobody else's; negative: so many are no longer on their way."""
        ...

    def deliver(self, message: Message, queue: str) -> None:
        """Begin with a message. May switch greenlets."""
        ...

    def forget(self, tag: str) -> None:
        """Make room again: a message that was delivered is seen to otherwise."""
        ...


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Where messages go that nobody can run: a list, newest first, and a counter."""

    messages: str
    counter: str


@dataclass(frozen=True, slots=True)
class Room:
    """How many calls may run at once behind a queue, and the key under which those that do are counted."""

    running: str
    bound: int


class Intake:
    """Takes messages for one consumer, from `wake` on, whenever there is room and something in a queue.

    `rooms`, by queue: calls of these are left there while there is no room for them.
    """

    def __init__(
        self,
        consumer: Consumer,
        *,
        line: Line,
        bells: Bells,
        leases: Leases,
        quarantine: Quarantine,
        rooms: Mapping[str, Room] | None = None,
    ) -> None:
        self._consumer = consumer
        self._rooms = rooms or {}
        self._line = line
        self._bells = bells
        self._leases = leases
        self._quarantine = quarantine
        self._has_news = asyncio.Event()
        self._ready = ReadyQueues(line, leases.store.queue_prefix)
        self._turn = asyncio.Lock()
        self._set_asides: set[asyncio.Task[None]] = set()

    def wake(self) -> None:
        """There is more room, or another queue."""
        self._has_news.set()

    async def run(self) -> None:
        """Take messages until cancelled, or until a line is closed."""
        try:
            await keep_taking(self._look, self._line)
        finally:
            self._bells.rest()

    def make_room(self, queue: str, call_id: str) -> None:
        """A message is done with: another worker may have been waiting for its place."""
        room, store = self._rooms.get(queue), self._leases.store
        if room is not None:
            keys = {"queue": store.queue_prefix + queue, "bell": store.bell_prefix + queue}
            command = scripts.MAKE_ROOM.command(running=room.running, **keys, call_id=call_id)
            self._line.send(*command).add_done_callback(_seen)

    def set_aside(self, tag: str, queue: str, item: bytes, reason: str) -> None:
        """Take a held message out of the way, for an operator to look at. It is held until Redis has done so.

        One that Redis does not take stays held: it is put back at the worker's end, for the next one to try.
        """
        task = self._leases.loop.create_task(self._move(tag, queue, item, reason))
        self._set_asides.add(task)
        task.add_done_callback(self._set_asides.discard)

    async def _move(self, tag: str, queue: str, item: bytes, reason: str) -> None:
        text = item.decode("utf-8", errors="backslashreplace")
        kept = kept_message(queue, reason, text)
        store, place = self._leases.store, self._quarantine
        command = scripts.QUARANTINE.command(
            unacked=store.unacked,
            unacked_index=store.unacked_index,
            messages=place.messages,
            counter=place.counter,
            tag=tag,
            kept=kept,
            most=QUARANTINED_AT_MOST,
        )
        try:
            count = await self._line.execute(*command)
        except (LineLost, ResponseError) as exc:
            log.warning("message_not_quarantined", queue=queue, error=str(exc))
            return
        self._leases.drop(tag)
        log.error("message_quarantined", queue=queue, reason=reason, bytes=len(item), so_far=count)

    async def _look(self, may_hold: bool) -> bool:  # noqa: FBT001 - as `keep_taking` calls it
        queues = await self._room_and_queues()
        if not may_hold:
            await self._wait_for_bell(queues)
        return await self.take(lambda: (self._consumer.queues(), self._consumer.room()))

    def rung(self, queue: str) -> None:
        """A queue's bell was heard: the next turn asks for it."""
        self._ready.note(queue)

    async def _room_and_queues(self) -> Sequence[str]:
        while not ((queues := self._consumer.queues()) and self._consumer.room() > 0):
            self._has_news.clear()
            self._bells.rest()
            await self._has_news.wait()
        return queues

    async def _wait_for_bell(self, queues: Sequence[str]) -> None:
        try:
            rung = await self._bells.rung(queues, seconds=self._ready.seconds_left, room=self._consumer.room)
        except LineLost:
            self._ready.doubt()
            raise
        consumed = self._consumer.queues()
        for queue in rung:
            if queue in consumed:
                self._ready.note(queue)
            else:
                self._bells.give_back(queue)  # no longer ours to answer

    async def take(self, offer: Callable[[], tuple[Sequence[str], int]]) -> bool:
        """One turn: at most so many from these queues, as `offer` says when it begins. Whether something is left there."""
        async with self._turn:  # two at a time would count on the same room
            await self._ready.look(self._consumer.queues())
            queues, room = offer()
            if not queues or room <= 0:
                return True
            wanted = min(room, BATCH)
            self._consumer.expect(wanted)
            try:
                await self._take(self._ready.choose(queues), wanted)
            finally:
                self._consumer.expect(-wanted)
            return self._ready.is_any(queues)

    async def _take(self, queues: list[str], wanted: int) -> None:
        held = await self._reserve(queues, wanted)
        if held:
            left = deque(held)
            try:
                await Bridge(self._deliver_all, left)
            finally:  # cancelled: what nobody has been told of must not stay here
                self._leases.put_back([tag for tag, _, _ in left], begun=False)

    async def _reserve(self, queues: list[str], room: int) -> list[tuple[str, str, bytes]]:
        """Tag, queue and content of what was taken, which is held from now on."""
        if not queues:
            return []
        tag = self._leases.next_tags()
        possible = [f"{tag}{i}" for i in range(room)]
        self._leases.expect(possible)
        try:
            left, *found = await self._line.send(*self._reserve_command(queues, room, tag))
        except (LineLost, asyncio.CancelledError) as exc:
            self._ready.doubt()
            if isinstance(exc, LineLost) and not exc.sent:
                self._leases.hold([], of=possible)
            self._leases.put_back(possible, begun=False)  # what it has moved belongs to nobody now
            raise
        except ResponseError:
            self._ready.doubt()
            self._leases.hold([], of=possible)
            raise
        held = [(found[i].decode(), queues[found[i + 1] - 1], found[i + 2]) for i in range(0, len(found), 3)]
        self._leases.hold([tag for tag, _, _ in held], of=possible)
        served = {queue for _, queue, _ in held}
        self._ready.put(sorted((queues[number - 1] for number in left), key=served.__contains__))
        return held

    def _reserve_command(self, queues: list[str], room: int, tag: str) -> tuple[Part, ...]:
        store = self._leases.store
        bounded = ((number, self._rooms[queue]) for number, queue in enumerate(queues, 1) if queue in self._rooms)
        return scripts.RESERVE.command(
            unacked=store.unacked,
            unacked_index=store.unacked_index,
            queues=[(store.queue_prefix + queue, store.bell_prefix + queue) for queue in queues],
            wanted=room,
            tag=tag,
            prefix_length=len(store.queue_prefix),
            reserve_ms=_PLACE_MS,
            bounds=[(number, one.bound, one.running) for number, one in bounded],
        )

    def _deliver_all(self, left: deque[tuple[str, str, bytes]]) -> None:
        """In a greenlet: what Celery stores of a call that it turns away is written without blocking the loop."""
        while left:
            tag, queue, item = left[0]
            try:
                self._consumer.deliver(read_message(item, queue, tag), queue)
            except ValueError as exc:
                self._refuse(tag, queue, item, str(exc))
            except Exception as exc:
                log.exception("message_not_delivered", queue=queue)
                self._refuse(tag, queue, item, repr(exc))
            left.popleft()

    def _refuse(self, tag: str, queue: str, item: bytes, reason: str) -> None:
        self._consumer.forget(tag)
        self.set_aside(tag, queue, item, reason)


async def keep_taking(look: Callable[[bool], Awaitable[bool]], *lines: Line) -> None:
    """Look again and again, until cancelled, or until a line is closed.

    `look` gets whether a queue may hold something that no bell would tell of, and says it of the next time.
    """
    may_hold = True
    while True:
        try:
            may_hold = await look(may_hold)
        except LineClosed:
            return
        except LineLost:
            may_hold = True
            if not await _are_back(lines):
                return
        except ResponseError as exc:
            may_hold = True
            log.warning("queues_not_read", error=str(exc))
            await asyncio.sleep(_PAUSE_SECONDS)
        except Exception:  # a worker that lives and takes nothing would go unnoticed
            may_hold = True
            log.exception("queues_not_read")
            await asyncio.sleep(_PAUSE_SECONDS)


async def _are_back(lines: Sequence[Line]) -> bool:
    """Wait for the lines. False: they were closed."""
    try:
        await asyncio.gather(*(line.connected() for line in lines))
    except LineClosed:
        return False
    return True


def _seen(reply: "asyncio.Future[Any]") -> None:
    """If it got lost, places are free again by themselves, and workers look by themselves."""
    if not reply.cancelled():
        reply.exception()
