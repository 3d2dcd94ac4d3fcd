"""Answers `POST /execute`: from a request to its reply, with progress on the way for those who take it.

A request says when it may last start, and the sender's time when it was sent: either clock may be wrong. The smallest
recent difference of a sender's requests to our time is that of the clocks; a larger difference is the time that a request
was under way.
"""

import asyncio
import json
import math
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from toolfleet_modules.calls.authentication import CallerCheck, CallerRefused
from toolfleet_modules.calls.idempotency import (
    IdempotentRuns,
    KeyReused,
    RunRefused,
    not_begun,
    overtaken,
)
from toolfleet_modules.calls.reply import Reply
from toolfleet_modules.calls.request import Call, HeaderRefused, TooLarge, TooSlow, note_call, note_reply
from toolfleet_modules.calls.work import RunMeans, ServedRun, ServedTool, Work, WorkLog, guard_tasks
from toolfleet_modules.sdk.module import Limits
from toolfleet_modules.sdk.tool import in_words
from toolfleet_registry.contracts.attempts import ALLOWANCE_SECONDS
from toolfleet_registry.contracts.call_context import Context, Progress
from toolfleet_registry.contracts.tool_definition import by_any_name
from toolfleet_registry.functions.failures import ModuleBusy
from toolfleet_registry.functions.threads import Threads
from toolfleet_registry.system import fleet_clock
from toolfleet_registry.system.shared_timers import shared_timers

# For which the smallest difference counts, and at most twice as long: clocks drift, by less than the allowance in this time.
_PERIOD_SECONDS = 300.0
_MOST_SENDERS = 10_000
_END = re.compile(r"(\d{1,15});now=(\d{1,15});sender=([A-Za-z0-9_-]{1,64})", re.ASCII)

REFUSALS = (ClientDisconnect, ValidationError, HeaderRefused, CallerRefused, TooLarge, TooSlow, RunRefused)
"""Why a request is not answered as it asks; `refusal` makes the response."""

_CLIENT_CLOSED_REQUEST = 499  # no client reads it; the access log shows it
_FULL_SECONDS = 1
_GRACE_SECONDS = 1.0  # for a tool whose time is over to end by itself

_SEND_SECONDS = 30.0  # for a client to take a line

# Until the client is watched: most calls have ended by then, and need no task for it.
_WATCH_SECONDS = 0.2
_SWEEP_SECONDS = 0.05  # between two looks for waits that are that old


@dataclass(slots=True)
class _Clock:
    since: float
    least: float
    before: float = math.inf  # the least of the period before this one


class Senders:
    """The clocks of the senders of requests, as far as their requests show them."""

    def __init__(self) -> None:
        self._clocks = OrderedDict[str, _Clock]()

    def end_of(self, field: str | None, *, came_at: float) -> float | None:
        """Return when the attempt may last start, by the clock that counts suspension, by which its request `came_at`.

        `field` is its `Toolfleet-Begin-By`; `None` if that is invalid.
        """
        match = _END.fullmatch(field or "")
        if match is None:
            return None
        begin_by, now = int(match[1]) / 1000, int(match[2]) / 1000
        return begin_by + self._difference(match[3], came_at - now, came_at) + ALLOWANCE_SECONDS

    def _difference(self, sender: str, difference: float, at: float) -> float:
        clock = self._clocks.pop(sender, None) or _Clock(at, difference)
        if at > clock.since + _PERIOD_SECONDS:
            is_recent = at <= clock.since + 2 * _PERIOD_SECONDS
            clock = _Clock(at, difference, clock.least if is_recent else math.inf)
        clock.least = min(clock.least, difference)
        self._clocks[sender] = clock
        if len(self._clocks) > _MOST_SENDERS:
            self._clocks.popitem(last=False)
        return min(clock.least, clock.before)


@dataclass(slots=True)
class Counts:
    """The outcomes of the calls since the module started. `cancelled`: the client has gone before the end.

    `accepted`: they continued by themselves; how they ended is not counted. `asked`: they had a question first.
    """

    running: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    accepted: int = 0
    asked: int = 0


