"""Holds one session with an MCP server in a task of its own: from the handshake until either side ends it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar, cast

import mcp_types as types
from anyio.abc import TaskStatus
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.session import ClientSession, IncomingMessage
from mcp.shared.dispatcher import CallOptions, OnNotify, OnNotifyIntercept, OnRequest, ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.message import SessionMessage
from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT, methods
from pydantic import TypeAdapter, ValidationError

from toolfleet_modules.hosts.mcp.transports.http_errors import is_session_lost

_log = logging.getLogger("toolfleet.host")

TASKS = "io.modelcontextprotocol/tasks"
"""The extension by which a server may go on with a call by itself."""

_CLIENT = types.Implementation(name="toolfleet", version="1")
_CLOSE_SECONDS = 15.0  # for a session to end, with its process

Result = TypeVar("Result")
Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]
OpenTransport = Callable[[], AbstractAsyncContextManager[Any]]
OnChanged = Callable[[str], None]
"""Is told the method of each notification."""


class ServerAway(Exception):
    """There is no session, and nothing was sent. The message says why; `has_answered`: whether anything came of the handshake."""

    def __init__(self, why: str, *, has_answered: bool = False) -> None:
        super().__init__(why)
        self.has_answered = has_answered


class McpSession:
    """One session. `closed` is set at its end; `in_flight` counts its requests; `is_suspect`: nobody knows whether the server still answers."""

    def __init__(self, session: ClientSession, dispatcher: "ScreeningDispatcher") -> None:
        self.session = session
        self.closed = asyncio.Event()
        self.in_flight = 0
        self.is_suspect = False
        self._dispatcher = dispatcher
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls, transport: OpenTransport, on_changed: OnChanged, *, seconds: float, is_legacy: bool = False
    ) -> "McpSession":
        """Start the server or reach it, and agree on a version within `seconds`. Raises `ServerAway`."""
        ready: asyncio.Future[McpSession] = asyncio.get_running_loop().create_future()
        stop = asyncio.Event()
        task = asyncio.ensure_future(_held(transport, on_changed, ready, stop, is_legacy=is_legacy))
        try:
            both: set[asyncio.Future[Any]] = {ready, task}
            await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                why = f"no handshake within {seconds:g} s" if not task.done() else _failure_of(task)
                raise ServerAway(why, has_answered=task.done())  # noqa: TRY301 - caught where all is undone
        except BaseException:
            stop.set()
            ready.cancel()
            await _ended(task)
            raise
        self = ready.result()
        self._stop, self._task = stop, task
        task.add_done_callback(lambda _: self.closed.set())
        return self

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return not self._dispatcher.ended.is_set() and not self._stop.is_set()

    @property
    def version(self) -> str:
        """The version of the protocol that both sides speak."""
        return self.session.protocol_version or ""

    @property
    def capabilities(self) -> types.ServerCapabilities:
        """What the server says that it has."""
        return self.session.server_capabilities or types.ServerCapabilities()

    @property
    def refused_tools(self) -> list[tuple[str, str]]:
        """The tools of the lists so far that are none, each with the reason."""
        return self._dispatcher.refused_tools

    async def request(
        self,
        request: types.ClientRequest | types.Request[Any, Any],
        adapter: TypeAdapter[Result],
        *,
        on_progress: ProgressFnT | None = None,
    ) -> Result:
        """Send a request, and return its result. Cancelled, the server is told.

        Raises `ServerAway` if nothing was sent, `MCPError`, and `ValidationError` for an answer that is none.
        """
        if not self.is_open:
            raise ServerAway("its session has ended")
        self.in_flight += 1
        try:
            # The SDK's own results are models; an adapter may read an answer as anything.
            kind = cast("TypeAdapter[Any]", adapter)
            return cast("Result", await self.session.send_request(request, kind, progress_callback=on_progress))
        except MCPError as exc:
            if is_session_lost(exc):
                self.close()
            raise
        finally:
            self.in_flight -= 1

    async def answers(self, seconds: float) -> bool:
        """Whether the server answers anything at all within `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                if self.session.initialize_result is not None:
                    await self.session.send_ping()
                else:
                    await self.session.send_discover(self.version)
        except TimeoutError:
            return False
        except MCPError as exc:
            return exc.code not in {REQUEST_TIMEOUT, CONNECTION_CLOSED}
        except ValidationError:
            pass
        return True

    def close(self) -> None:
        """Have it end: requests that it has are lost."""
        self._stop.set()

    async def aclose(self) -> None:
        """End it, and whatever the server has started."""
        self.close()
        if self._task is not None:
            await _ended(self._task)


class ScreeningDispatcher(JSONRPCDispatcher):
    """Takes tools that are none out of a server's lists, so that the others are served. `ended` is set when nothing comes any more."""

    def __init__(self, read_stream: Any, write_stream: Any) -> None:
        super().__init__(read_stream, write_stream)
        self.ended = asyncio.Event()
        self.refused_tools: list[tuple[str, str]] = []
        self.version = ""

    async def send_raw_request(
        self,
        method: str,
        params: Mapping[str, Any] | None,
        opts: CallOptions | None = None,
        *,
        _related_request_id: types.RequestId | None = None,
    ) -> dict[str, Any]:
        """As the SDK's. Raises `MCPError`."""
        raw = await super().send_raw_request(method, params, opts, _related_request_id=_related_request_id)
        if method == "tools/list" and self.version:
            self._screen(raw)
        return raw

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: TaskStatus[None] | None = None,
    ) -> None:
        """As the SDK's, until the server's end."""
        try:
            more = {} if task_status is None else {"task_status": task_status}
            await super().run(on_request, on_notify, on_notify_intercept, **more)
        finally:
            self.ended.set()

    def _screen(self, raw: dict[str, Any]) -> None:
        tools = raw.get("tools")
        if not isinstance(tools, list) or self._fault_of(raw, tools) is None:
            return
        faults = [(each, self._fault_of(raw, [each])) for each in tools]
        raw["tools"] = [each for each, fault in faults if fault is None]
        self.refused_tools += [(_name_of(each), fault) for each, fault in faults if fault is not None]

    def _fault_of(self, raw: dict[str, Any], tools: list[Any]) -> str | None:
        """What is wrong with a list of these, in a few words."""
        page = {key: value for key, value in raw.items() if key != "nextCursor"}
        try:
            methods.validate_server_result("tools/list", self.version, {**page, "tools": tools})
            types.ListToolsResult.model_validate({"tools": tools}, by_name=False)
        except ValidationError as exc:
            first = exc.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in first["loc"] if part != "tools" and not isinstance(part, int))
            return f"{first['msg']} ({place})" if place else first["msg"]
        return None


async def _held(
    transport: OpenTransport,
    on_changed: OnChanged,
    ready: "asyncio.Future[McpSession]",
    stop: asyncio.Event,
    *,
    is_legacy: bool,
) -> None:
    """Have a session until `stop` is set, or the server has ended."""

    async def notified(message: IncomingMessage) -> None:
        if not isinstance(message, Exception):
            on_changed(message.method)

    async with transport() as (read, write):
        dispatcher = ScreeningDispatcher(read, write)
        async with ClientSession(
            dispatcher=dispatcher, message_handler=notified, client_info=_CLIENT, extensions={TASKS: {}}
        ) as session:
            agreeing = asyncio.ensure_future(_agree(session, is_legacy=is_legacy))
            try:
                await _first(agreeing, stop.wait())
                if stop.is_set():
                    return
                agreeing.result()
            finally:
                agreeing.cancel()
                await asyncio.gather(agreeing, return_exceptions=True)
            dispatcher.version = session.protocol_version or ""
            if not ready.done():
                ready.set_result(McpSession(session, dispatcher))
            await _first(asyncio.ensure_future(dispatcher.ended.wait()), stop.wait())


async def _first(one: "asyncio.Future[Any]", other: Awaitable[Any]) -> None:
    """Wait for either, and leave the first alone."""
    second = asyncio.ensure_future(other)
    try:
        await asyncio.wait({one, second}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        second.cancel()


async def _agree(session: ClientSession, *, is_legacy: bool) -> None:
    """Ask the server which versions it speaks, or shake hands as older ones do."""
    if not is_legacy:
        try:
            await session.discover()
        except (MCPError, RuntimeError, ValidationError):
            pass  # it knows no such question, or has no newer version
        else:
            return
    await session.initialize()


async def _ended(task: "asyncio.Task[None]") -> None:
    """Wait for a session's end, and no longer than it can take."""
    await asyncio.wait({task}, timeout=_CLOSE_SECONDS)
    if not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=_CLOSE_SECONDS)
    if task.done() and not task.cancelled() and (error := task.exception()) is not None:
        _log.debug("a session ended", exc_info=error)


def _failure_of(task: "asyncio.Task[None]") -> str:
    """Why there is no session, in a few words."""
    error = None if task.cancelled() else task.exception()
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    match error:
        case None:
            return "it ended in the handshake"
        case MCPError(code=types.CONNECTION_CLOSED):
            return "it ended in the handshake"
        case MCPError() | RuntimeError() | OSError():
            return f"{getattr(error, 'message', None) or error}"[:500]
        case ValidationError():
            return "its answer to the handshake is none of the protocol"
        case _:
            return f"{type(error).__name__}: {error}"[:500]


def _name_of(tool: object) -> str:
    name = tool.get("name") if isinstance(tool, dict) else None
    return name if isinstance(name, str) and name else "(a tool without a name)"
