"""Serves MCP clients of 2025-11-25 and before: sessions, requests, questions in the middle of a call, and notices of changes.

Redis keeps their sessions, what they watch, and what they are asked, so that every gateway can go on with a session.
"""

import asyncio
import contextlib
import functools
import json
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import mcp_types as types
from mcp.server.connection import Connection as ClientConnection
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.runner import serve_connection
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.shared._stream_protocols import WriteStream
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from mcp.shared.transport_context import TransportContext
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION
from redis.asyncio import Redis
from redis.exceptions import RedisError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from toolfleet_gateway.calls import owner_of
from toolfleet_gateway.http.routes import ClientGone, read_bytes
from toolfleet_gateway.http.streams import RETRY_MS, EventStream, OpenStreams, ServerSentEvent
from toolfleet_gateway.mcp.calls import AbandonedCalls
from toolfleet_gateway.mcp.client_request import Context, ViewOf, again, needing_redis
from toolfleet_gateway.mcp.subscriptions import (
    LISTS,
    ChangeQueue,
    ResourceWatching,
    Subscriptions,
    ViewChange,
    check_uri,
    notification_of,
    wanted_of,
)
from toolfleet_gateway.mcp.view import ASK, BEGAN, END, IS_CANCELLED, KEEP_LOG_LEVEL, LOG_LEVEL, SESSION, McpView
from toolfleet_registry.contracts.call_context import LogLevel
from toolfleet_registry.contracts.inputs import InputRequest
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.functions.passed_methods import MOST_WATCHED
from toolfleet_registry.redis.keys import GatewayKeys
from toolfleet_registry.redis.servers import reaching_redis
from toolfleet_registry.system import machine_clock, randomness
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.watching import RENEW_SECONDS
from toolfleet_tasks.aio import end

log = get_logger(__name__)

_FACTS = 4  # of a session, behind its holder: what a later gateway has put behind them is passed over
_MOST_SESSIONS = 1_000  # of one key or subject: a service with one key opens a session for each of its users
_KEPT_FRACTION = 0.9  # of them stay when there are more: not every opening looks at all of them
_COUNTED_SECONDS = 7 * 86_400.0  # after the last session was opened: some may live longer than that one
_NAMES = ("name", "title", "version")  # of `clientInfo`: the rest names nothing
_LONGEST_NAME = 256  # characters
_MOST_CAPABILITIES = 8_192  # characters, as JSON
_ASKED = ("elicitation", "roots", "sampling")  # capabilities that decide what a client is asked

_LONGEST_SECONDS = 600.0  # for a person to answer; the call's deadline may come before
_WAIT_SECONDS = 1.0  # less than what an answer of Redis may take
_KEPT_SECONDS = 60  # of an answer that was not fetched yet

_SESSION_HEADER: Final = "mcp-session-id"

_NO_SESSION = "Session not found"
_LONGEST_SESSION_ID = 256  # characters of a session's id

_PACED_SINCE = "2025-11-25"

_CHECK_SECONDS = 5.0  # between two looks whether the session lasts, and this is its stream
_AWAY_SECONDS = 1.0  # before a Redis is asked again that does not answer


@dataclass(frozen=True, slots=True)
class ClientSession:
    """A client's statements at the opening of its session, and the log messages it wants since."""

    id: str
    protocol_version: str
    client_info: Any
    capabilities: Any
    log_level: LogLevel | None = None


