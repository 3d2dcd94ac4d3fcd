"""What a fleet needs on one event loop: its connections, what exists, who waits, and what runs in the background."""

import asyncio
import time
import uuid
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

import structlog

from toolfleet_registry.catalog import Catalog
from toolfleet_registry.contracts import (
    Caller,
    Conversation,
    ModuleStatus,
    PublishedCall,
    ToolCall,
    ToolDefinition,
    ToolResult,
)
from toolfleet_registry.errors import FleetUnavailable, NotPublished, PublishUnconfirmed
from toolfleet_registry.manifests import ManifestCache
from toolfleet_registry.names import ToolName
from toolfleet_registry.redis_servers import async_client, connection_factory
from toolfleet_registry.settings import Settings
from toolfleet_tasks import endings
from toolfleet_tasks.cancelling import end, is_wanted
from toolfleet_tasks.cluster import refuse_cluster
from toolfleet_tasks.conversation import with_conversation
from toolfleet_tasks.forks import Sockets, leave_behind
from toolfleet_tasks.handle import Follow, audited
from toolfleet_tasks.inbox import Inbox
from toolfleet_tasks.line import Line
from toolfleet_tasks.line_publisher import LinePublisher, database_of
from toolfleet_tasks.queues import Route, route_for

T = TypeVar("T")

log = structlog.get_logger(__name__)

_PUBLISH_SECONDS = 10.0  # to get a call into its queue; longer, and the caller hears that the queue is away
_LONGEST_TIMEOUT = 10 * 365 * 86400.0  # seconds: longer is for ever, which clocks and brokers cannot count
_REVOKE_SECONDS = 3.0  # for the workers to hear, when the fleet is left, that a call was given up
_REDIS_SECONDS = 5.0  # for one answer of Redis


class Publisher(Protocol):
    """What gets calls into their queues."""

    async def publish(self, call: PublishedCall, route: Route, *, seconds: float) -> None:
        """Return when the broker has the call. Raises `NotPublished` or `PublishUnconfirmed`, in `seconds` at the latest."""
        ...

    async def revoke(self, call_id: str) -> None:
        """Tell every worker to drop the call, or to interrupt it. Raises nothing."""
        ...

    def close(self) -> None:
        """Let go of what it has."""
        ...


