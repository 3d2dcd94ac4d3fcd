"""`ToolFleet`: what an agent holds. Judges a call, publishes it, and brings its result."""

import asyncio
import math
import time
import uuid
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Self, TypeVar

import structlog
from redis.asyncio import Redis

from toolfleet_registry import keys
from toolfleet_registry.catalog import Catalog
from toolfleet_registry.contracts import (
    Audit,
    Caller,
    Conversation,
    ModuleStatus,
    PublishedCall,
    ToolCall,
    ToolDefinition,
    ToolResult,
)
from toolfleet_registry.errors import FleetUnavailable, NotPublished, PublishUnconfirmed, SettingsError
from toolfleet_registry.formats import tools_to_openai_format
from toolfleet_registry.manifests import ManifestCache
from toolfleet_registry.settings import Settings, load_settings
from toolfleet_registry.urls import check_redis_url
from toolfleet_tasks import endings
from toolfleet_tasks.app import make_app
from toolfleet_tasks.cancelling import end
from toolfleet_tasks.cluster import refuse_cluster
from toolfleet_tasks.conversation import with_conversation
from toolfleet_tasks.handle import CallHandle, Follow
from toolfleet_tasks.inbox import Inbox
from toolfleet_tasks.logs import log_to_stdlib
from toolfleet_tasks.publisher import Publisher
from toolfleet_tasks.queues import Route, route_for
from toolfleet_tasks.sync import SyncToolFleet

T = TypeVar("T")

log = structlog.get_logger(__name__)

_PUBLISH_SECONDS = 10.0  # to get a call into its queue; longer, and the caller hears that the queue is away
_LONGEST_TIMEOUT = 10 * 365 * 86400.0  # seconds: longer is for ever, which clocks and brokers cannot count
_REVOKE_SECONDS = 3.0  # for the workers to hear, when the fleet is left, that a call was given up
_REDIS_SECONDS = 5.0  # for one answer of Redis


