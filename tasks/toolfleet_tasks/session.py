"""What a fleet needs on one event loop: its connections, what exists, who waits, and what runs in the background."""

import asyncio
import functools
import time
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import structlog

from toolfleet_registry.catalog import Catalog, Judged
from toolfleet_registry.contracts import (
    Caller,
    Conversation,
    ModuleStatus,
    PublishedCall,
    ToolCall,
    ToolDefinition,
    ToolResult,
)
from toolfleet_registry.decisions import collecting
from toolfleet_registry.effects import effect_of
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.manifests import ManifestCache
from toolfleet_registry.redis_servers import async_client, connection_factory
from toolfleet_registry.sensitive import sensitive_paths
from toolfleet_registry.sensitive_results import has_sensitive_results
from toolfleet_registry.settings import Settings
from toolfleet_registry.terms import Remaining
from toolfleet_tasks import endings
from toolfleet_tasks.audit_trail import AuditTrail
from toolfleet_tasks.cancelling import end, is_wanted
from toolfleet_tasks.cluster import refuse_cluster
from toolfleet_tasks.conversation import models_part, told_by
from toolfleet_tasks.dead import DeadLetters
from toolfleet_tasks.entrance import Entrance
from toolfleet_tasks.evaluation import NOTHING_MORE, Circumstances, EvalGate, Evaluation
from toolfleet_tasks.forks import Sockets, leave_behind
from toolfleet_tasks.gate import publisher_behind
from toolfleet_tasks.handle import Follow, new_call_id
from toolfleet_tasks.inbox import Inbox
from toolfleet_tasks.joining import Joined, Joins
from toolfleet_tasks.ledger import Ledger
from toolfleet_tasks.limits import limits_among, terms_for
from toolfleet_tasks.line import Line
from toolfleet_tasks.posting import Posting
from toolfleet_tasks.queues import Route, lane_of, route_for
from toolfleet_tasks.remaining import look_at
from toolfleet_tasks.shelf import Shelf

T = TypeVar("T")

log = structlog.get_logger(__name__)

_LONGEST_TIMEOUT = 10 * 365 * 86400.0  # seconds: longer is for ever, which clocks and brokers cannot count
_LAST_WORDS_SECONDS = 3.0  # for ledger and workers to hear, when the fleet is left, that a call was given up
_REDIS_SECONDS = 5.0  # for one answer of Redis