class ClientSessions:
    """The sessions. A session is valid only for the user who opened it, at the endpoint where it was opened."""

    def __init__(self, redis: Redis, keys: GatewayKeys, *, seconds: float) -> None:
        self._redis = redis
        self._keys = keys
        self._ms = round(seconds * 1000)

    async def open(self, view: McpView, protocol_version: str, client_info: Any, capabilities: Any) -> ClientSession:
        """Start a session, and store its client's name and capabilities. Raises `FleetUnavailable`.

        If a key has too many sessions, those that were silent for the longest time end: their clients open others.
        """
        facts = (_cut_info(client_info), _cut_capabilities(capabilities))
        session = ClientSession(secrets.token_hex(16), protocol_version, *facts)
        await self._keep(session, view)
        await self._count(session, self._keys.mcp_sessions(view.who.name))
        return session

    async def keep_log_level(self, session: ClientSession, view: McpView, level: LogLevel) -> None:
        """Remember which log messages the session's client wants from its next request on. Raises `FleetUnavailable`."""
        await self._keep(replace(session, log_level=level), view, is_known=True)

    async def find(self, session_id: str, view: McpView) -> ClientSession | None:
        """Return the session, and extend it; `None` for one that has ended, or is another user's.

        Raises `FleetUnavailable`.
        """
        async with reaching_redis():
            text = await self._redis.getex(self._keys.mcp_session(session_id), px=self._ms)
        if text is None:
            return None
        holder, *facts = json.loads(text)
        return ClientSession(session_id, *facts[:_FACTS]) if holder == _holder(view) else None

    async def note_call(self, session: ClientSession, request_id: str | int, call_id: str) -> None:
        """Remember which call a request has become, so that its client can cancel it at any gateway. This needs Redis.

        No call: its client has taken it back, and wants no answer.
        """
        with contextlib.suppress(RedisError, OSError):
            await self._redis.set(self._keys.mcp_request(session.id, request_id), call_id, px=self._ms)

    async def is_cancelled(self, session: ClientSession, request_id: Any) -> bool:
        """Return whether a request's client no longer wants an answer. Fails open: without Redis it gets one."""
        try:
            return await self.called(session, request_id) == ""
        except FleetUnavailable:
            return False

    async def called(self, session: ClientSession, request_id: str | int) -> str | None:
        """Return the call that a request has become. Raises `FleetUnavailable`."""
        async with reaching_redis():
            found = await self._redis.get(self._keys.mcp_request(session.id, request_id))
        return found.decode() if isinstance(found, bytes) else found

    async def end(self, session: ClientSession) -> None:
        """Forget a session. Raises `FleetUnavailable`."""
        async with reaching_redis():
            await self._redis.unlink(self._keys.mcp_session(session.id))

    async def _count(self, session: ClientSession, sessions: str) -> None:
        """Note a session of its key's. A process that dies within leaves some sessions too many, and the next opening ends them."""
        async with reaching_redis():
            async with self._redis.pipeline(transaction=False) as pipeline:
                pipeline.sadd(sessions, self._keys.mcp_session(session.id))
                pipeline.pexpire(sessions, max(round(_COUNTED_SECONDS * 1000), 2 * self._ms))
                pipeline.scard(sessions)
                *_, count = await pipeline.execute()
            if count > _MOST_SESSIONS:
                await self._end_oldest(sessions)

    async def _end_oldest(self, sessions: str) -> None:
        """Forget the sessions that are over, and if too many are left, those whose time ends first: they were silent the longest."""
        names: list[Any] = list(await self._redis.smembers(sessions))
        async with self._redis.pipeline(transaction=False) as pipeline:
            for name in names:
                pipeline.pttl(name)
            left = sorted(zip(await pipeline.execute(), names, strict=True))
        over = sum(ms < 0 for ms, _ in left)
        if len(left) - over > _MOST_SESSIONS:
            over = len(left) - round(_MOST_SESSIONS * _KEPT_FRACTION)
        if ended := [name for _, name in left[:over]]:
            await self._redis.unlink(*ended)
            await self._redis.srem(sessions, *ended)

    async def _keep(self, session: ClientSession, view: McpView, *, is_known: bool = False) -> None:
        """Write it down; one that is known only if it has not ended meanwhile."""
        facts = [_holder(view), session.protocol_version, session.client_info, session.capabilities, session.log_level]
        async with reaching_redis():
            await self._redis.set(self._keys.mcp_session(session.id), json.dumps(facts), px=self._ms, xx=is_known)


def _holder(view: McpView) -> str:
    return f"{view.who.name} of {view.who.caller.user_id} at {view.module or ''}"


def _cut_info(client_info: Any) -> dict[str, str] | None:
    """Return what names a client, each text as long as a name is."""
    if not isinstance(client_info, dict):
        return None
    return {name: said[:_LONGEST_NAME] for name in _NAMES if isinstance(said := client_info.get(name), str)}


