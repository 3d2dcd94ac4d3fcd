"""Puts the registry's events and notices of approvals into the outbox of webhooks: each event once for each receiver.

The position of each receiver is in a hash, receiver -> id of an event, and moves in one step with the write to the
outbox. So a process that dies has done both or neither, and of two that read the same events one writes them.

Two concurrent feeds do no harm: the position moves in one step with the write to the outbox.
"""

import asyncio
import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from redis.exceptions import ResponseError

from toolfleet_registry.catalog.registration import asked
from toolfleet_registry.catalog.registry_events import EventsAfter, events_after
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.settings import Settings
from toolfleet_registry.specs import RegistryEvent
from toolfleet_registry.store.registry import ToolRegistry
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.aio import is_wanted
from toolfleet_tasks.messages.signing import seal_of
from toolfleet_tasks.redis_connection import PipelinedConnection, RedisConnectionLost, run_durably
from toolfleet_tasks.scripts import script

log = get_logger(__name__)

FEED = script("wakeups/feed")
"""Returns `fed`; `moved`: another process has fed meanwhile, or there is no position yet; `full`: too many wait for this receiver."""

FedState = Literal["fed", "moved", "full"]
"""What `FEED` returns."""

REGISTRY: Final = "registry"
"""The kind of such events in the outbox, of any source."""

_LONGEST_TEXT = 1_000  # characters: names and versions are others', and of any length
_RECEIVER_DIGITS = 16

_EVERY_SECONDS = 1.0
_AT_ONCE = 100  # events in one script: Redis does nothing else meanwhile


async def feed_receiver(
    connection: PipelinedConnection, keys: Keys, receiver: str, *, at: str, to: str, events: Sequence[tuple[str, str]]
) -> FedState:
    """Put `events` (ids in the outbox, and sealed bodies) into the outbox, and move the receiver from `at` to `to`, in one step.

    Until Redis has it. Raises what `run_durably` does.
    """
    parameters = FEED.parameters(
        positions=keys.webhook_positions,
        due=keys.wakes_due,
        receiver_due=keys.webhooks_due(receiver),
        clock_key=keys.clock,
        receiver=receiver,
        at=at,
        to=to,
        prefix=keys.wake(""),
        events=list(events),
    )
    became = await run_durably(connection, FEED, parameters)
    return "fed" if became == b"fed" else "full" if became == b"full" else "moved"


def receiver_of(url: str) -> str:
    """Return the name of a receiver in Redis and in logs: 16 hexadecimal digits of its URL's SHA-256, for a URL may hold a token."""
    return hashlib.sha256(url.encode()).hexdigest()[:_RECEIVER_DIGITS]


def approval_receiver_of(url: str) -> str:
    """The same of a receiver of approvals, also if it is told of the registry at this URL, too."""
    return receiver_of(f"approvals {url}")


def outbox_id(event_id: str, receiver: str) -> str:
    """Return the event's id in the outbox for this receiver; the same in every process."""
    return f"{event_id}@{receiver}"


def parts_of(wake_id: str) -> tuple[str, str]:
    """The id of the event, which is the `webhook-id`, and the receiver."""
    event_id, _, receiver = wake_id.rpartition("@")
    return event_id, receiver


def outbox_body(event: RegistryEvent, receiver: str) -> str:
    """Return the event's record in the outbox: JSON with the payload, and its receiver.

    Of a text over 1,000 characters, its beginning.
    """
    fields = {name: _bounded(value) for name, value in event.model_dump(mode="json").items()}
    payload = {"type": f"registry.{event.kind}", "timestamp": fields["at"], "data": fields}
    kept = {"wake_id": outbox_id(event.id, receiver), "kind": REGISTRY, "payload": payload}
    return json.dumps(kept, separators=(",", ":"))


def notice_body(event_id: str, receiver: str, payload: dict[str, Any]) -> str:
    """Return the record of an approval's notice in the outbox: JSON with the payload, and its receiver."""
    kept = {"wake_id": outbox_id(event_id, receiver), "kind": REGISTRY, "payload": payload}
    return json.dumps(kept, separators=(",", ":"))


def sent_body(kept: str) -> str:
    """Return its payload, as JSON. Raises `ValueError` if it is invalid."""
    found = json.loads(kept)
    if not isinstance(found, dict) or not isinstance(found.get("payload"), dict):
        raise ValueError("it has no payload")
    return json.dumps(found["payload"], separators=(",", ":"))