class Session:
    """A fleet on the running loop, from `open` to `aclose`. Belongs to that loop and to this process."""

    def __init__(self, settings: Settings, gate: EvalGate | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        self._settings = settings
        self._keys = settings.keys
        self._sockets = Sockets()
        self._background: set[asyncio.Task[Any]] = set()
        self._last_words: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()
        url = str(settings.redis_url)
        self._redis = async_client(url, master=settings.sentinel_master, timeout_seconds=_REDIS_SECONDS)
        self._cache = ManifestCache(self._redis, ttl_seconds=settings.manifest_ttl_seconds, keys=self._keys)
        self._catalog = Catalog(settings, self._cache)
        self.dead = DeadLetters(self._redis, self._keys, signing_key=settings.signing_key)
        self._line = self._line_to(url, "agent")
        self._lines = [self._line]
        self._ledger = Ledger(self._line, settings, writes_results=False)
        self.trail = AuditTrail(self._line, settings)
        news = {self._keys.manifests_changed: self._news.set}
        self._inbox = Inbox(self._line, self._line_to(url, "reads"), news=news, keys=self._keys)
        self._joins = Joins(
            self._inbox,
            Shelf(self._line_to(url, "joins"), lambda *_: None),  # what joins read they ask for one by one
            keys=self._keys,
            follow=functools.partial(self._follow, is_guest=True),
            spawn=self._spawn,
        )
        entrance = Entrance(settings)
        self._publisher = publisher_behind(
            entrance,
            settings,
            self._line,
            line_to_broker=self._line_to_broker,
            listening=self._inbox.listening,
            spawn=self._spawn,
        )
        self._evaluation = Evaluation(gate, settings)
        self._posting = Posting(
            self._publisher, entrance, self._joins, inbox=self._inbox, line=self._line, follow=self._follow
        )

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
        self._posting.close()
        if self._last_words:
            await asyncio.wait(self._last_words, timeout=_LAST_WORDS_SECONDS)
        await end(self._background)
        await self._inbox.aclose()
        await self._joins.aclose()
        await self.trail.settle()
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

    async def search(self, text: str, caller: Caller, *, tags: Sequence[str], limit: int) -> list[ToolDefinition]:
        """As `ToolFleet.search`."""
        return await self._catalog.search(text, caller, tags=tags, limit=limit)

    async def statuses(self) -> dict[str, ModuleStatus]:
        """As `ToolFleet.statuses`."""
        known = self._catalog.statuses()
        if not any(status.is_stale for status in known.values()):
            return known
        # Nobody announces a look that found nothing new: ages are those of what we read last.
        try:
            await self._catalog.load()
        except FleetUnavailable as exc:
            log.warning("manifests_not_reloaded", error=str(exc))
        finally:
            await self._rest()
        return self._catalog.statuses()

    async def refresh(self) -> dict[str, ModuleStatus]:
        """As `ToolFleet.refresh`."""
        try:
            return await self._catalog.refresh()
        finally:
            await self._rest()

    async def remaining(self, caller: Caller) -> Remaining:
        """As `ToolFleet.remaining`."""
        return await look_at(self._line, limits_among(self._catalog.tools(caller), caller.user_id, self._settings))

    async def begin(  # noqa: PLR0913 - what an agent may say of a call
        self,
        call: ToolCall,
        caller: Caller,
        conversation: Conversation | None,
        seconds: float | None,
        *,
        waits: bool,
        replay_of: str | None = None,
        around: Circumstances = NOTHING_MORE,
    ) -> Follow | Joined | ToolResult:
        """Judge and publish a call, to end in `seconds`. A call that is neither published nor joined has its result already.

        `waits`: over its caller's share it is published later, if there is time, and else it is `busy`.
        """
        noted, judged = collecting(), self._judge(call, caller, conversation)
        if isinstance(judged, ToolResult):
            return self.trail.refused(call, caller, judged, noted)
        tool, user_id = judged.tool, call.user_id if caller.user_id is None else caller.user_id
        deadline_at = self._deadline(route := route_for(tool, self._settings), seconds)
        if seconds is not None and seconds <= 0:
            return self.trail.refused(call, caller, endings.expired(tool.name), noted, tool)
        left = deadline_at - time.time()
        refusal = await self._evaluation.refusal(tool, judged.arguments, user_id, around, seconds=left)
        if refusal is not None:
            return self.trail.refused(call, caller, refusal, noted, tool)
        published = PublishedCall(
            call_id=new_call_id(),
            arguments=judged.arguments,
            user_id=user_id,
            caller=caller,
            deadline_at=deadline_at,
            idempotency_key=call.idempotency_key or None,  # an empty one names nothing
            replay_of=replay_of,
            decisions=noted,
            **self._facts_of(tool, route, around),
        )
        started = await self._posting.post(published, route, waits=waits)
        return self.trail.unpublished(published, started) if isinstance(started, ToolResult) else started

    def seconds_for(
        self, call: ToolCall, caller: Caller, conversation: Conversation | None, seconds: float | None
    ) -> float:
        """How long such a call would have from now on, if it is to end in `seconds`; 0 for one that would be refused."""
        judged = self._judge(call, caller, conversation)
        if isinstance(judged, ToolResult):
            return 0
        return self._deadline(route_for(judged.tool, self._settings), seconds) - time.time()

    def _judge(self, call: ToolCall, caller: Caller, conversation: Conversation | None) -> Judged | ToolResult:
        modules = self._settings.context_modules
        told = told_by(conversation, call.tool_name, modules)
        return self._catalog.judge(models_part(call, modules), caller, told)

    def _facts_of(self, tool: ToolDefinition, route: Route, around: Circumstances) -> dict[str, Any]:
        """What a call's message says of its tool, and when."""
        return {
            "tool_name": tool.name,
            "effect": effect_of(tool),
            "limit_seconds": route.limit,
            "published_at": time.time(),
            "terms": terms_for(tool, around.terms, self._settings),
            "lane": lane_of(tool.name.partition(".")[0], self._settings),
            "sensitive": sensitive_paths(tool),
            "hides_results": has_sensitive_results(tool),
        }

    def _deadline(self, route: Route, seconds: float | None) -> float:
        """Without a wish of the caller's: two full attempts, each delivered twice. Nothing waits for ever."""
        if seconds is None:
            seconds = 2 * route.hard_limit + 2 * self._settings.lease_seconds
        return time.time() + min(seconds, _LONGEST_TIMEOUT)

    def _line_to(self, url: str, name: str) -> Line:
        return Line(self._sockets.watched(connection_factory(url, master=self._settings.sentinel_master)), name=name)

    def _line_to_broker(self) -> Line:
        self._lines.append(line := self._line_to(str(self._settings.broker), "agent-broker"))
        return line

    def _follow(self, call: PublishedCall, *, is_guest: bool = False) -> Follow:
        revoke = self._publisher.revoke
        return Follow(call, self._inbox, ledger=self._ledger, revoke=revoke, spawn=self._say_last, is_guest=is_guest)

    def _say_last(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Have a call ended whose caller may have gone; `aclose` waits a little for that."""
        self._last_words.add(task := self._spawn(work))
        task.add_done_callback(self._last_words.discard)
        return task

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
            if not await self._catalog.load():  # Redis came back without its data
                await self._catalog.refresh()
        finally:
            await self._rest()

    async def _rest(self) -> None:
        """Close the client's idle connections: it is asked too seldom to keep any beside the line."""
        pool = self._redis.connection_pool
        async with pool._lock:  # noqa: SLF001 - else somebody takes one that is just being closed
            await pool.disconnect(inuse_connections=False)