def _cut_capabilities(capabilities: Any) -> Any:
    """Return what a client can do; if that is too long, only whether it can be asked, without details."""
    if not isinstance(capabilities, dict) or len(json.dumps(capabilities)) <= _MOST_CAPABILITIES:
        return capabilities if isinstance(capabilities, dict) else None
    return {name: {} for name in _ASKED if isinstance(capabilities.get(name), dict)}


class SessionWatches:
    """The watches of one fleet's sessions, for any gateway.

    Raises `FleetUnavailable`. All of it expires with its session.
    """

    def __init__(self, redis: Redis, keys: GatewayKeys, *, seconds: float) -> None:
        self._redis = redis
        self._keys = keys
        self._ms = round(seconds * 1000)

    async def add(self, session: ClientSession, uri: str) -> bool:
        """Have the session told of a resource; false if it watches too many."""
        key = self._keys.mcp_session_watches(session.id)
        async with reaching_redis(), self._redis.pipeline() as pipeline:
            pipeline.sadd(key, uri)
            pipeline.scard(key)
            pipeline.pexpire(key, self._ms)
            added, count, _ = await pipeline.execute()
        if not added or count <= MOST_WATCHED:
            return True
        await self.remove(session, uri)
        return False

    async def remove(self, session: ClientSession, uri: str) -> None:
        """Have it told no more."""
        async with reaching_redis():
            await self._redis.srem(self._keys.mcp_session_watches(session.id), uri)

    async def has(self, session: ClientSession, uri: str) -> bool:
        """Return whether the session watches a resource."""
        async with reaching_redis():
            return bool(await self._redis.sismember(self._keys.mcp_session_watches(session.id), uri))

    async def of(self, session: ClientSession) -> list[str]:
        """Return the resources that the session watches."""
        async with reaching_redis():
            found: set[Any] = await self._redis.smembers(self._keys.mcp_session_watches(session.id))
        return sorted(uri.decode("utf-8", "replace") if isinstance(uri, bytes) else uri for uri in found)

    async def take_stream(self, session: ClientSession) -> str:
        """Make a stream the one that is told; returns its name. One that was there before ends: its client has come again."""
        name = randomness.uuid4().hex
        async with reaching_redis():
            await self._redis.set(self._keys.mcp_session_stream(session.id), name, px=self._ms)
        return name

    async def has_stream(self, session: ClientSession, name: str) -> bool:
        """Return whether that is still the one. It is extended, with the session's watches."""
        async with reaching_redis(), self._redis.pipeline(transaction=False) as pipeline:
            pipeline.getex(self._keys.mcp_session_stream(session.id), px=self._ms)
            pipeline.pexpire(self._keys.mcp_session_watches(session.id), self._ms)
            found: Any = (await pipeline.execute())[0]
        return (found.decode() if isinstance(found, bytes) else found) == name

    async def forget(self, session: ClientSession) -> None:
        """Forget what there is of a session that has ended."""
        async with reaching_redis():
            names = self._keys.mcp_session_watches(session.id), self._keys.mcp_session_stream(session.id)
            await self._redis.unlink(*names)


class ClientQuestions:
    """The questions of one fleet. An answer needs the question's id, which is secret, and the session."""

    def __init__(self, redis: Redis, keys: GatewayKeys) -> None:
        self._redis = redis
        self._keys = keys

    async def ask(
        self,
        session: ClientSession,
        writes: WriteStream[SessionMessage],
        related: str | int,
        request: InputRequest,
    ) -> dict[str, Any]:
        """Ask the client on the stream of its request `related`, and return the answer.

        Raises `MCPError`, that of the client or that it has said nothing, and `FleetUnavailable`.
        """
        number = secrets.token_hex(16)
        asked = types.JSONRPCRequest(jsonrpc="2.0", id=number, method=request.method, params=request.params)
        await writes.send(SessionMessage(asked, metadata=ServerMessageMetadata(related_request_id=related)))
        message = await self._answer(self._keys.mcp_question(session.id, number))
        if message is None:
            raise MCPError(types.INTERNAL_ERROR, f"The client did not answer {request.method}.")
        error = message.get("error")
        if isinstance(error, dict):
            raise MCPError(types.INTERNAL_ERROR, f"The client refused {request.method}: {error.get('message')}"[:1000])
        result = message.get("result")
        return result if isinstance(result, dict) else {}

    async def take(self, session: ClientSession, message: Mapping[str, Any]) -> None:
        """Store a client's answer for the asking process. Raises `FleetUnavailable`."""
        name = self._keys.mcp_question(session.id, str(message.get("id")))
        async with reaching_redis(), self._redis.pipeline() as pipeline:
            pipeline.rpush(name, json.dumps(message))
            pipeline.expire(name, _KEPT_SECONDS)
            await pipeline.execute()

    async def _answer(self, name: str) -> Mapping[str, Any] | None:
        give_up_at = machine_clock.monotonic() + _LONGEST_SECONDS
        while machine_clock.monotonic() < give_up_at:
            async with reaching_redis():
                found = await self._redis.blpop([name], timeout=_WAIT_SECONDS)
            if found is not None:
                answer = json.loads(found[1])
                return answer if isinstance(answer, dict) else {}
        return None


