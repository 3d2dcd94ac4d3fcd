"""Puts the registry's events into the outbox of webhooks: continues each receiver's position, each event once for each.

Two concurrent feeds do no harm: the position moves in one step with the write to the outbox.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from urllib.parse import urlsplit

from redis.exceptions import ResponseError

from toolfleet_registry.catalog.registration import asked
from toolfleet_registry.catalog.registry_events import EventsAfter, events_after
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.manifests.specs import RegistryEvent
from toolfleet_registry.settings import Settings
from toolfleet_registry.store.port import ToolRegistry
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.aio.cancellation import is_wanted
from toolfleet_tasks.messages.signing import seal_of
from toolfleet_tasks.redis.connection import PipelinedConnection, RedisConnectionLost
from toolfleet_tasks.wakeups.webhook_events import outbox_body, outbox_id, receiver_of
from toolfleet_tasks.wakeups.webhook_scripts import feed_receiver

log = get_logger(__name__)

_EVERY_SECONDS = 1.0
_AT_ONCE = 100  # events in one script: Redis does nothing else meanwhile


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