class Execute:
    """An ASGI app for one route, in the running loop. `offer` returns the present tools, by name."""

    def __init__(
        self,
        offer: Callable[[], Mapping[str, ServedTool]],
        runs: IdempotentRuns,
        callers: CallerCheck,
        limits: Limits,
    ) -> None:
        self.counts = Counts()
        self._offer, self._runs, self._callers, self._limits = offer, runs, callers, limits
        self._means = RunMeans(Threads(limits.threads), limits.result_bytes, accepts=limits.accepts)
        self._senders = Senders()
        self._watches = ClientWatches()
        self._works: dict[str, Work] = {}
        self._all: set[Work] = set()
        guard_tasks(asyncio.get_running_loop())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        came_at = fleet_clock.suspend_aware()
        request, name = Request(scope, receive), ""
        try:
            caller = self._callers.verify(request.headers)  # first: input of other senders is not read
            call = await Call.of(request, most_bytes=self._limits.request_bytes)
            name = call.tool_name
            note_call(scope, name, call.call_id, call.attempt)
            permission = self._callers.permission(
                caller, tool=call.tool_name, sub=call.user_id or "", jti=call.call_id or ""
            )
            begin_by = self._senders.end_of(request.headers.get("toolfleet-begin-by"), came_at=came_at)
            response = await self._late(call, begin_by) or await self._answer(call, permission, begin_by, request, send)
        except ModuleBusy as exc:
            response = _busy(exc, name)
        except REFUSALS as exc:
            response = refusal(exc, self._limits.request_bytes)
        if response is not None:
            await response(scope, receive, send)

    async def aclose(self) -> None:
        """Stop the running work, and wait for it for a reasonable time."""
        works = list(self._all)
        for work in works:
            work.stop()
        if works:
            await asyncio.wait({work.task for work in works}, timeout=_GRACE_SECONDS)

    async def _late(self, call: Call, begin_by: float | None) -> Response | None:
        """Return the response to an attempt that comes after a later one, or after its end; `None` if it does not."""
        tool = self._tool(call)
        is_harmless = tool is not None and tool.definition.effect == "read"
        if not await self._runs.admits(call.key, call.attempt, is_harmless=is_harmless):
            return self._counted(overtaken(call.tool_name))
        if begin_by is not None and fleet_clock.suspend_aware() > begin_by:
            return self._counted(not_begun(call.tool_name))
        return None

    async def _answer(
        self, call: Call, permission: str | None, begin_by: float | None, request: Request, send: Send
    ) -> Response | None:
        """Return the response, or `None` if it was streamed. Raises one of `REFUSALS`, and `ModuleBusy`."""
        tool = self._tool(call)
        if tool is None:
            known = ", ".join(sorted(self._offer())) or "no tools"
            text = f"Unknown tool: {call.tool_name[:100]!r}. This module has {known}."
            return self._counted(Reply.failure(call.tool_name, text, effect_state="none"))
        arguments, conversation = call.split(tool.argument_names)
        context = Context(call.tool_name, call.call_id, call.user_id, permission, conversation)
        context._agent_context = call.context if tool.definition.takes_context else None
        context.takes_input, context.inputs = call.takes_input, call.inputs
        run = tool.begin(arguments, context, self._means)
        if isinstance(run, Reply):
            note_reply(request.scope, run)
            return self._counted(run)
        work = self._work_for(call, run, context)
        work.join(call.attempt, begin_by)
        async with work.attended(call.seconds):
            return await self._attend(work, call, request, send)

    def _tool(self, call: Call) -> ServedTool | None:
        tools = self._offer()
        return tools.get(call.tool_name) or by_any_name(tools, lambda tool: tool.definition).get(call.tool_name)

    def _work_for(self, call: Call, run: ServedRun[Any], context: Context) -> Work:
        """Return the work of this call id in this process, which is started if there is none.

        Raises `KeyReused`, `ModuleBusy`.
        """
        known = self._works.get(call.key) if call.key else None
        if known is not None and not known.task.done() and not known.is_stopped:
            if known.fingerprint != call.fingerprint:
                raise KeyReused("This Idempotency-Key was used for another request.")
            return known
        if len(self._all) >= self._limits.calls:
            raise ModuleBusy(_FULL_SECONDS)
        work = Work(context, call.fingerprint, call.key, call.log_level if call.streams else None)
        work.task = asyncio.ensure_future(self._runs.settle(work, run))
        if call.key:
            self._works[call.key] = work
        self._all.add(work)
        self.counts.running += 1
        work.task.add_done_callback(lambda _: self._close(work))
        return work

    def _close(self, work: Work) -> None:
        self._all.discard(work)
        if work.key is not None and self._works.get(work.key) is work:
            del self._works[work.key]
        self.counts.running -= 1
        if work.task.cancelled():
            self.counts.cancelled += 1
        elif work.task.exception() is None:  # also tells asyncio that it was retrieved
            self._counted(work.task.result())

    async def _attend(self, work: Work, call: Call, request: Request, send: Send) -> Response | None:
        """Wait for the reply, and send reports meanwhile. Raises `ClientDisconnect`, and the refusal of the call."""
        loop = asyncio.get_running_loop()
        ends_at = math.inf if call.seconds is None else loop.time() + call.seconds + _GRACE_SECONDS
        log = work.log if call.log_level is not None else None
        lines = ProgressLines(send, self._limits.progress_seconds, log)
        try:
            with ReplyWait(work, request, ends_at, self._watches) as waiting:
                while not waiting.is_over:
                    due_at = lines.due_at(work) if call.streams else math.inf
                    await (lines.tell(work) if due_at <= loop.time() else waiting.wait(due_at))
            if work.task.done():
                reply = work.task.result()
            elif waiting.is_client_gone:
                raise ClientDisconnect
            else:
                reply = Reply.stopped(call.tool_name, is_late=True)
        except asyncio.CancelledError:  # the server ends, and has waited: of itself it would say no more than 500
            if not lines.are_begun:
                body = Reply.stopped(call.tool_name, is_late=False).body
                await Response(body, media_type="application/json")(request.scope, request.receive, send)
            raise
        except ModuleBusy as exc:
            if not lines.are_begun:
                raise
            reply = Reply.failure(call.tool_name, str(exc), effect_state="none")
        note_reply(request.scope, reply)
        await lines.tell_rest()
        if not lines.are_begun:
            return Response(reply.body, media_type="application/json")
        await lines.end(reply)
        return None

    def _counted(self, reply: Reply) -> Response:
        if reply.is_stopped:
            self.counts.cancelled += 1
        elif reply.handle:
            self.counts.accepted += 1
        elif reply.is_question:
            self.counts.asked += 1
        elif reply.is_success:
            self.counts.succeeded += 1
        else:
            self.counts.failed += 1
        return Response(reply.body, media_type="application/json")