class Session:
    """A fleet on the running loop, from `open` to `aclose`. Belongs to that loop and to this process."""

    def __init__(self, settings: Settings) -> None:
        self.loop = asyncio.get_running_loop()
        self._settings = settings
        self._keys = settings.keys
        self._sockets = Sockets()
        self._background: set[asyncio.Task[Any]] = set()
        self._revocations: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()
        url = str(settings.redis_url)
        self._redis = async_client(url, master=settings.sentinel_master, timeout_seconds=_REDIS_SECONDS)
        self._cache = ManifestCache(self._redis, ttl_seconds=settings.manifest_ttl_seconds, keys=self._keys)
        self._catalog = Catalog(settings, self._cache)
        self._line = self._line_to(url, "agent")
        self._lines = [self._line]
        news = {self._keys.manifests_changed: self._news.set}
        self._inbox = Inbox(self._line, self._line_to(url, "reads"), news=news, keys=self._keys)
        # Calls leave where their results arrive, so that Redis hears of who listens before it has the call.
        self._has_one_line = settings.is_fast and settings.broker == settings.redis_url
        self._publisher = self._make_publisher()

    async def open(self) -> None:
        """Connect, and learn what exists. Raises `FleetUnavailable`, or `SettingsError` for a Redis that will not do."""
        try:
            await self._cache.check()
            await refuse_cluster(self._redis)
            await self._catalog.ensure()
            await self._rest()
        except BaseException:
            await self.aclose()
            raise
        for line in self._lines:
            line.start()
        self._inbox.start()
        self._spawn(self._follow_news())

    async def aclose(self) -> None:
        """End everything. Calls in flight end with a result that says so."""
        if self._revocations:
            await asyncio.wait(self._revocations, timeout=_REVOKE_SECONDS)
        await end(self._background)
        await self._inbox.aclose()
        for line in self._lines:
            await line.aclose()
        self._publisher.close()
        await self._redis.aclose()

    def abandon(self) -> None:
        """End it without its loop, which has ended or is stuck. What is not over is left behind, for good."""
        had_sockets = self._sockets.cut()
        # After `asyncio.run` nothing is left of it: whoever makes a loop for each call must not collect sessions.
        if had_sockets or asyncio.all_tasks(self.loop):
            leave_behind(self)
        else:
            self._publisher.close()

    def forked(self) -> None:
        """Leave it alone: this is a copy, and the loop is another process's."""
        self._sockets.cut()
        leave_behind(self)

    def tools(self, caller: Caller) -> list[ToolDefinition]:
        """As `ToolFleet.tools`."""
        return self._catalog.tools(caller)

    def statuses(self) -> dict[str, ModuleStatus]:
        """As `ToolFleet.statuses`."""
        return self._catalog.statuses()

    async def refresh(self) -> dict[str, ModuleStatus]:
        """As `ToolFleet.refresh`."""
        try:
            return await self._catalog.refresh()
        finally:
            await self._rest()

    async def begin(
        self, call: ToolCall, caller: Caller, conversation: Conversation | None, seconds: float | None
    ) -> Follow | ToolResult:
        """Judge and publish a call, to end in `seconds`. A call that is not published has its result already."""
        tool = self._catalog.judge(call, caller)
        if isinstance(tool, ToolResult):
            return audited(new_call_id(), tool)
        if seconds is not None and seconds <= 0:
            return audited(new_call_id(), endings.expired(call.tool_name))
        route = route_for(tool, self._settings)
        published = PublishedCall(
            call_id=new_call_id(),
            tool_name=tool.name,
            arguments=with_conversation(call.arguments, tool.name, conversation, self._settings.context_modules),
            user_id=call.user_id if caller.user_id is None else caller.user_id,
            caller=caller,
            effect=tool.effect,
            limit_seconds=route.limit,
            published_at=time.time(),
            deadline_at=self._deadline(route, seconds),
            idempotency_key=call.idempotency_key,
        )
        return await self._send(published, route)

    async def _send(self, call: PublishedCall, route: Route) -> Follow:
        """Listen for the call's end, and publish it."""
        witness = self._keys.module_manifest(ToolName.parse(call.tool_name).module)
        follow = Follow(call, self._inbox, witness=witness, revoke=self._revoke_soon, spawn=self._spawn)
        try:
            refusal = await self._publish(call, route)
        except BaseException:
            follow.give_up()  # it may have got into its queue just now
            raise
        if refusal is None:
            follow.published(call.deadline_at)
        else:
            follow.refuse(refusal)
        return follow

    async def _publish(self, call: PublishedCall, route: Route) -> ToolResult | None:
        """Get the call into its queue; `None`, or the result of a call that is not, or perhaps not, in it."""
        give_up_at = min(time.time() + _PUBLISH_SECONDS, call.deadline_at)
        try:
            if not self._has_one_line:
                async with asyncio.timeout(give_up_at - time.time()):
                    await self._inbox.listening(call.call_id)
            await self._publisher.publish(call, route, seconds=give_up_at - time.time())
        except (TimeoutError, NotPublished) as exc:
            if time.time() >= call.deadline_at and self._line.is_connected:
                return endings.expired(call.tool_name)
            return endings.not_published(call.tool_name, str(exc) or "Redis does not answer")
        except PublishUnconfirmed:
            self._revoke_soon(call.call_id)
            return endings.outcome_unknown(call.tool_name, "the queue did not confirm the call.")
        return None

    def _deadline(self, route: Route, seconds: float | None) -> float:
        """Without a wish of the caller's: two full attempts, each delivered twice. Nothing waits for ever."""
        if seconds is None:
            seconds = 2 * route.hard_limit + 2 * self._settings.lease_seconds
        return time.time() + min(seconds, _LONGEST_TIMEOUT)

    def _line_to(self, url: str, name: str) -> Line:
        return Line(self._sockets.watched(connection_factory(url, master=self._settings.sentinel_master)), name=name)

    def _make_publisher(self) -> Publisher:
        settings = self._settings
        if not settings.is_fast:
            # Celery and kombu take a while to import, and most agents need neither.
            from toolfleet_tasks import publisher  # noqa: PLC0415
            from toolfleet_tasks.app import make_app  # noqa: PLC0415

            return publisher.Publisher(make_app(settings, stores_results=False))
        broker = str(settings.broker)
        line = self._line
        if not self._has_one_line:
            line = self._line_to(broker, "agent-broker")
            self._lines.append(line)
        database = database_of(connection_factory(broker, master=settings.sentinel_master))
        return LinePublisher(line, keys=self._keys, database=database)

    def _revoke_soon(self, call_id: str) -> asyncio.Task[None]:
        """Tell the workers to drop a call whose caller has gone; `aclose` waits a little for that."""
        self._revocations.add(revocation := self._spawn(self._publisher.revoke(call_id)))
        revocation.add_done_callback(self._revocations.discard)
        return revocation

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run something in the background, and end it with the fleet."""
        task = self.loop.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def _follow_news(self) -> None:
        """Take over manifests when a worker has stored other ones, or may have while we were not listening."""
        while is_wanted():
            await self._news.wait()
            self._news.clear()
            try:
                await self._take_over()
            except FleetUnavailable as exc:
                log.warning("manifests_not_reloaded", error=str(exc))
            except Exception:  # a defect of ours: an agent that hears of no tools any more would be worse
                log.exception("manifests_not_reloaded")

    async def _take_over(self) -> None:
        try:
            await self._catalog.load()
            if self._catalog.is_empty:  # Redis came back without its data
                await self._catalog.refresh()
        finally:
            await self._rest()

    async def _rest(self) -> None:
        """Close the client's idle connections: it is asked too seldom to keep any beside the line."""
        await self._redis.connection_pool.disconnect(inuse_connections=False)


def new_call_id() -> str:
    """An id that no other call has; also the id of its task in Celery."""
    return str(uuid.uuid4())
