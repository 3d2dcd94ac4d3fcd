"""Serves one request of an older MCP client by the SDK's own transport, with what its session knows."""

import asyncio
import functools
from typing import Any

from mcp.server.connection import Connection
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.runner import serve_connection
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.transport_context import TransportContext
from mcp_types.version import LATEST_HANDSHAKE_VERSION
from starlette.types import Message, Receive, Scope, Send

from toolfleet_gateway.http.streams import RETRY_MS
from toolfleet_gateway.mcp.old_era.client_questions import ClientQuestions
from toolfleet_gateway.mcp.old_era.client_sessions import ClientSession
from toolfleet_gateway.mcp.view import ASK, END
from toolfleet_registry.system.loggers import get_logger

log = get_logger(__name__)

_PACED_SINCE = "2025-11-25"


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
    """Whether a client reads in its streams when to come again: before 2025-11-25 none was told."""
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