def _busy(exc: ModuleBusy, tool_name: str) -> Response:
    """Return 503 with a reply that names no status: a service that the module calls may have sent none."""
    reply = {"tool_name": tool_name, "success": False, "error": str(exc), "effect_state": "none"}
    return JSONResponse({"detail": str(exc), **reply}, 503, {"Retry-After": str(math.ceil(exc.retry_after_seconds))})


def refusal(exc: Exception, most_bytes: int) -> Response:
    """Return the response to a request that ended with one of `REFUSALS`; `most_bytes`: of its body."""
    match exc:
        case ClientDisconnect():
            return Response(status_code=_CLIENT_CLOSED_REQUEST)
        case ValidationError():
            return JSONResponse({"detail": in_words(exc)}, 422)
        case TooLarge():
            return JSONResponse({"detail": f"The request is larger than {most_bytes} bytes."}, 413)
        case TooSlow():
            return JSONResponse({"detail": str(exc)}, 408, {"Connection": "close"})
        case _:
            statuses = ((CallerRefused, 403), ((HeaderRefused, KeyReused), 422), (RunRefused, 409))
            status = next((status for kind, status in statuses if isinstance(exc, kind)), 503)
            return JSONResponse({"detail": str(exc)}, status)


class ProgressLines:
    """Writes `{"progress": 0.4, "message": "…"}`, no more often than every `seconds`, and the lines of `log`; then the reply."""

    def __init__(self, send: Send, seconds: float, log: WorkLog | None = None) -> None:
        self.are_begun = False
        self._send = send
        self._seconds = seconds
        self._log = log
        self._logged = 0  # lines of it that were sent
        self._sent: Progress | None = None
        self._next_at = 0.0

    def due_at(self, work: Work) -> float:
        """Return when there is something to send, by the loop's clock; `inf` while there is nothing."""
        if self._log is not None and self._logged < len(self._log.lines):
            return -math.inf
        return math.inf if work.progress is self._sent else self._next_at

    async def tell(self, work: Work) -> None:
        """Send what was logged, or the latest progress. Raises `ClientDisconnect`."""
        if self._log is not None and self._logged < len(self._log.lines):
            await self._tell_logged(self._log)
            return
        self._sent = work.progress
        if self._sent is None:
            return
        fields = {"progress": self._sent.fraction, "message": self._sent.message}
        line = json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace")  # there are half characters
        await self._tell(line + b"\n")
        self._next_at = asyncio.get_running_loop().time() + self._seconds

    async def tell_rest(self) -> None:
        """Send what was logged until the call's end. Raises `ClientDisconnect`."""
        if self._log is not None:
            await self._tell_logged(self._log)
            if notice := self._log.notice:
                await self._tell(notice)

    async def end(self, reply: Reply) -> None:
        """Send the reply as the last line. Raises `ClientDisconnect`."""
        await self._out({"type": "http.response.body", "body": reply.body.encode() + b"\n", "more_body": False})

    async def _tell_logged(self, log: WorkLog) -> None:
        lines = log.lines[self._logged :]
        self._logged += len(lines)
        if lines:
            await self._tell(b"".join(lines))

    async def _tell(self, lines: bytes) -> None:
        if not self.are_begun:
            self.are_begun = True
            headers = [(b"content-type", b"application/x-ndjson"), (b"cache-control", b"no-store")]
            await self._out({"type": "http.response.start", "status": 200, "headers": headers})
        await self._out({"type": "http.response.body", "body": lines, "more_body": True})

    async def _out(self, message: dict[str, object]) -> None:
        try:
            async with asyncio.timeout(_SEND_SECONDS):
                await self._send(message)
        except OSError as exc:  # also when the time is over
            raise ClientDisconnect from exc