def is_answer(message: Mapping[str, Any]) -> bool:
    """Return whether a message is a client's answer."""
    return "method" not in message and isinstance(message.get("id"), str) and bool({"result", "error"} & message.keys())


class SessionStreams:
    """The streams of one gateway. A session has one stream: a second one replaces the first, at any gateway."""

    def __init__(
        self,
        sessions: ClientSessions,
        watches: SessionWatches,
        subscriptions: Subscriptions,
    ) -> None:
        self._sessions = sessions
        self._watches = watches
        self._subscriptions = subscriptions

    async def events(self, view: McpView, session: ClientSession) -> AsyncGenerator[ServerSentEvent]:
        """Yield the notifications, until the session ends, or has another stream."""
        name = await self._watches.take_stream(session)
        async with self._subscriptions.following(view) as queue:
            keeping = asyncio.create_task(self._keep(view, session, name, queue), name="toolfleet-mcp-session")
            try:
                async for change in queue:
                    for note in await self._notes(view, session, name, change):
                        yield ServerSentEvent("message", note)
            finally:
                await end([keeping])

    async def forget(self, session: ClientSession) -> None:
        """Forget what a session has watched that has ended; its stream ends soon."""
        await self._watches.forget(session)

    async def _notes(self, view: McpView, session: ClientSession, name: str, change: ViewChange) -> list[str]:
        """Return the notifications of a change."""
        while True:
            try:
                if not await self._watches.has_stream(session, name):
                    return []
                uris = await self._uris(session, change)
                break
            except FleetUnavailable:
                await asyncio.sleep(_AWAY_SECONDS)
        if change.kind == "returned":
            await self._subscriptions.renew(view, uris)
        parts = wanted_of(change, LISTS, uris)
        return [_noted(notification_of(part, {})) for part in parts if await self._subscriptions.may_hear(view, part)]

    async def _uris(self, session: ClientSession, change: ViewChange) -> list[str]:
        """Return the watched resources of a session that a change may be about."""
        if change.kind == "resource":
            return [change.subject] if await self._watches.has(session, change.subject) else []
        return await self._watches.of(session) if change.kind in {"lost", "returned"} else []

    async def _keep(self, view: McpView, session: ClientSession, name: str, queue: ChangeQueue) -> None:
        """Keep the session and what it watches, and close the queue once it has ended or has another stream."""
        loop, renew_at = asyncio.get_running_loop(), 0.0
        while True:
            try:
                if await self._sessions.find(session.id, view) is None:
                    break
                if not await self._watches.has_stream(session, name):
                    break
                if loop.time() >= renew_at:
                    await self._subscriptions.renew(view, await self._watches.of(session))
                    renew_at = loop.time() + RENEW_SECONDS
            except FleetUnavailable as exc:
                log.warning("mcp_session_not_kept", error=str(exc))
            await asyncio.sleep(_CHECK_SECONDS)
        queue.close()


def _noted(notification: types.ServerNotification) -> str:
    dumped = notification.model_dump(by_alias=True, mode="json", exclude_none=True)
    return json.dumps({"jsonrpc": "2.0", **dumped})


