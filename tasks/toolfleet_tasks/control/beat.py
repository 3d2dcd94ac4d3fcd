"""Schedules the periodic tasks as Celery's beat: watches its loop, answers probes, feeds the directory and webhooks, gets over a lost connection."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, ClassVar

from celery.beat import Scheduler, SchedulingError
from celery.signals import beat_init
from kombu.connection import Connection
from kombu.utils.objects import cached_property

from toolfleet_registry.catalog.registry_events import held_registry
from toolfleet_registry.directory.known_modules import KnownModules
from toolfleet_registry.directory.watch import ModuleWatch
from toolfleet_registry.redis.servers import connection_factory
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import machine_clock
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.system.process import this_process
from toolfleet_tasks.broker import confirming
from toolfleet_tasks.control.probes import STILL_SECONDS, Probes
from toolfleet_tasks.greenlet_bridge import run_here
from toolfleet_tasks.redis_connection import PipelinedConnection
from toolfleet_tasks.wakeups.webhook_feed import WebhookFeed

log = get_logger(__name__)

_FEED_END_SECONDS = 2.0  # what it was at is done by the next beat
_END_SECONDS = 4.0  # for the thread, which may be waiting for Redis: it ends with the process at the latest

ROLE = "beat"

_PAUSE_SECONDS = 1.0  # between two tries to connect: jobs wait for it, and Celery's own grow to half a minute
_STEP_SECONDS = 1.0  # a clock that is slewed is less off between two ticks


class _Feed:
    """Works in a thread with a loop of its own, from `start` to `end`. Raises nothing while Redis is away."""

    name: ClassVar[str]
    end_seconds: ClassVar[float]

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: asyncio.Task[None] | None = None
        self._is_ending = False
        self._thread = this_process().thread(lambda: run_here(self._keep()), name=self.name)

    def start(self) -> None:
        """Feed from now on."""
        self._thread.start()

    def end(self) -> None:
        """Feed no more. Takes some seconds at most; safe to call twice, and from a signal's handler."""
        self._is_ending = True
        if self._loop is not None and self._running is not None:
            with contextlib.suppress(RuntimeError):  # its loop has ended already
                self._loop.call_soon_threadsafe(self._running.cancel)
        if self._thread.is_alive():
            self._thread.join(self.end_seconds)

    async def _keep(self) -> None:
        self._running = asyncio.create_task(self._feed())
        self._loop = asyncio.get_running_loop()
        if self._is_ending:  # before there was anything to cancel
            self._running.cancel()
        await asyncio.wait([self._running])
        await self._leave()

    async def _feed(self) -> None:
        raise NotImplementedError

    async def _leave(self) -> None:
        raise NotImplementedError


class RegistryFeed(_Feed):
    """Sends the registry's events each second, in one process with the setting `registry_webhooks`."""

    name = "toolfleet-webhooks"
    end_seconds = _FEED_END_SECONDS

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._connection: PipelinedConnection | None = None

    async def _feed(self) -> None:
        settings = self._settings
        factory = connection_factory(str(settings.redis_url), master=settings.sentinel_master)
        self._connection = PipelinedConnection(factory, name="webhooks")
        self._connection.start()
        async with held_registry(settings) as held:
            await WebhookFeed(self._connection, settings, held.registry).keep()

    async def _leave(self) -> None:
        if self._connection is not None:
            await self._connection.aclose()


class ModuleFeed(_Feed):
    """Keeps the settings' modules in the directory, for one process.

    At its end it takes back what it has fed: other settings may count at once.
    """

    name = "toolfleet-modules"
    end_seconds = _END_SECONDS

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._watch = ModuleWatch(settings, KnownModules(settings))

    async def _feed(self) -> None:
        await self._watch.keep()

    async def _leave(self) -> None:
        await self._watch.aclose()
        await self._watch.leave()


