"""Answers older MCP clients: opens, finds and ends their sessions, and serves their requests and their stream of changes."""

import asyncio
import functools
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import mcp_types as types
from mcp.server.connection import Connection
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.runner import serve_connection
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.transport_context import TransportContext
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from toolfleet_gateway.calls import owner_of
from toolfleet_gateway.http.streams import RETRY_MS, EventStream, OpenStreams
from toolfleet_gateway.mcp.calls.abandoned_calls import AbandonedCalls
from toolfleet_gateway.mcp.old_era.client_questions import ClientQuestions, is_answer
from toolfleet_gateway.mcp.old_era.client_sessions import ClientSession, ClientSessions
from toolfleet_gateway.mcp.old_era.session_stream import SessionStreams
from toolfleet_gateway.mcp.replay import again, whole_body
from toolfleet_gateway.mcp.view import ASK, BEGAN, END, IS_CANCELLED, KEEP_LOG_LEVEL, LOG_LEVEL, SESSION, McpView
from toolfleet_registry.system.loggers import get_logger

log = get_logger(__name__)

_SESSION_HEADER: Final = "mcp-session-id"

_NO_SESSION = "Session not found"
_LONGEST_SESSION_ID = 256  # characters of a session's id

_PACED_SINCE = "2025-11-25"


class OldEndpoint:
    """The endpoint as clients of 2025-11-25 and before see it."""

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
        self._exchange = Exchange(server, questions)
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
        body = await whole_body(request.receive)
        if body is None:
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


class Exchange:
    """Serves requests of older clients by `server`. No process keeps anything of them between two requests."""

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


def _connection(session: ClientSession | None) -> Connection:
    if session is None:
        return Connection.from_envelope(LATEST_HANDSHAKE_VERSION, None, None)
    return Connection.from_envelope(session.protocol_version, session.client_info, session.capabilities)