class ClientWatches:
    """Watches the clients of requests whose calls take long.

    One timer is for all: one for each would be a part of a call's cost.
    """

    def __init__(self) -> None:
        self._waits = dict[ReplyWait, float]()  # when each is to be watched, the next first
        self._is_set = False

    def add(self, wait: "ReplyWait") -> None:
        """Have it watched when it is old enough."""
        loop = asyncio.get_running_loop()
        self._waits[wait] = loop.time() + _WATCH_SECONDS
        if not self._is_set:
            self._is_set = True
            loop.call_later(_WATCH_SECONDS, self._sweep, loop)

    def remove(self, wait: "ReplyWait") -> None:
        """Remove a wait that is over."""
        self._waits.pop(wait, None)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for wait, watch_at in list(self._waits.items()):
            if watch_at > now:
                loop.call_at(max(watch_at, now + _SWEEP_SECONDS), self._sweep, loop)
                return
            del self._waits[wait]
            wait.watch()
        self._is_set = False


class ReplyWait:
    """One request's waiting for `work`, until `ends_at` by the loop's clock. Enter it to wait."""

    def __init__(self, work: Work, request: Request, ends_at: float, watches: ClientWatches) -> None:
        self._work, self._request, self._ends_at, self._watches = work, request, ends_at, watches
        self._loop = asyncio.get_running_loop()
        self._going: asyncio.Task[None] | None = None
        self._waiter: asyncio.Future[None] | None = None

    def __enter__(self) -> Self:
        self._work.task.add_done_callback(self._wake)
        self._work.watchers.add(self._wake)
        self._watches.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._work.task.remove_done_callback(self._wake)
        self._work.watchers.discard(self._wake)
        self._watches.remove(self)
        if self._going is not None:
            self._going.cancel()

    @property
    def is_client_gone(self) -> bool:
        """Whether the client has gone."""
        return self._going is not None and self._going.done()

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self._work.task.done() or self.is_client_gone or self._loop.time() >= self._ends_at

    async def wait(self, until: float) -> None:
        """Return when something may have changed, and at `until` by the loop's clock."""
        self._waiter = self._loop.create_future()
        until = min(until, self._ends_at)
        timer = None if until == math.inf else shared_timers(self._loop).call_at(until, self._wake)
        try:
            await self._waiter
        finally:
            if timer is not None:
                timer.cancel()

    def watch(self) -> None:
        """Notice from now on if the client goes. For `ClientWatches`."""
        self._going = asyncio.ensure_future(_client_gone(self._request))
        self._going.add_done_callback(self._wake)

    def _wake(self, _: object = None) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


async def _client_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