class ToolFleet:
    """The fleet, for asyncio agents: `async with ToolFleet() as fleet: await fleet.call(call, caller)`.

    `url` is the Redis URL; without it that of `settings`, of the environment, of `toolfleet.toml` or of a running
    `toolfleet up` in this folder or above. Entering it raises `SettingsError` if there is none and
    `FleetUnavailable` if Redis does not answer. Belongs to the event loop that it was entered in.
    """

    def __init__(self, url: str | None = None, settings: Settings | None = None) -> None:
        log_to_stdlib()
        self._settings = settings or load_settings()
        if url is not None:
            self._settings = self._settings.model_copy(update={"redis_url": _checked(url)})
        if self._settings.redis_url is None:
            raise SettingsError(
                "No fleet to talk to: set TOOLFLEET_REDIS_URL, or run `toolfleet up` here or in a folder above."
            )
        self._is_open = False
        self._background: set[asyncio.Task[Any]] = set()
        self._revocations: set[asyncio.Task[None]] = set()

    @classmethod
    def sync(cls, url: str | None = None, settings: Settings | None = None) -> SyncToolFleet:
        """The same for programs without an event loop: `with ToolFleet.sync() as fleet: fleet.call(call, caller)`."""
        return SyncToolFleet(lambda: cls(url, settings))

    async def __aenter__(self) -> Self:
        url = str(self._settings.redis_url)
        self._redis = Redis.from_url(url, socket_timeout=_REDIS_SECONDS, socket_connect_timeout=_REDIS_SECONDS)
        self._news = asyncio.Event()
        cache = ManifestCache(self._redis, ttl_seconds=self._settings.manifest_ttl_seconds)
        self._catalog = Catalog(self._settings, cache)
        self._inbox = Inbox(self._redis, url, news={keys.MANIFESTS_CHANGED: self._news.set})
        self._publisher = Publisher(make_app(self._settings, stores_results=False))
        try:
            await cache.check()
            await refuse_cluster(self._redis)
            await self._catalog.ensure()
        except BaseException:
            await self._close()
            raise
        self._inbox.start()
        self._spawn(self._follow_news())
        self._is_open = True
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._close()

    @property
    def _open_catalog(self) -> Catalog:
        if not self._is_open:
            raise RuntimeError("This fleet is not open: use it inside `async with ToolFleet() as fleet:`.")
        return self._catalog

    async def tools(self, caller: Caller) -> list[ToolDefinition]:
        """The tools that `caller` may use, sorted by name. From memory: costs no round trip."""
        return self._open_catalog.tools(caller)

    @staticmethod
    def tools_to_openai_format(tools: Iterable[ToolDefinition]) -> list[dict[str, Any]]:
        """Tools as OpenAI's Chat Completions take them."""
        return tools_to_openai_format(tools)

    async def statuses(self) -> dict[str, ModuleStatus]:
        """What is known of every module, without asking any."""
        return self._open_catalog.statuses()

    async def refresh(self) -> dict[str, ModuleStatus]:
        """Ask every module now for what it offers."""
        return await self._open_catalog.refresh()

    async def call(
        self,
        call: ToolCall,
        caller: Caller,
        *,
        conversation: Conversation | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the call's deadline: travels to the worker and the module
    ) -> ToolResult:
        """Run a tool and bring its result, by `timeout` seconds at the latest. Never raises for what happens to the call.

        If the awaiting task is cancelled, the call is taken back.
        """
        handle = await self.submit(call, caller, conversation=conversation, timeout=timeout)
        try:
            return await handle.result()
        except asyncio.CancelledError:
            self._revoke_soon(handle.id)
            raise

    async def call_many(
        self,
        calls: Sequence[ToolCall],
        caller: Caller,
        *,
        conversation: Conversation | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as in `call`
    ) -> list[ToolResult]:
        """Run tools side by side; the results come in the order of `calls`."""
        return await asyncio.gather(
            *(self.call(call, caller, conversation=conversation, timeout=timeout) for call in calls)
        )

    async def submit(
        self,
        call: ToolCall,
        caller: Caller,
        *,
        conversation: Conversation | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as in `call`
    ) -> CallHandle:
        """Publish a call and return at once with a handle on it. A refused call's handle has its result already."""
        tool = self._open_catalog.judge(call, caller)
        if isinstance(tool, ToolResult):
            return self._ended(_new_call_id(), tool)
        route = route_for(tool, self._settings)
        if timeout is not None and timeout <= 0:
            return self._ended(_new_call_id(), endings.expired(call.tool_name))
        published = PublishedCall(
            call_id=_new_call_id(),
            tool_name=tool.name,
            arguments=with_conversation(call.arguments, tool.name, conversation, self._settings.context_modules),
            user_id=call.user_id if caller.user_id is None else caller.user_id,
            caller=caller,
            effect=tool.effect,
            limit_seconds=route.limit,
            published_at=time.time(),
            deadline_at=self._deadline(route, timeout),
            idempotency_key=call.idempotency_key,
        )
        return await self._send(published, route)

    async def _send(self, call: PublishedCall, route: Route) -> CallHandle:
        """Listen for the call's end, then publish it."""
        expected = self._inbox.expect(call.call_id)
        try:
            refusal = await self._publish(call, route, expected.listening)
        except BaseException:
            self._inbox.forget(call.call_id)
            self._revoke_soon(call.call_id)  # it may have got into its queue just now
            raise
        if refusal is not None:
            self._inbox.forget(call.call_id)
            return self._ended(call.call_id, refusal)
        follow = Follow(call, expected, self._inbox, revoke=self._revoke_soon)
        return CallHandle(call.call_id, call.tool_name, self._spawn(follow.ending()), follow)

    def _deadline(self, route: Route, timeout: float | None) -> float:
        """Without a wish of the caller's: two full attempts, each delivered twice. Nothing waits for ever."""
        if timeout is None:
            timeout = 2 * route.hard_limit + 2 * self._settings.visibility_timeout
        if math.isnan(timeout):
            raise ValueError("timeout must be a number of seconds, not nan")
        return time.time() + min(timeout, _LONGEST_TIMEOUT)

    async def _publish(self, call: PublishedCall, route: Route, listening: asyncio.Future[None]) -> ToolResult | None:
        """Get the call into its queue; `None`, or the result of a call that is not, or perhaps not, in it."""
        give_up_at = min(time.time() + _PUBLISH_SECONDS, call.deadline_at)
        try:
            async with asyncio.timeout(give_up_at - time.time()):
                await asyncio.shield(listening)
            await self._publisher.publish(call, route, seconds=give_up_at - time.time())
        except (TimeoutError, NotPublished) as exc:
            if time.time() >= call.deadline_at and self._inbox.is_connected:
                return endings.expired(call.tool_name)
            return endings.not_published(call.tool_name, str(exc) or "Redis does not answer")
        except PublishUnconfirmed:
            self._revoke_soon(call.call_id)
            return endings.outcome_unknown(call.tool_name, "the queue did not confirm the call.")
        return None

    def _ended(self, call_id: str, result: ToolResult) -> CallHandle:
        audit = Audit(call_id=call_id, tool=result.tool_name, ts=time.time())
        ending = asyncio.get_running_loop().create_future()
        ending.set_result(result.model_copy(update={"audit": audit}))
        return CallHandle(call_id, result.tool_name, ending, None)

    def _revoke_soon(self, call_id: str) -> asyncio.Task[None]:
        """Tell the workers to drop a call whose caller has gone; `_close` waits a little for that."""
        self._revocations.add(revocation := self._spawn(self._publisher.revoke(call_id)))
        revocation.add_done_callback(self._revocations.discard)
        return revocation

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run something in the background, and end it with the fleet."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def _follow_news(self) -> None:
        """Take over manifests when a worker has stored other ones, or may have while we were not listening."""
        while await self._news.wait():
            self._news.clear()
            try:
                await self._catalog.load()
                if self._catalog.is_empty:  # Redis came back without its data
                    await self._catalog.refresh()
            except FleetUnavailable as exc:
                log.warning("manifests_not_reloaded", error=str(exc))

    async def _close(self) -> None:
        self._is_open = False
        if self._revocations:
            await asyncio.wait(self._revocations, timeout=_REVOKE_SECONDS)
        await end(self._background)
        await self._inbox.aclose()
        self._publisher.close()
        await self._redis.aclose()


def _checked(url: str) -> str:
    try:
        return check_redis_url(url)
    except ValueError as exc:
        raise SettingsError(f"The Redis URL {exc}.") from exc


def _new_call_id() -> str:
    return str(uuid.uuid4())
