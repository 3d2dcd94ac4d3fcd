"""Holds one session with an MCP server in a task of its own, from the handshake until either side ends it, or says why there is none.

What the server says is screened first: null counts as absent, and tools that are none are taken out of its lists, so that
the others are served.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

import mcp_types as types
from anyio.abc import TaskStatus
from mcp.client.session import ClientSession, IncomingMessage
from mcp.shared.dispatcher import CallOptions, OnNotify, OnNotifyIntercept, OnRequest, ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp_types import methods
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from toolfleet_modules.hosts.mcp.exchanges import Lost, Malformed, NotTaken, Refused, Unanswered
from toolfleet_modules.hosts.mcp.questions import ASKED, TAKES_INPUT, Turns, asking
from toolfleet_modules.hosts.mcp.transport import CallListener, MessageStreams, OnProgress
from toolfleet_registry.contracts.call_context import LogLevel, LogMessage, LogSink, is_heard, log_message_in
from toolfleet_registry.contracts.inputs import METHODS
from toolfleet_registry.functions.failures import ToolError
from toolfleet_registry.functions.passed_methods import APPS

_log = logging.getLogger("toolfleet.host")

_LEVEL_SECONDS = 5.0  # for an older server to take a log level

OnStray = Callable[[LogMessage], object]
"""Takes what a server logs of no call that anybody knows."""

# What comes on the stream of a request is handled in the request's context, through all of the SDK; other messages are not.
_hears: ContextVar[LogSink | None] = ContextVar("toolfleet_mcp_log", default=None)

_NOBODY = LogSink("emergency", lambda _: None)

_NEWER = ("resultType", "inputRequests", "requestState")  # of an answer: means nothing where an older version is spoken
_CLOSE_SECONDS = 15.0  # for a session to end, with its process
_PING_SECONDS = 10.0  # for a server to answer that may have lost the session
_ANY_ANSWER = TypeAdapter(dict[str, Any])

_NOTHING: Mapping[str, Any] = MappingProxyType({})

OpenTransport = Callable[[], AbstractAsyncContextManager[MessageStreams]]

OnChanged = Callable[[types.ServerNotification], None]
"""Takes each notification."""

_TASKS = "io.modelcontextprotocol/tasks"
"""The extension by which a server may go on with a call by itself."""

CLIENT = types.Implementation(name="toolfleet", version="1")
"""Who asks."""

_EXTENSIONS: dict[str, dict[str, Any]] = {_TASKS: {}, APPS: {"mimeTypes": ["text/html;profile=mcp-app"]}}
"""The extensions that the client understands. Clients of a gateway show apps; a server offers none to a client that does not say so."""

RAW = "toolfleet/raw"
"""Stands in the answer to a call for what its server has answered, which the SDK would take apart by its models."""

_KEPT_MEMBERS = frozenset({"inputSchema", "outputSchema", "requestedSchema", "structuredContent", "_meta"})
"""Members whose form is the server's own."""


class ServerAway(Exception):
    """There is no session, and nothing was sent. The message says why.

    `has_answered`: whether there was any answer in the handshake. `is_refused`: there will be none until a person acts.
    """

    def __init__(self, why: str, *, has_answered: bool = False, is_refused: bool = False) -> None:
        super().__init__(why)
        self.has_answered, self.is_refused = has_answered, is_refused

    @classmethod
    def after(cls, task: "asyncio.Task[None]", *, seconds: float) -> "ServerAway":
        """Return the error of a task that has made no session in so many seconds."""
        if not task.done():
            return cls(f"no handshake within {seconds:g} s")
        error = None if task.cancelled() else task.exception()
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        return cls(_worded(error), has_answered=True, is_refused=isinstance(error, Refused))


def refused_call(why: str) -> ToolError:
    """Return the error of a call for which there will be no session."""
    return ToolError(f"The server cannot be used: {why}.", effect_state="none")


