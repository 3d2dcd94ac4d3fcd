"""Watches the resources of an MCP server for clients, session after session, and passes on what it tells."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import mcp_types as types
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost, listen
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import PromptsListChanged, ResourcesListChanged, ResourceUpdated, ServerEvent
from pydantic import ValidationError

from toolfleet_modules.hosts.mcp.mcp_session import McpSession, ServerAway
from toolfleet_modules.hosts.secrets import Secrets
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.functions.passed_methods import MOST_WATCHED, ServerChange, is_within
from toolfleet_registry.system import machine_clock

_log = logging.getLogger("toolfleet.host")

_UNSUBSCRIBE_SECONDS = 10.0  # for a server to answer
_REFUSED_SECONDS = 60.0  # until a resource is asked for again that was refused

_GRACE_SECONDS = 10.0  # after which what is not watched any more is given up
_CHECK_SECONDS = 1.0  # between two questions what is watched
_AWAY_SECONDS = 1.0  # before it is tried again to tell
_TOGETHER_SECONDS = 0.2  # changes of one resource within it are told as one

_LISTEN_SECONDS = 10.0  # for a server to begin a stream
_PAUSE_SECONDS = 2.0  # until a stream that ended is asked for again

Begun = asyncio.Future[types.SubscriptionFilter]

Refusals = Mapping[str, MCPError]
"""Why a server does not let resources be watched, by their addresses."""
OnChange = Callable[[ServerChange], None]

_MOST_PENDING = 2 * MOST_WATCHED  # what is watched may be others meanwhile, while no client can be told


class WatchPort(Protocol):
    """The watches of one module. Raises `FleetUnavailable` without an answer."""

    async def watched(self) -> frozenset[str]:
        """Return the addresses of resources that clients watch now, at most 1,000."""
        ...

    async def tell(self, changes: Sequence[ServerChange]) -> None:
        """Report changes to the listeners."""
        ...

    async def aclose(self) -> None:
        """Let go of connections."""
        ...


class OlderSubscription:
    """The subscriptions of one session; notifications come by themselves."""

    def __init__(self, connection: McpSession) -> None:
        self._connection = connection
        self._held = set[str]()
        self._refused = dict[str, tuple[MCPError, float]]()

    async def become(self, uris: frozenset[str], again: frozenset[str]) -> Refusals:
        """Have these resources watched, and no others; those in `again` also where the server has refused it before.

        Raises `ServerAway`.
        """
        now = machine_clock.monotonic()
        self._refused = {
            uri: (error, until)
            for uri, (error, until) in self._refused.items()
            if uri in uris and uri not in again and until > now
        }
        for uri in sorted(uris - self._held - self._refused.keys()):
            try:
                await self._asked(types.SubscribeRequest(params=types.SubscribeRequestParams(uri=uri)))
                self._held.add(uri)
            except MCPError as exc:
                self._refused[uri] = exc, machine_clock.monotonic() + _REFUSED_SECONDS
        for uri in sorted(self._held - uris):
            self._held.discard(uri)
            with contextlib.suppress(MCPError):
                await self._asked(types.UnsubscribeRequest(params=types.UnsubscribeRequestParams(uri=uri)))
        return {uri: error for uri, (error, _) in self._refused.items()}

    async def end(self) -> None:
        """Do nothing: it ends with its session."""

    async def _asked(self, request: Any) -> None:
        """Send a request. Raises `MCPError` and `ServerAway`."""
        try:
            async with asyncio.timeout(_UNSUBSCRIBE_SECONDS):
                await self._connection.request(request)
        except TimeoutError:
            raise MCPError(
                types.REQUEST_TIMEOUT, f"The server did not answer within {_UNSUBSCRIBE_SECONDS:g} s."
            ) from None
        except ValidationError:
            raise MCPError(types.INTERNAL_ERROR, "The server's answer is none of the protocol.") from None


def can_watch(connection: McpSession) -> bool:
    """Return whether a server says that its resources can be watched."""
    resources = connection.capabilities.resources
    return resources is not None and bool(resources.subscribe)


class ServerWatch:
    """The watched resources of one server, as long as its host runs.

    A change is reported once, and only if it is watched.
    """

    def __init__(self, name: str, port: WatchPort, secrets: Secrets) -> None:
        self._name, self._port, self._secrets = name, port, secrets
        self._pending = PendingChanges()
        self._watched = frozenset[str]()
        self._seen_at = dict[str, float]()
        self._asked = dict[str, list[asyncio.Future[None]]]()
        self._kicked = asyncio.Event()
        self._has_session = self._had_session = self._is_away = False

    def notice(self, said: types.ServerNotification) -> None:
        """Take a notification, as older servers send them."""
        match said:
            case types.PromptListChangedNotification():
                self._put(ServerChange("prompts"))
            case types.ResourceListChangedNotification():
                self._put(ServerChange("resources"))
            case types.ResourceUpdatedNotification():
                self._put(ServerChange("resource", str(said.params.uri)))
            case _:
                pass

    async def watch(self, uri: str) -> None:
        """Return once the server tells of a resource. Raises `MCPError` where it does not, and `ServerAway`."""
        if not self._has_session:
            raise ServerAway("it has no session")
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked.setdefault(uri, []).append(answer)
        self._kicked.set()
        await answer

    async def follow(self, connection: McpSession) -> None:
        """Watch by this session, until it ends. Raises nothing of its own."""
        has = connection.capabilities
        if has.prompts is None and has.resources is None:
            return
        is_newer = connection.session.discover_result is not None
        subscription = NewerSubscription(connection, self._put) if is_newer else OlderSubscription(connection)
        self._has_session = True
        telling = asyncio.create_task(self._tell(), name="toolfleet-mcp-changes")
        try:
            await self._keep(connection, subscription)
        except Exception as exc:  # noqa: BLE001 - a defect of ours: the server's tools are served all the same
            _log.error("The resources of %s are not watched", self._name, exc_info=exc)
        finally:
            self._has_session = False
            self._answer(self._asked, {}, is_away=True)
            self._asked = {}
            telling.cancel()
            await asyncio.gather(telling, subscription.end(), return_exceptions=True)

    async def _keep(self, connection: McpSession, subscription: "OlderSubscription | NewerSubscription") -> None:
        is_return, self._had_session = self._had_session, True
        while connection.is_open:
            self._kicked.clear()
            asked, self._asked = self._asked, {}
            self._watched = (await self._wanted(asked) if can_watch(connection) else frozenset()) | asked.keys()
            try:
                refused = await subscription.become(self._watched, frozenset(asked))
            except ServerAway:
                self._answer(asked, {}, is_away=True)
            else:
                self._answer(asked, refused, is_away=False)
                if is_return:
                    self._tell_all()
                is_return = False
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._kicked.wait(), _CHECK_SECONDS)

    def _tell_all(self) -> None:
        """Tell of all that may have changed while there was no session, once it is heard of again."""
        for change in (ServerChange("prompts"), ServerChange("resources")):
            self._put(change)
        for uri in self._watched:
            self._put(ServerChange("resource", uri))

    async def _wanted(self, asked: Iterable[str]) -> frozenset[str]:
        """Return the watched resources, including those of a moment ago: a Redis that has lost them is told again by the watchers."""
        try:
            found = await self._port.watched()
        except FleetUnavailable:
            return self._watched  # as before
        now = machine_clock.monotonic()
        self._seen_at = {uri: at for uri, at in self._seen_at.items() if now < at + _GRACE_SECONDS}
        for uri in (*found, *asked):
            self._seen_at.pop(uri, None)  # the last ones stand last
            self._seen_at[uri] = now
        for uri in list(self._seen_at)[:-MOST_WATCHED]:
            del self._seen_at[uri]
        return frozenset(self._seen_at)

    def _answer(
        self,
        asked: Mapping[str, Sequence[asyncio.Future[None]]],
        refused: Refusals,
        *,
        is_away: bool,
    ) -> None:
        for uri, answers in asked.items():
            error = ServerAway("its session has ended") if is_away else refused.get(uri)
            for answer in answers:
                if answer.done():
                    continue
                if error is None:
                    answer.set_result(None)
                else:
                    answer.set_exception(error)

    def _put(self, change: ServerChange) -> None:
        """Report a change by the watched addresses: an address below one of them may be private."""
        if change.kind != "resource":
            self._pending.put(change)
            return
        for watched in self._watched:
            if is_within(change.uri, watched):
                self._pending.put(ServerChange("resource", self._secrets.hide(watched)))

    async def _tell(self) -> None:
        while True:
            changes = await self._pending.take()
            try:
                await self._port.tell(changes)
                self._is_away = False
            except FleetUnavailable as exc:
                self._pending.put_again(changes)
                if not self._is_away:
                    _log.warning("Changes of %s are not told: %s", self._name, exc)
                self._is_away = True
                await asyncio.sleep(_AWAY_SECONDS)
            except Exception as exc:  # noqa: BLE001 - a defect of ours: later changes are told all the same
                _log.error("Changes of %s are not told", self._name, exc_info=exc)
            await asyncio.sleep(_TOGETHER_SECONDS)


class NewerSubscription:
    """The stream of one session.

    `on_change` is called with everything that may have changed when a stream has ended.
    """

    def __init__(self, connection: McpSession, on_change: OnChange) -> None:
        self._connection = connection
        self._on_change = on_change
        self._uris: frozenset[str] | None = None
        self._refused: Refusals = {}
        self._stream: asyncio.Task[None] | None = None
        self._not_before = 0.0

    async def become(self, uris: frozenset[str], again: frozenset[str]) -> Refusals:
        """Have these resources watched, and no others; those in `again` also where the server has refused it before.

        Raises `ServerAway`. The new stream begins before the old one ends: nothing is missed between.
        """
        is_gone = self._stream is None or self._stream.done()
        if self._uris == uris and not again & self._refused.keys() and not is_gone:
            return self._refused
        if is_gone and not again and machine_clock.monotonic() < self._not_before:
            return self._refused
        was_lost = is_gone and self._stream is not None
        before, begun = self._stream, asyncio.get_running_loop().create_future()
        self._stream = asyncio.create_task(self._listen(uris, begun), name="toolfleet-mcp-watch")
        self._not_before = machine_clock.monotonic() + _PAUSE_SECONDS
        self._uris = uris
        try:
            async with asyncio.timeout(_LISTEN_SECONDS):
                honored = set((await begun).resource_subscriptions or ())
            refusal = MCPError(types.INVALID_PARAMS, "The server does not let this resource be watched.")
            self._refused = dict.fromkeys(uris - honored, refusal)
        except (MCPError, TimeoutError) as exc:
            await _ended(self._stream)
            refusal = MCPError(types.REQUEST_TIMEOUT, "The server did not answer.")
            self._refused = dict.fromkeys(uris, exc if isinstance(exc, MCPError) else refusal)
        if before is not None:
            await _ended(before)
        if was_lost:
            self._tell_all(uris)
        return self._refused

    async def end(self) -> None:
        """Hear of nothing more."""
        if self._stream is not None:
            await _ended(self._stream)

    def _tell_all(self, uris: frozenset[str]) -> None:
        for change in (ServerChange("prompts"), ServerChange("resources")):
            self._on_change(change)
        for uri in uris:
            self._on_change(ServerChange("resource", uri))

    async def _listen(self, uris: frozenset[str], begun: Begun) -> None:
        has = self._connection.capabilities
        try:
            async with listen(
                self._connection.session,
                prompts_list_changed=has.prompts is not None,
                resources_list_changed=has.resources is not None,
                resource_subscriptions=sorted(uris),
            ) as stream:
                if not begun.done():
                    begun.set_result(stream.honored)
                async for event in stream:
                    self._hear(event)
        except (MCPError, SubscriptionLost, TimeoutError, RuntimeError, ListenNotSupportedError) as exc:
            if not begun.done():
                why = (
                    exc if isinstance(exc, MCPError) else MCPError(types.INTERNAL_ERROR, "The server tells of nothing.")
                )
                begun.set_exception(why)
        finally:
            begun.cancel()

    def _hear(self, event: ServerEvent) -> None:
        match event:
            case PromptsListChanged():
                self._on_change(ServerChange("prompts"))
            case ResourcesListChanged():
                self._on_change(ServerChange("resources"))
            case ResourceUpdated():
                self._on_change(ServerChange("resource", str(event.uri)))
            case _:
                pass


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


class PendingChanges:
    """The pending changes, at most twice as many as can be watched: beyond that the first are forgotten."""

    def __init__(self) -> None:
        self._waiting = dict[ServerChange, None]()
        self._there = asyncio.Event()

    def put(self, change: ServerChange) -> None:
        """Note one, unless it is there."""
        self._waiting.setdefault(change)
        if len(self._waiting) > _MOST_PENDING:
            del self._waiting[next(iter(self._waiting))]
        self._there.set()

    def put_again(self, changes: Iterable[ServerChange]) -> None:
        """Note again what could not be told."""
        for change in changes:
            self.put(change)

    async def take(self) -> tuple[ServerChange, ...]:
        """Wait for a change, and return all that there are."""
        await self._there.wait()
        self._there.clear()
        taken = tuple(self._waiting)
        self._waiting.clear()
        return taken
