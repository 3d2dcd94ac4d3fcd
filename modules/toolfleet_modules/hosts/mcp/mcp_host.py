"""Serves the tools of an MCP server as a module; changes of the server are served a moment later."""

import asyncio
import functools
import json
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import mcp_types as types
from mcp.shared.inbound import x_mcp_header_map
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from toolfleet_modules.calls.authentication import CallerCheck
from toolfleet_modules.calls.request import read_body
from toolfleet_modules.hosts.child_process import FenceMissing, remove_abandoned_soon
from toolfleet_modules.hosts.host import Host, HostOptions, Listener, load_error
from toolfleet_modules.hosts.mcp.http_transport import HttpServer, http_transport
from toolfleet_modules.hosts.mcp.mcp_session import McpSession, OnChanged, ServerAway
from toolfleet_modules.hosts.mcp.mcp_tool import HostTool, McpTool, TaskFollower
from toolfleet_modules.hosts.mcp.passed_tool import FORMS, PassedTool, answer_of, passed_methods
from toolfleet_modules.hosts.mcp.questions import HeldCalls
from toolfleet_modules.hosts.mcp.server_watch import ServerWatch, WatchPort, can_watch
from toolfleet_modules.hosts.mcp.sessions import McpSessions, SharedSession, UserSessions
from toolfleet_modules.hosts.mcp.stdio_transport import ServerLog, StdioServer, stdio_transport
from toolfleet_modules.hosts.mcp.tool_list import ListChanges, OfferedTool, ServerOffer, listed_tools, offer_of
from toolfleet_modules.hosts.mcp.transport import MessageStreams
from toolfleet_modules.hosts.secrets import Secrets
from toolfleet_modules.sdk.execute import REFUSALS, refusal
from toolfleet_registry.contracts import ModuleManifest
from toolfleet_registry.contracts.tool_definition import ToolLoadError
from toolfleet_registry.functions.failures import ModuleBusy, ToolError
from toolfleet_registry.functions.passed_methods import PASSED_METHODS, WATCH_METHOD
from toolfleet_registry.system.offload import aside

_log = logging.getLogger("toolfleet.host")

_LIST_SECONDS = 30.0  # for a server to list its tools
_LIST_WAIT_SECONDS = 1.0  # after its handshake, for a server to list its tools before the module is served
_LONGEST_REASON = 500  # characters of why there is no session

_PREFIX = "/mcp/"
_REQUEST_BYTES = 2**20
_ANSWER_SECONDS = 60.0  # for a server to answer
_BUSY_SECONDS = "1"

METHODS = PASSED_METHODS
"""The protocol's names of what may be asked."""


@dataclass(frozen=True, slots=True)
class McpOptions(HostOptions):
    """The options of an MCP server's host.

    `asks`: a server of an older version may ask the caller in the middle of a call; each user has a session then, and
    one call at a time in it. `scope`: whether callers share its session, or each user has one; of those there are at
    most `most_sessions`, and one that is unused for `idle_seconds` ends. `trusted`: its annotations determine the
    effect of repeating a call. `handshake_seconds`: for its start and its handshake. `refresh_seconds`: between two
    lists of its tools if it notifies of no changes. `stuck_seconds`: how long it may be silent after a call that did
    not come back, before it is restarted. `pin`: whether the fleet withholds changed or added tools, until an operator
    approves them.
    """

    server: StdioServer | HttpServer
    scope: Literal["shared", "caller"] = "shared"
    trusted: bool = False
    asks: bool = False
    pin: bool = False
    most_sessions: int = 16
    idle_seconds: float = 300.0
    handshake_seconds: float = 30.0
    refresh_seconds: float = 60.0
    stuck_seconds: float = 30.0


