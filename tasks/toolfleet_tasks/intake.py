"""How a worker takes calls out of its queues: asleep until a bell rings, then as many at once as it has room for.

Nothing here blocks the loop, and nothing raises when Redis is away: it goes on when Redis is back.
"""

import asyncio
import itertools
import json
import math
import time
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import structlog
from pydantic_core import from_json
from redis.exceptions import ResponseError

from toolfleet_tasks import scripts
from toolfleet_tasks.bridge import Bridge
from toolfleet_tasks.leases import Leases
from toolfleet_tasks.line import Line, LineClosed, LineLost, Part

log = structlog.get_logger(__name__)

BATCH = 32  # messages a turn: more would save no time, and keep them from other workers that are free
_BELL_SECONDS = 1  # a worker looks by itself so often: a bell may be lost, or never have been rung
_PAUSE_SECONDS = 1.0  # after Redis has refused
_QUARANTINED_AT_MOST = 1000
_PLACE_MS = 5000  # that a place in a module is kept for a call that was taken and not claimed yet
_KEPT_CHARACTERS = 2**18  # of each; Redis must hold all of them

Message = dict[str, Any]


class Consumer(Protocol):
    """Whom the intake works for."""

    def queues(self) -> Sequence[str]:
        """The names of the queues to take from."""
        ...

    def room(self) -> int:
        """How many messages more may be held now."""
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
        bell: Line,
        leases: Leases,
        quarantine: Quarantine,
        rooms: Mapping[str, Room] | None = None,
    ) -> None:
        self._consumer = consumer
        self._rooms = rooms or {}
        self._line = line
        self._bell = bell
        self._leases = leases
        self._quarantine = quarantine
        self._has_news = asyncio.Event()
        self._name = uuid.uuid4().hex
        self._turns = itertools.count()
        self._set_asides: set[asyncio.Task[None]] = set()

    def wake(self) -> None:
        """There is more room, or another queue."""
        self._has_news.set()

    async def run(self) -> None:
        """Take messages until cancelled, or until a line is closed."""
        may_hold = True  # whether a queue may hold something that no bell would tell of
        while True:
            try:
                queues = await self._room_and_queues()
                if not may_hold:
                    await self._wait_for_bell(queues)
                may_hold = await self._take()
            except LineLost:
                may_hold = True
                if not await self._are_back():
                    return
            except ResponseError as exc:
                may_hold = True
                log.warning("queues_not_read", error=str(exc))
                await asyncio.sleep(_PAUSE_SECONDS)
            except Exception:  # a worker that lives and takes nothing would go unnoticed
                may_hold = True
                log.exception("queues_not_read")
                await asyncio.sleep(_PAUSE_SECONDS)

    def make_room(self, queue: str, call_id: str) -> None:
        """A message is done with: another worker may have been waiting for its place."""
        room, store = self._rooms.get(queue), self._leases.store
        if room is not None:
            keys = (3, room.running, store.queue_prefix + queue, store.bell_prefix + queue)
            self._line.send("EVAL", scripts.MAKE_ROOM, *keys, call_id).add_done_callback(_seen)

    def set_aside(self, tag: str, queue: str, item: bytes, reason: str) -> None:
        """Take a held message out of the way, for an operator to look at. It is held until Redis has done so.

        One that Redis does not take stays held: it is put back at the worker's end, for the next one to try.
        """
        task = self._leases.loop.create_task(self._move(tag, queue, item, reason))
        self._set_asides.add(task)
        task.add_done_callback(self._set_asides.discard)

    async def _move(self, tag: str, queue: str, item: bytes, reason: str) -> None:
        text = item.decode("utf-8", errors="backslashreplace")
        kept = json.dumps({"at": time.time(), "queue": queue, "reason": reason, "message": text[:_KEPT_CHARACTERS]})
        store, place = self._leases.store, self._quarantine
        keys = (4, store.unacked, store.unacked_index, place.messages, place.counter)
        try:
            count = await self._line.execute("EVAL", scripts.QUARANTINE, *keys, tag, kept, _QUARANTINED_AT_MOST)
        except (LineLost, ResponseError) as exc:
            log.warning("message_not_quarantined", queue=queue, error=str(exc))
            return
        self._leases.drop(tag)
        log.error("message_quarantined", queue=queue, reason=reason, bytes=len(item), so_far=count)

    async def _room_and_queues(self) -> Sequence[str]:
        while not ((queues := self._consumer.queues()) and self._consumer.room() > 0):
            self._has_news.clear()
            await self._has_news.wait()
        return queues

    async def _wait_for_bell(self, queues: Sequence[str]) -> None:
        bells = [self._leases.store.bell_prefix + queue for queue in queues]
        token = await self._bell.send("BRPOP", *bells, _BELL_SECONDS)
        if token is not None and not self._consumer.queues():
            await self._bell.send("LPUSH", token[0], "1")  # no longer ours to answer

    async def _take(self) -> bool:
        """One turn. Returns whether something is left."""
        queues, room = list(self._consumer.queues()), min(self._consumer.room(), BATCH)
        if not queues or room <= 0:
            return True
        is_left, held = await self._reserve(queues, room)
        if held:
            left = deque(held)
            try:
                await Bridge(self._deliver_all, left)
            finally:  # cancelled: what nobody has been told of must not stay here
                self._leases.put_back([tag for tag, _, _ in left], begun=False)
        return is_left

    async def _reserve(self, queues: list[str], room: int) -> tuple[bool, list[tuple[str, str, bytes]]]:
        """Whether something is left, and tag, queue and content of what was taken, which is held from now on."""
        turn = next(self._turns)
        tag, store = f"{self._name}-{turn}-", self._leases.store
        keys = [store.unacked, store.unacked_index]
        keys += [store.queue_prefix + queue for queue in queues] + [store.bell_prefix + queue for queue in queues]
        bounded = [(number, self._rooms[queue]) for number, queue in enumerate(queues, 1) if queue in self._rooms]
        keys += [one.running for _, one in bounded]
        bounds: list[int] = [part for number, one in bounded for part in (number, one.bound)]
        arguments: tuple[Part, ...] = (room, tag, turn % len(queues), len(store.queue_prefix), _PLACE_MS, *bounds)
        possible = [f"{tag}{i}" for i in range(room)]
        self._leases.expect(possible)
        try:
            is_left, *found = await self._line.send("EVAL", scripts.RESERVE, len(keys), *keys, *arguments)
        except (LineLost, asyncio.CancelledError) as exc:
            if isinstance(exc, LineLost) and not exc.sent:
                self._leases.hold([], of=possible)
            self._leases.put_back(possible, begun=False)  # what it has moved belongs to nobody now
            raise
        except ResponseError:
            self._leases.hold([], of=possible)
            raise
        held = [(found[i].decode(), queues[found[i + 1] - 1], found[i + 2]) for i in range(0, len(found), 3)]
        self._leases.hold([tag for tag, _, _ in held], of=possible)
        return bool(is_left), held

    async def _are_back(self) -> bool:
        """Wait for the lines. False: they were closed."""
        try:
            await asyncio.gather(self._line.connected(), self._bell.connected())
        except LineClosed:
            return False
        return True

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