def _bounded(value: Any) -> Any:
    is_long = isinstance(value, str) and len(value) > _LONGEST_TEXT
    return f"{value[: _LONGEST_TEXT - 1]}…" if is_long else value


class WebhookFeed:
    """Feeds the outbox for all `registry_webhooks` of the settings. Belongs to the loop of its `connection`."""

    def __init__(
        self,
        connection: PipelinedConnection,
        settings: Settings,
        open_registry: Callable[[], AbstractAsyncContextManager[ToolRegistry]],
    ) -> None:
        self._connection, self._keys = connection, settings.keys
        self._seal = seal_of(settings, purpose="job")
        self._open = open_registry
        self._kinds = {receiver_of(url): frozenset(kinds) for url, kinds in settings.registry_webhooks.items()}
        self._hosts = {receiver_of(url): urlsplit(url).hostname for url in settings.registry_webhooks}
        self._full = set[str]()
        self._is_away = False

    async def keep(self) -> None:
        """Feed each second, until cancelled. Errors are logged, and the work repeated."""
        while is_wanted():
            try:
                fed = await self.feed()
            except (FleetUnavailable, RedisConnectionLost, ResponseError) as exc:
                fed = 0
                if not self._is_away:
                    log.warning("webhooks_not_fed", error=str(exc))
                self._is_away = True
            except Exception:  # a defect must not end what feeds
                fed = 0
                log.exception("webhooks_not_fed")
            else:
                self._is_away = False
            if not fed:
                await asyncio.sleep(_EVERY_SECONDS)

    async def feed(self) -> int:
        """Put what has happened since into the outbox, some thousand events at most. Returns how far the receivers got, in events.

        A receiver that is new is told of what happens from now on. Raises `FleetUnavailable` and `ResponseError`.
        """
        positions = await self._positions()
        async with self._open() as registry:
            for receiver in self._kinds.keys() - positions.keys():
                start = await asked(registry.last_event)
                await self._connection.execute("HSETNX", self._keys.webhook_positions, receiver, start)
            wanted = [(receiver, at) for receiver, at in positions.items() if receiver in self._kinds]
            found = {at: await _read(registry, at) for at in {at for _, at in wanted}}
        return sum([await self._put(receiver, at, found[at]) for receiver, at in wanted])

    async def _positions(self) -> dict[str, str]:
        answer = await self._connection.execute("HGETALL", self._keys.webhook_positions)
        # A list by the older protocol of Redis, and a mapping by the newer one.
        pairs = answer.items() if isinstance(answer, dict) else zip(answer[::2], answer[1::2], strict=True)
        return {name.decode(): at.decode() for name, at in pairs}

    async def _put(self, receiver: str, at: str, found: EventsAfter) -> int:
        if found.are_lost:
            log.error("registry_events_lost", receiver=receiver, host=self._hosts[receiver], after=at)
        if not found.events:
            if found.until != at:
                await self._move(receiver, at, found.until, ())
            return 0
        done = 0
        for first in range(0, len(found.events), _AT_ONCE):
            batch = found.events[first : first + _AT_ONCE]
            if not await self._move(receiver, at, batch[-1].id, batch):
                break
            at, done = batch[-1].id, done + len(batch)
        return done

    async def _move(self, receiver: str, at: str, to: str, events: Sequence[RegistryEvent]) -> bool:
        """Put these into the outbox and note that, in one step; whether it was done."""
        kinds, entries = self._kinds[receiver], list[tuple[str, str]]()
        for event in events:
            if not kinds or event.kind in kinds:
                entries.append((outbox_id(event.id, receiver), self._seal.sign(outbox_body(event, receiver))))
        became = await feed_receiver(self._connection, self._keys, receiver, at=at, to=to, events=entries)
        self._note_full(receiver, is_full=became == "full")
        return became == "fed"

    def _note_full(self, receiver: str, *, is_full: bool) -> None:
        if is_full and receiver not in self._full:
            log.warning("webhook_waits", receiver=receiver, host=self._hosts[receiver], reason="too many events wait")
        (self._full.add if is_full else self._full.discard)(receiver)


async def _read(registry: ToolRegistry, after: str) -> EventsAfter:
    try:
        return await asked(lambda: events_after(registry, after))
    except ValueError:  # no position of ours, with any author
        return EventsAfter([], await asked(registry.last_event), are_lost=True)