class McpHost(Host[HostTool]):
    """A module whose `app` serves a server's tools while its lifespan runs.

    `watches` tells which of the server's resources are watched, and takes their changes; without it watching is not
    possible.
    """

    assumes_once = True

    def __init__(
        self,
        options: McpOptions,
        *,
        listener: Listener | None = None,
        watches: WatchPort | None = None,
    ) -> None:
        super().__init__(options, listener=listener, lifespan=self._running)
        self.follower = TaskFollower(lambda: self.tools, most_bytes=options.result_bytes).status
        self._options = options
        self._changes = ListChanges(options.refresh_seconds)
        self._watches = watches
        self._watch = None if watches is None else ServerWatch(options.name, watches, options.secrets)
        self._offer = ServerOffer()
        self._listing: SharedSession | None = None
        self._sessions: McpSessions | None = None
        self._passing: Route | None = None
        self._is_legacy = False
        self._checks = set[asyncio.Task[None]]()
        self._held = HeldCalls() if options.asks else None

    @property
    def app(self) -> Starlette:
        """The ASGI app, made on first use: with prompts and resources, in addition to the routes of every module."""
        if self._passing is None:
            self._passing = Passthrough(self).route
            super().app.router.routes.append(self._passing)
        return super().app

    @property
    def sessions(self) -> McpSessions | None:
        """The sessions with the server, while the host runs."""
        return self._sessions

    @property
    def secrets(self) -> Secrets:
        """The values that are hidden in all output of the host."""
        return self._options.secrets

    @property
    def manifest(self) -> ModuleManifest:
        """The manifest of the served tools, with the load errors, and the rule for a changed tool."""
        on_change = "withheld" if self._options.pin else "shown"
        return super().manifest.model_copy(update={"on_change": on_change})

    @property
    def _has_users(self) -> bool:
        """Whether each user has a session."""
        return self._options.scope == "caller" or self._options.asks

    def _notice(self, said: types.ServerNotification) -> None:
        self._changes.notice(said)
        if self._watch is not None:
            self._watch.notice(said)

    async def _connect(self, on_changed: OnChanged = lambda _: None, *, may_ask: bool = False) -> McpSession:
        """Make a session, by the handshake that worked before, and if not by that, by the other. Raises `ServerAway`."""
        try:
            return await self._open(on_changed, is_legacy=self._is_legacy, may_ask=may_ask)
        except ServerAway as exc:
            if not exc.has_answered:
                raise
        # Some older servers end at a question that they do not know.
        connection = await self._open(on_changed, is_legacy=not self._is_legacy, may_ask=may_ask)
        self._is_legacy = not self._is_legacy
        return connection

    async def _open(self, on_changed: OnChanged, *, is_legacy: bool, may_ask: bool) -> McpSession:
        seconds = self._options.handshake_seconds
        log = ServerLog(self.name, self._options.secrets)
        transport = partial(self._transport, log)
        try:
            return await McpSession.open(
                transport, on_changed, log.say_message, seconds=seconds, is_legacy=is_legacy, may_ask=may_ask
            )
        except ServerAway as exc:  # its words go to logs, lists and models
            said = self._options.secrets.hide(str(exc))[:_LONGEST_REASON]
            raise ServerAway(said, has_answered=exc.has_answered, is_refused=exc.is_refused) from None

    @asynccontextmanager
    async def _transport(self, log: ServerLog) -> AsyncGenerator[MessageStreams]:
        server = self._options.server
        opened = stdio_transport(server, log) if isinstance(server, StdioServer) else http_transport(server)
        try:
            async with opened as streams:
                yield streams
        except FenceMissing as exc:
            raise RuntimeError(str(exc)) from None

    async def _serve_session(self, connection: McpSession) -> None:
        """Serve what a session has, as long as it lasts."""
        following = [] if self._watch is None else [self._watch.follow(connection)]
        await asyncio.gather(self._serve_listed(connection), *following)

    async def _serve_listed(self, connection: McpSession) -> None:
        """Serve the tools that a session lists, and later changes."""
        async with aclosing(self._changes.of(connection)) as changes:
            async for _ in changes:
                try:
                    await self._serve(await self._listed(connection))
                except TimeoutError:
                    await self._fail(f"it did not list its tools within {_LIST_SECONDS:g} s")
                except ServerAway as exc:
                    await self._fail(f"it did not list its tools: {exc}")
                except Exception as exc:  # noqa: BLE001 - after any error, the next list is still served
                    _log.error("The tools of %s are not served", self.name, exc_info=exc)
                    await self._fail(f"its tools cannot be served ({type(exc).__name__})")

    async def _listed(self, connection: McpSession) -> ServerOffer:
        """Return a session's present list. Raises `ServerAway` and `TimeoutError`."""
        async with asyncio.timeout(_LIST_SECONDS):
            listed = await listed_tools(connection)
        self._changes.set_pause(listed.ttl_seconds)
        described = partial(offer_of, self.name, listed.tools, listed.refused, is_trusted=self._options.trusted)
        offer = await aside(described, is_large=True)  # a few schemas may be as large as many
        has_watch = self._watch is not None and not self._has_users and can_watch(connection)
        return replace(offer, passed=passed_methods(connection), has_watch=has_watch)

    async def _fail(self, why: str) -> None:
        """Note that there is no session, or no list: what was served before is served on."""
        self._changes.give_up_waiting()
        message = f"Its server cannot be served: {self._options.secrets.hide(why)}."
        error = load_error(self.name, "ServerAway", message, in_effect="previous" if self.tools else "none")
        if self.set_load_errors([*(each for each in self.load_errors if each.error_type != "ServerAway"), error]):
            await self.tell()

    async def _serve(self, offer: ServerOffer) -> None:
        is_changed = self.set_load_errors(_errors_of(offer)) or offer != self._offer
        self._offer = offer
        self._changes.note_list(is_new=is_changed)
        if is_changed:
            passed = self._passed_tools(offer)
            self.tools = {
                **{name: self._tool_of(tool) for name, tool in offer.tools.items()},
                **{tool.definition.name: tool for tool in passed},
            }
            await self.tell()

    def _tool_of(self, tool: OfferedTool) -> McpTool:
        assert self._sessions is not None
        schema = tool.definition.input_schema or {}
        names = frozenset(schema.get("properties", {}))
        return McpTool(
            tool.definition,
            self._sessions,
            self._options.secrets,
            names,
            tool.original,
            self._suspect,
            self._held,
            has_header_arguments=bool(x_mcp_header_map(schema)),
        )

    def _passed_tools(self, offer: ServerOffer) -> list[PassedTool]:
        assert self._sessions is not None
        watches = {WATCH_METHOD: self._watch} if offer.has_watch and self._watch is not None else {}
        methods = {**dict.fromkeys(offer.passed), **watches}
        return [
            PassedTool.of(self.name, method, self._sessions, self._options.secrets, watch)
            for method, watch in methods.items()
        ]

    def _suspect(self, connection: McpSession) -> None:
        """Have a program restarted that no longer answers."""
        if isinstance(self._options.server, StdioServer) and not connection.is_suspect:
            connection.is_suspect = True
            task = asyncio.ensure_future(self._check(connection))
            self._checks.add(task)
            task.add_done_callback(self._checks.discard)

    async def _check(self, connection: McpSession) -> None:
        if await connection.answers(self._options.stuck_seconds):
            connection.is_suspect = False
            return
        if connection.is_open:
            _log.error("The server of %s does not answer; it is restarted.", self.name)
        connection.close()

    @asynccontextmanager
    async def _running(self) -> AsyncGenerator[None]:
        """Have sessions with the server meanwhile."""
        remove_abandoned_soon()
        options = self._options
        users: UserSessions | None = None

        async def connect() -> McpSession:
            return await self._connect(self._notice)

        self._listing = listing = SharedSession(self.name, connect, self._serve_session, self._fail)
        if self._has_users:
            connect_user = functools.partial(self._connect, may_ask=options.asks)
            users = UserSessions(connect_user, most=options.most_sessions, idle_seconds=options.idle_seconds)
        self._sessions = users or listing
        try:
            await self._changes.first(options.handshake_seconds + _LIST_WAIT_SECONDS)
            yield
        finally:
            for task in self._checks:
                task.cancel()
            await asyncio.gather(*self._checks, return_exceptions=True)
            if self._held is not None:
                await self._held.aclose()
            if users is not None:
                await users.aclose()
            await listing.aclose()
            if isinstance(options.server, HttpServer) and options.server.authorizer is not None:
                await options.server.authorizer.aclose()
            if self._watches is not None:
                await self._watches.aclose()