def _worded(error: BaseException | None) -> str:
    match error:
        case None | Lost():
            return "it ended in the handshake; its host's log says more"
        case MCPError() | RuntimeError() | OSError():
            return f"{getattr(error, 'message', None) or error}"
        case ValidationError():
            return "its answer to the handshake is none of the protocol"
        case _:
            return f"{type(error).__name__}: {error}"


class SessionLog:
    """The log of one session. `on_stray` takes messages that came on no stream of a call's."""

    def __init__(self, on_stray: OnStray) -> None:
        self._on_stray = on_stray
        self._least: LogLevel | None = None
        self._setting = asyncio.Lock()

    async def take(self, params: types.LoggingMessageNotificationParams) -> None:
        """Take a message that the SDK has read."""
        sink, message = _hears.get(), log_message_in(params.model_dump(mode="json", by_alias=True))
        if message is not None:
            (self._on_stray if sink is None else sink.pass_on)(message)

    @staticmethod
    @contextlib.contextmanager
    def heard_by(log: LogSink | None) -> Generator[None]:
        """Send messages on the streams of requests that are sent meanwhile to `log`; `None` drops them."""
        hearing = _hears.set(log or _NOBODY)
        try:
            yield
        finally:
            _hears.reset(hearing)

    async def set_level(self, least: LogLevel, ask: Callable[[types.SetLevelRequest], Awaitable[Any]]) -> None:
        """Have the server log messages of level `least` and above, unless it does so already.

        A server that refuses this, or is silent for a while, is not asked again. Raises the other errors of `ask`.
        """
        async with self._setting:
            if self._least is not None and is_heard(least, self._least):
                return
            self._least = least
            try:
                async with asyncio.timeout(_LEVEL_SECONDS):
                    await ask(types.SetLevelRequest(params=types.SetLevelRequestParams(level=least)))
            except (MCPError, TimeoutError, ValidationError) as exc:
                _log.warning("A server does not set its log level: %s", type(exc).__name__)


class ScreeningDispatcher(JSONRPCDispatcher):
    """Takes tools that are none out of a server's lists, so that the others are served. `ended` is set when nothing comes any more; `asking` answers what the server asks."""

    def __init__(self, streams: MessageStreams) -> None:
        super().__init__(streams.incoming, streams.outgoing)
        self._requests, self._numbers = streams.requests, itertools.count(1)
        self.ended = asyncio.Event()
        self.refused_tools: list[tuple[str, str]] = []
        self.version = ""
        self.asking: Turns | None = None

    async def send_raw_request(
        self,
        method: str,
        params: Mapping[str, Any] | None,
        opts: CallOptions | None = None,
        *,
        _related_request_id: types.RequestId | None = None,
    ) -> dict[str, Any]:
        """Send a request. Raises `MCPError` for the server's errors only, and `Unanswered` for everything else."""
        if method == "tools/call" and params is not None:
            params = _declared(params)
        options: CallOptions = {"request_id": next(self._numbers), **(opts or {})}
        with self._requests.begun(options["request_id"]) as request:
            try:
                raw = await super().send_raw_request(method, params, options, _related_request_id=_related_request_id)
            except MCPError as exc:
                error = request.error(exc)
                self._requests.is_doubtful |= isinstance(error, Lost)
                raise error from None
        if method == "tools/call":
            return {"content": [], "resultType": "complete", RAW: raw}
        raw = dict(_without_nulls(raw))
        if self.version in MODERN_PROTOCOL_VERSIONS:
            raw.setdefault("resultType", "complete")  # as the protocol has clients assume; the SDK's models do not
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
        """Run the SDK's dispatcher until the server's end."""

        async def answered(context: Any, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
            if self.asking is not None and method in METHODS:
                return await self.asking.answer(method, params or {})
            return await on_request(context, method, params)

        try:
            more = {} if task_status is None else {"task_status": task_status}
            await super().run(answered, on_notify, on_notify_intercept, **more)
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
        """Return what is wrong with a list of these, in a few words."""
        page = {key: value for key, value in raw.items() if key != "nextCursor"}
        try:
            methods.validate_server_result("tools/list", self.version, {**page, "tools": tools})
            types.ListToolsResult.model_validate({"tools": tools}, by_name=False)
        except ValidationError as exc:
            first = exc.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in first["loc"] if part != "tools" and not isinstance(part, int))
            return f"{first['msg']} ({place})" if place else first["msg"]
        return None