def read_message(item: bytes, queue: str, tag: str) -> Message:
    """A task's message as kombu takes it, under the worker's own `tag`. Raises `ValueError` for anything else."""
    try:
        # Not kombu's decoder, which looks for objects in every dictionary: an envelope has none, and a good part of a
        # call's time went there. It shares the names in them, with which thousands of calls wait.
        message = from_json(item)
    except ValueError as exc:
        raise ValueError(f"not JSON: {exc}") from exc
    if not isinstance(message, dict):
        raise ValueError("not a message")  # noqa: TRY004 - one kind of error, whatever lies in a queue
    headers, properties = message.get("headers"), message.get("properties")
    if not (isinstance(headers, dict) and isinstance(properties, dict) and isinstance(message.get("body"), str)):
        raise ValueError("not a message: headers, properties or body are missing")  # noqa: TRY004 - as above
    if not (isinstance(headers.get("task"), str) and isinstance(headers.get("id"), str)):
        raise ValueError("not a task: its name or its id is missing")  # noqa: TRY004 - as above
    if not _are_limits(headers.get("timelimit")):
        raise ValueError("not a task: its limits are not two numbers of seconds")
    info = properties.get("delivery_info")
    if not isinstance(info, dict):
        info = properties["delivery_info"] = {}
    info.setdefault("exchange", "")
    info.setdefault("routing_key", queue)
    if message.pop("redelivered", False):
        headers["redelivered"] = info["redelivered"] = True
    properties["delivery_tag"] = tag
    return message


def _are_limits(limits: object) -> bool:
    """Whether Celery can begin with them: what fails only there would cost a slot for good."""
    if limits is None:
        return True
    if not (isinstance(limits, list) and len(limits) == 2):  # noqa: PLR2004 - hard and soft
        return False
    return all(limit is None or (isinstance(limit, int | float) and 0 <= limit < math.inf) for limit in limits)


def _seen(reply: "asyncio.Future[Any]") -> None:
    """If it got lost, places are free again by themselves, and workers look by themselves."""
    if not reply.cancelled():
        reply.exception()