class OldEndpoint:
    """The endpoint for clients of 2025-11-25 and before."""

    def __init__(
        self,
        server: Server[Any],
        sessions: ClientSessions,
        session_streams: SessionStreams,
        streams: OpenStreams,
        abandoned: AbandonedCalls,
        questions: ClientQuestions,
    ) -> None:
        self._abandoned = abandoned
        self._questions = questions
        self._exchange = _Exchange(server, questions)
        self._sessions = sessions
        self._session_streams = session_streams
        self._streams = streams

    async def serve(self, view: McpView, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Raises `FleetUnavailable`."""
        request = Request(scope, receive)
        session_id = request.headers.get(_SESSION_HEADER)
        session = None
        if session_id is not None:
            session = await self._sessions.find(session_id, view) if len(session_id) <= _LONGEST_SESSION_ID else None
            if session is None:
                await _error(404, _NO_SESSION)(scope, receive, send)
                return
        match request.method:
            case "POST":
                await self._post(view, session, request, send)
            case "GET" if session is not None:
                stream = EventStream(view.who, self._session_streams.events(view, session), self._streams)
                await stream(scope, receive, send)
            case "DELETE" if session is not None:
                await self._sessions.end(session)
                await self._session_streams.forget(session)
                await Response(None, 204)(scope, receive, send)
            case _:
                await _error(
                    405, "POST is taken here; with a session also GET and DELETE", {"allow": "POST, GET, DELETE"}
                )(scope, receive, send)

    async def _post(self, view: McpView, session: ClientSession | None, request: Request, send: Send) -> None:
        try:
            body = await read_bytes(request.receive)
        except ClientGone:
            return
        asked = _message(body)
        opened = None
        if session is None and asked.get("method") == "initialize" and isinstance(params := asked.get("params"), dict):
            version = params.get("protocolVersion")
            spoken = version if version in HANDSHAKE_PROTOCOL_VERSIONS else LATEST_HANDSHAKE_VERSION
            opened = await self._sessions.open(view, spoken, params.get("clientInfo"), params.get("capabilities"))
        elif session is not None and is_answer(asked):
            await self._questions.take(session, asked)
            await Response(None, 202)(request.scope, request.receive, send)
            return
        elif session is not None:
            await self._heed(view, session, asked)
            request.scope[BEGAN] = self._noting(session, asked.get("id"))
            request.scope[IS_CANCELLED] = functools.partial(self._sessions.is_cancelled, session, asked.get("id"))
            request.scope[SESSION] = session
            request.scope[LOG_LEVEL] = session.log_level
            request.scope[KEEP_LOG_LEVEL] = functools.partial(self._sessions.keep_log_level, session, view)
        await self._exchange.serve(
            session or opened, request.scope, again(body, request.receive), _naming(opened, send)
        )

    async def _heed(self, view: McpView, session: ClientSession, asked: Mapping[str, Any]) -> None:
        """Take a call back that its client does not want any more."""
        params = asked.get("params")
        request_id = params.get("requestId") if isinstance(params, dict) else None
        if asked.get("method") != "notifications/cancelled" or not isinstance(request_id, str | int):
            return
        if call_id := await self._sessions.called(session, request_id):
            await self._sessions.note_call(session, request_id, "")
            self._abandoned.take_back(call_id, owner_of(view.who))

    def _noting(self, session: ClientSession, request_id: Any) -> Callable[[str], Awaitable[None]] | None:
        if not isinstance(request_id, str | int):
            return None
        return functools.partial(self._sessions.note_call, session, request_id)


def _message(body: bytes) -> Mapping[str, Any]:
    """Parse a client's message as far as possible: the SDK judges it."""
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return asked if isinstance(asked, dict) else {}


def _naming(session: ClientSession | None, send: Send) -> Send:
    """Name the session that was opened, in an answer that is none of an error."""
    if session is None:
        return send

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] < 400:  # noqa: PLR2004 - an error
            named = (_SESSION_HEADER.encode(), session.id.encode())
            message = {**message, "headers": [*message.get("headers", ()), named]}
        await send(message)

    return sending


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": types.INVALID_REQUEST, "message": message}}
    return Response(json.dumps(error), status, headers, media_type="application/json")