def _without_nulls(value: Any) -> Any:
    """Return a message of the protocol in which null counts as absent, as many servers write what they do not say."""
    if isinstance(value, dict):
        return {
            name: member if name in _KEPT_MEMBERS else _without_nulls(member)
            for name, member in value.items()
            if member is not None
        }
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def _declared(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a call's parameters, by which its client declares that it can be asked where its caller can."""
    meta = params.get("_meta") or {}
    if TAKES_INPUT not in meta:
        return params
    return {**params, "_meta": asking({key: value for key, value in meta.items() if key != TAKES_INPUT})}


def _name_of(tool: object) -> str:
    name = tool.get("name") if isinstance(tool, dict) else None
    return name if isinstance(name, str) and name else "(a tool without a name)"


class McpSession:
    """A session with a server. `over` is set once it takes no more calls, `closed` at its end. `is_suspect`: the server may not answer any more.

    `has_listed`: its tools were listed in it, which the SDK must see before it sends an argument as a header.
    `turns`: what its calls take, where an older server may ask.
    """

    def __init__(
        self, session: ClientSession, dispatcher: ScreeningDispatcher, streams: MessageStreams, log: SessionLog
    ) -> None:
        self.session = session
        self.turns = dispatcher.asking
        self.closed, self.over = asyncio.Event(), asyncio.Event()
        self.is_suspect = self.is_retired = False
        self.has_listed = False
        self._dispatcher, self._lane, self._log = dispatcher, streams.calls, log
        self._standalone, self._requests = streams.standalone, streams.requests
        self._requests.is_doubtful, self._requests.on_lost = False, self.retire
        self._running = 0
        self._checking = asyncio.Lock()
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        transport: OpenTransport,
        on_changed: OnChanged,
        on_stray: OnStray,
        *,
        seconds: float,
        is_legacy: bool = False,
        may_ask: bool = False,
    ) -> "McpSession":
        """Start the server or reach it, and agree on a version within `seconds`. Raises `ServerAway`.

        `may_ask`: an older server is told that it may ask in the middle of a call.
        """
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[McpSession] = loop.create_future()
        stop, until = asyncio.Event(), loop.time() + seconds
        client = _Client(on_changed, SessionLog(on_stray), may_ask)
        task = asyncio.ensure_future(_held(transport, client, ready, stop, is_legacy=is_legacy))
        try:
            both: set[asyncio.Future[Any]] = {ready, task}
            await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                raise ServerAway.after(task, seconds=seconds)  # noqa: TRY301 - caught where all is undone
            self = ready.result()
            await self._hear(until - loop.time())
        except BaseException:
            stop.set()
            ready.cancel()
            await _ended(task)
            raise
        self._stop, self._task = stop, task
        task.add_done_callback(self._note_end)
        return self

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return not self._dispatcher.ended.is_set() and not self._stop.is_set()

    @property
    def is_usable(self) -> bool:
        """Whether a call can be sent in it."""
        return self.is_open and not self.is_suspect and not self.over.is_set()

    @property
    def version(self) -> str:
        """The version of the protocol that both sides speak."""
        return self.session.protocol_version or ""

    @property
    def capabilities(self) -> types.ServerCapabilities:
        """The server's declared capabilities."""
        return self.session.server_capabilities or types.ServerCapabilities()

    @property
    def refused_tools(self) -> list[tuple[str, str]]:
        """The tools of the lists so far that are none, each with the reason."""
        return self._dispatcher.refused_tools

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        listener: CallListener,
        *,
        takes_input: bool = False,
        answers: Mapping[str, Any] = _NOTHING,
    ) -> dict[str, Any]:
        """Call a tool once, and return the server's answer as it is, task or not. Cancelled, the server is told.

        `takes_input`: a server of a newer version may ask something in its place; `answers`: what it is answered. Raises `ServerAway` if nothing was sent, `MCPError`, and `ValidationError` for an answer that is none.
        """
        log = listener.log
        if self._lane is None:
            own = {**({TAKES_INPUT: True} if takes_input else {}), **self._meta_of(log)}
            params = {"name": tool, "arguments": dict(arguments), **answers, **({"_meta": own} if own else {})}
            request = types.Request[Any, Any](method="tools/call", params=params)
            with self._log.heard_by(log):
                answer = (await self.request(request, on_progress=_awaitable(listener.on_progress)))[RAW]
        else:
            meta = None
            if takes_input or log is not None:
                meta = {**(asking(self._lane.meta) if takes_input else self._lane.meta), **self._meta_of(log)}
            with self._counted():
                answer = await self._lane.call(tool, arguments, listener, more=answers, meta=meta)
        if self.session.discover_result is None:
            for name in _NEWER:
                answer.pop(name, None)
        return dict(answer)

    async def set_log_level(self, least: LogLevel) -> None:
        """Have an older server log messages of level `least` and above; newer ones are told with each call.

        Raises `ServerAway`.
        """
        if self.session.initialize_result is not None and self.capabilities.logging is not None:
            await self._log.set_level(least, self.request)

    async def request(
        self, request: types.ClientRequest | types.Request[Any, Any], *, on_progress: ProgressFnT | None = None
    ) -> dict[str, Any]:
        """Send a request by the SDK, and return its result as it is. Cancelled, the server is told.

        Raises `ServerAway` if nothing was sent, `MCPError`, and `ValidationError` for an answer that is none.
        """
        # The SDK's own results are models; an adapter may read an answer as anything.
        kind = cast("TypeAdapter[Any]", _ANY_ANSWER)
        with self._counted(), nullcontext() if self._lane is None else self._lane.beside():
            answer = await self.session.send_request(request, kind, progress_callback=on_progress)
        return cast("dict[str, Any]", answer)

    async def answers(self, seconds: float) -> bool:
        """Return whether the server answers anything at all within `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                if self.session.initialize_result is not None:
                    await self.session.send_ping()
                else:
                    await self.session.send_discover(self.version)
        except Malformed:
            return self._lane is not None  # over HTTP it may be the answer to any user
        except (Unanswered, TimeoutError) as exc:
            return isinstance(exc, NotTaken) and exc.is_there
        except MCPError as exc:
            return exc.code == types.METHOD_NOT_FOUND or not self._requests.is_doubtful
        except ValidationError:
            pass
        return True

    async def is_well(self) -> bool:
        """Return whether a call can be sent in it.

        A server that may have lost the session is asked first; without an answer it is unusable.
        """
        if self._requests.is_doubtful and self.is_usable:
            async with self._checking:
                if self._requests.is_doubtful and self.is_usable:
                    self._requests.is_doubtful = False
                    try:
                        if not await self.answers(_PING_SECONDS):
                            self.retire()
                    except BaseException:  # its call was cancelled: the next one checks again
                        self._requests.is_doubtful = True
                        raise
                    self._requests.is_doubtful = False
        return self.is_usable

    def retire(self) -> None:
        """Have it take no more calls, and end once those that run have ended."""
        self.is_retired = True
        self.over.set()
        if not self._running:
            self.close()

    def close(self) -> None:
        """Have it end: requests that it has are lost."""
        self._stop.set()

    async def aclose(self) -> None:
        """End it, and all processes that the server has started."""
        self.close()
        if self._task is not None:
            await _ended(self._task)

    def _note_end(self, task: "asyncio.Task[None]") -> None:
        _log_end(task)
        self.closed.set()
        self.over.set()

    def _meta_of(self, log: LogSink | None) -> dict[str, Any]:
        """Return the metadata for a newer server that is to log a call."""
        if log is None or self.session.discover_result is None:
            return {}
        return {types.LOG_LEVEL_META_KEY: log.least}

    async def _hear(self, seconds: float) -> None:
        """Wait, so long at most, until an older server is heard that speaks by itself."""
        if self._standalone is not None and self.session.discover_result is None:
            await self._standalone.answered(seconds)

    @contextmanager
    def _counted(self) -> Generator[None]:
        """Have it last meanwhile. Raises `ServerAway` if it has ended."""
        if not self.is_open or self.over.is_set():
            raise ServerAway("its session has ended")
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            if self.over.is_set() and not self._running:
                self.close()


async def _held(
    transport: OpenTransport,
    client: "_Client",
    ready: "asyncio.Future[McpSession]",
    stop: asyncio.Event,
    *,
    is_legacy: bool,
) -> None:
    """Have a session until `stop` is set, or the server has ended."""
    async with transport() as streams:
        dispatcher = ScreeningDispatcher(streams)
        async with client.session(dispatcher) as session:
            agreeing = asyncio.ensure_future(agree(session, is_legacy=is_legacy))
            try:
                await _first(agreeing, stop.wait())
                if stop.is_set():
                    return
                agreeing.result()
            finally:
                agreeing.cancel()
                await asyncio.gather(agreeing, return_exceptions=True)
            dispatcher.version = session.protocol_version or ""
            if client.may_ask and session.discover_result is None:  # newer versions ask by their answers
                dispatcher.asking = Turns()
            lane = streams.calls
            try:
                if lane is not None:
                    lane.meta, lane.version = _meta_of(session), session.protocol_version
                if not ready.done():
                    ready.set_result(McpSession(session, dispatcher, streams, client.log))
                await _first(asyncio.ensure_future(dispatcher.ended.wait()), stop.wait())
            finally:
                if lane is not None:
                    lane.end()


@dataclass(frozen=True, slots=True)
class _Client:
    """The client side of a session: handles the server's notifications and questions."""

    on_changed: OnChanged
    log: SessionLog
    may_ask: bool

    def session(self, dispatcher: ScreeningDispatcher) -> ClientSession:
        async def notified(message: IncomingMessage) -> None:
            if not isinstance(message, Exception):
                self.on_changed(message)

        return ClientSession(
            dispatcher=dispatcher,
            message_handler=notified,
            logging_callback=self.log.take,
            client_info=CLIENT,
            extensions=_EXTENSIONS,
            **(ASKED if self.may_ask else {}),
        )