def _errors_of(offer: ServerOffer) -> list[ToolLoadError]:
    """Return the faults of offers that cannot be served."""
    named = ((name.encode("utf-8", "replace").decode()[:200] or "?", why) for name, why in sorted(offer.faults.items()))
    return [load_error(file, "InvalidTool", why) for file, why in named]


class PassedQuestion(BaseModel, extra="forbid"):
    """The body of `POST /mcp/{method}`: the protocol's `params`, and the user."""

    params: dict[str, Any] = {}
    user_id: str | None = None


class PassedAnswer(BaseModel):
    """The answer of `POST /mcp/{method}`: the protocol's result."""

    result: dict[str, Any]


class Passthrough:
    """The routes of one host."""

    def __init__(self, host: McpHost) -> None:
        self._host = host
        self._callers = CallerCheck(host.name, host.key)

    @property
    def route(self) -> Route:
        """`POST /mcp/{method}`."""
        return Route(f"{_PREFIX}{{method:path}}", self._answer, methods=["POST"])

    async def _answer(self, request: Request) -> Response:
        try:
            caller = self._callers.verify(request.headers)
            question = PassedQuestion.model_validate_json(await read_body(request, _REQUEST_BYTES))
            self._callers.permission(caller, sub=question.user_id or "")
            return await self._asked(request.path_params["method"], question)
        except REFUSALS as exc:
            return refusal(exc, _REQUEST_BYTES)

    async def _asked(self, method: str, question: PassedQuestion) -> Response:
        """Return the server's answer, or why there is none. Raises `ValidationError` for parameters that are none."""
        form = FORMS.get(method)
        if form is None:
            return _refusal(404, f"There is no method {method[:80]!r}; there are: {', '.join(METHODS)}.")
        kind, params = form
        request = kind(params=params.model_validate(question.params, by_name=False))
        sessions = self._host.sessions
        try:
            if sessions is None:
                return _away()
            async with asyncio.timeout(_ANSWER_SECONDS), sessions.taken(question.user_id) as connection:
                return await self._sent(connection, request)
        except (ModuleBusy, ServerAway):
            return _away()
        except ToolError as exc:
            return _refusal(403, self._host.secrets.hide(str(exc)))
        except TimeoutError:
            return _refusal(504, f"The server did not answer within {_ANSWER_SECONDS:g} s.")

    async def _sent(self, connection: McpSession, request: Any) -> Response:
        found = await answer_of(connection, request)
        if "error" in found:
            error = found["error"]
            shown = {"code": error["code"], "message": self._host.secrets.hide(error["message"])}
            return JSONResponse({"error": shown}, 502)
        result = found["result"]
        if result.get("resultType", "complete") != "complete":
            return _refusal(502, "The server asks for input, which is not possible here.")
        answer = PassedAnswer(result=result).model_dump()
        written = json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
        return Response(self._host.secrets.hide_json(written), media_type="application/json")


def _away() -> Response:
    return JSONResponse({"detail": "The server is away."}, 503, {"Retry-After": _BUSY_SECONDS})


def _refusal(status: int, detail: str) -> Response:
    return JSONResponse({"detail": detail}, status)