class FleetScheduler(Scheduler):
    """Celery's, which keeps its schedule in memory. The app has `settings`."""

    probes: Probes | None = None
    feeds: Sequence[_Feed] = ()

    def __init__(self, *args: Any, **options: Any) -> None:
        self._rests_until = machine_clock.monotonic()
        self._waits_for_broker = False
        self._lead = _lead()
        super().__init__(*args, **options)

    @cached_property
    def connection(self) -> Connection:
        """Celery's connection, with publisher confirms: otherwise messages are lost for as long as a half-open connection stands."""
        return confirming(self.app)

    def tick(self, *args: Any, **options: Any) -> float:
        """As Celery's: seconds until the next one. A machine's clock that was set back holds nothing up."""
        lead = _lead()
        if lead < self._lead - _STEP_SECONDS:
            self._count_anew(self._lead - lead)
        self._lead = lead
        delay: float = super().tick(*args, **options)
        self._rests_until = machine_clock.monotonic() + (delay or 0)
        return delay

    def apply_async(self, entry: Any, producer: Any = None, advance: bool = True, **options: Any) -> Any:  # noqa: FBT001, FBT002 - Celery's
        """As Celery's. What fails over RabbitMQ is tried once more, over a new connection: over a broken one nothing is sent ever again."""
        try:
            return super().apply_async(entry, producer=producer, advance=advance, **options)
        except SchedulingError as exc:
            if self.connection.transport.driver_type != "amqp":  # other transports reconnect when they send
                raise
            log.warning("beat_connects_anew", error=str(exc))
            self._disconnect()
            return super().apply_async(entry, producer=self.producer, advance=False, **options)

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        """As Celery's, without a line in the log for what it has sent: one task comes every second."""
        try:
            self.apply_async(entry, producer=producer, advance=False)
        except Exception as exc:  # noqa: BLE001 - kombu and its transports raise anything; the next tick will do
            log.error("tick_not_sent", task=entry.name, error=str(exc))  # noqa: TRY400 - it says all

    def close(self) -> None:
        """As Celery's, at the end."""
        super().close()
        if self.probes is not None:
            self.probes.leave()
        for feed in reversed(self.feeds):
            feed.end()

    def stuck(self) -> str | None:
        """Return why it is not alive. Waiting for a broker that is away is part of its work."""
        late = machine_clock.monotonic() - self._rests_until
        if self._waits_for_broker or late < STILL_SECONDS:
            return None
        return f"beat's loop has stood still for {late:.0f} s"

    def unready(self) -> str | None:
        """Return why it sends nothing."""
        return "beat waits for its broker" if self._waits_for_broker else None

    def _count_anew(self, seconds: float) -> None:
        """Have each task sent an interval from now on: by the clock that it had it would be sent for the next time so much later."""
        log.warning("beat_clock_set_back", seconds=round(seconds, 1))
        for entry in (self.schedule or {}).values():
            entry.last_run_at = entry.default_now()
        self._heap = None  # Celery's next look fills it

    def _disconnect(self) -> None:
        """Forget Celery's producer and connection, which it makes when it needs them."""
        self.__dict__.pop("producer", None)
        self.__dict__.pop("connection").collect()

    def _ensure_connected(self) -> Any:
        self._waits_for_broker = True
        try:
            return self.connection.ensure_connection(
                _say_away, interval_start=_PAUSE_SECONDS, interval_step=0, interval_max=_PAUSE_SECONDS
            )
        finally:
            self._waits_for_broker = False


def _lead() -> float:
    """Return the lead of the clock that Celery's schedules use over the monotonic one."""
    return machine_clock.wall() - machine_clock.monotonic()


def _say_away(exc: Exception, seconds: float) -> None:
    log.error("beat_waits_for_broker", error=str(exc), tries_again_after=seconds)


def _answer_probes(sender: Any, **_: object) -> None:
    scheduler = sender.scheduler
    if isinstance(scheduler, FleetScheduler):
        scheduler.probes = Probes(ROLE, sender.app.settings, live=scheduler.stuck, ready=scheduler.unready)
        scheduler.probes.start()


def _feed(sender: Any, **_: object) -> None:
    """Have agents learn the modules of beat's settings, and their webhooks the registry's events, for as long as it runs."""
    settings, feeds = sender.app.settings, list[_Feed]()
    feeds.append(ModuleFeed(settings))
    if settings.registry_webhooks and settings.redis_url is not None:
        feeds.append(RegistryFeed(settings))
    if isinstance(sender.scheduler, FleetScheduler):
        sender.scheduler.feeds = feeds
    for feed in feeds:
        feed.start()


beat_init.connect(_feed, weak=False)
beat_init.connect(_answer_probes, weak=False)