async def _first(one: "asyncio.Future[Any]", other: Awaitable[Any]) -> None:
    """Wait for either, and leave the first alone."""
    second = asyncio.ensure_future(other)
    try:
        await asyncio.wait({one, second}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        second.cancel()


def _awaitable(on_progress: OnProgress) -> ProgressFnT:
    async def report(progress: float, total: float | None, message: str | None) -> None:
        on_progress(progress, total, message)

    return report


async def _ended(task: "asyncio.Task[None]") -> None:
    """Wait for a session's end, and no longer than it can take."""
    await asyncio.wait({task}, timeout=_CLOSE_SECONDS)
    if not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=_CLOSE_SECONDS)
    if task.done():
        _log_end(task)


def _log_end(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.debug("a session ended", exc_info=error)


async def agree(session: ClientSession, *, is_legacy: bool) -> None:
    """Ask the server which versions it speaks, or shake hands as older ones do."""
    if not is_legacy:
        try:
            await session.discover()
        except (MCPError, RuntimeError, ValidationError):
            pass  # it knows no such question, or has no newer version
        else:
            return
    await session.initialize()


def _meta_of(session: ClientSession) -> dict[str, Any]:
    """Return the metadata of each request: newer versions of the protocol have no handshake that both sides remember."""
    if session.discover_result is None:
        return {}
    capabilities = types.ClientCapabilities(extensions=_EXTENSIONS)
    return {
        types.PROTOCOL_VERSION_META_KEY: session.protocol_version,
        types.CLIENT_INFO_META_KEY: CLIENT.model_dump(by_alias=True, mode="json", exclude_none=True),
        types.CLIENT_CAPABILITIES_META_KEY: capabilities.model_dump(by_alias=True, mode="json", exclude_none=True),
    }