class _Exchange:
    """Serves requests of older clients by `server`. No process keeps state between two requests."""

    def __init__(self, server: Server[Any], questions: ClientQuestions) -> None:
        self._server = server
        self._questions = questions
        options = NotificationOptions(tools_changed=True, prompts_changed=True, resources_changed=True)
        self._options = server.create_initialization_options(options, extensions={})

    async def serve(self, session: ClientSession | None, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one POST."""
        transport = StreamableHTTPServerTransport(None)
        ready = asyncio.Event()
        running = asyncio.create_task(self._run(transport, session, ready, scope), name="toolfleet-mcp-exchange")
        try:
            await ready.wait()
            await transport.handle_request(scope, receive, _pacing(send) if _is_paced(session) else send)
        finally:
            await asyncio.shield(transport.terminate())
            running.cancel()
            await asyncio.wait({running})

    async def _run(
        self,
        transport: StreamableHTTPServerTransport,
        session: ClientSession | None,
        ready: asyncio.Event,
        scope: Scope,
    ) -> None:
        async with transport.connect() as (reads, writes):
            if session is not None:
                scope[ASK] = functools.partial(self._questions.ask, session, writes)
                scope[END] = transport.terminate
            ready.set()
            dispatcher: JSONRPCDispatcher[TransportContext] = JSONRPCDispatcher(
                reads,
                writes,
                inline_methods=frozenset({"initialize"}),
                transport_builder=lambda _: TransportContext(kind="streamable-http", can_send_request=False),
            )
            try:
                connection = _connection(session)
                await serve_connection(
                    self._server, dispatcher, connection=connection, lifespan_state={}, init_options=self._options
                )
            except Exception:  # the transport has answered; what is left is for the log
                log.exception("mcp_exchange_failed")


def _is_paced(session: ClientSession | None) -> bool:
    """Return whether a client reads in its streams when to reconnect: before 2025-11-25 none was told."""
    return session is not None and session.protocol_version >= _PACED_SINCE


def _pacing(send: Send) -> Send:
    """Say in a stream's first event when to come again.

    No event has an id: what a call has told before its client comes again is kept nowhere, so that nothing could be sent once
    more. It stands in an event that has data: clients exist that take any other for a broken one.
    """
    is_due = True

    async def sending(message: Message) -> None:
        nonlocal is_due
        body = message.get("body", b"")
        if is_due and body.startswith(b"event:"):  # neither JSON nor a heartbeat
            is_due, message = False, {**message, "body": b"retry: %d\r\n%b" % (RETRY_MS, body)}
        await send(message)

    return sending


def _connection(session: ClientSession | None) -> ClientConnection:
    if session is None:
        return ClientConnection.from_envelope(LATEST_HANDSHAKE_VERSION, None, None)
    return ClientConnection.from_envelope(session.protocol_version, session.client_info, session.capabilities)


class WatchMethods:
    """The methods of watching.

    A session's watches are in Redis: any gateway takes them, and the one with the session's stream notifies.
    """

    def __init__(self, watching: ResourceWatching, watches: SessionWatches, view_of: ViewOf) -> None:
        self._watching = watching
        self._watches = watches
        self._view_of = view_of

    def add_to(self, server: Server[Any]) -> None:
        """Have a server answer them."""
        server.add_request_handler("resources/subscribe", types.SubscribeRequestParams, self.watch)
        server.add_request_handler("resources/unsubscribe", types.UnsubscribeRequestParams, self.leave)

    async def watch(self, context: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        """Have a resource watched. Raises `MCPError`, that of the module's server or of the call."""
        session, view, uri = _session_of(context), self._view_of(context), str(params.uri)
        check_uri(uri)
        with needing_redis():
            if not await self._watches.add(session, uri):
                raise MCPError(types.INVALID_PARAMS, f"A session watches at most {MOST_WATCHED} resources.")
            try:
                await self._watching.watch(view, uri)
            except MCPError:
                await self._watches.remove(session, uri)
                raise
        return types.EmptyResult()

    async def leave(self, context: Context, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        """Tell the session no more. One that was not watched is none, either."""
        with needing_redis():
            await self._watches.remove(_session_of(context), str(params.uri))
        return types.EmptyResult()


def _session_of(context: Context) -> ClientSession:
    found = None if context.request is None else context.request.scope.get(SESSION)
    if not isinstance(found, ClientSession):
        raise MCPError(types.INVALID_REQUEST, "Resources are watched in a session: send its id.")
    return found
