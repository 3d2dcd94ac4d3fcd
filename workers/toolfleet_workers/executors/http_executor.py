"""Runs a call over HTTP: one POST to the module that owns the tool, and what came of it.

Nothing is sent twice. Whether the module can have seen the request is observed, never guessed from an error's class.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from http import HTTPStatus
from types import MappingProxyType
from typing import TypeVar

from toolfleet_registry.contracts import ErrorCode, PublishedCall
from toolfleet_registry.contracts.attempts import (
    UNBOUNDED,
    Attempt,
    Health,
    Lease,
    LeaseOver,
    Outcome,
    parse_retry_after,
)
from toolfleet_registry.contracts.names import ToolName
from toolfleet_registry.directory.entries import Replica
from toolfleet_registry.errors import BodyTooLarge, BodyUnreadable, InvalidToolName
from toolfleet_registry.headers import ModuleHeaders
from toolfleet_registry.policy.hints import Why
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.system.shared_timers import SharedTimeout
from toolfleet_workers.executors.address_book import Address, AddressBook, Replicas, ReplicaState, id_in
from toolfleet_workers.executors.module_client import HttpClientPort, ModuleResponse, SendProgress
from toolfleet_workers.executors.reply import (
    Blocked,
    NoReply,
    NotConnected,
    is_stream,
    judge_reply,
    lost,
    not_sent,
    read_last_line,
    read_reply,
    reason_of,
    silent,
    start_of_error,
    too_large,
    with_reply,
)
from toolfleet_workers.executors.request import CallerToken, ModuleRequest, build_request
from toolfleet_workers.executors.status import HttpStatuses, build_question, judge_answer
from toolfleet_workers.runner import error_text, no_time_left, readable, too_late, unsuccessful

log = get_logger(__name__)

SendTo = Callable[[ReplicaState, int], Awaitable[Attempt]]
"""Sends the attempt to this process, with how many others are left. `Attempt.unreached` is `AWAY` only where that process has
surely not begun it."""

_Meaning = tuple[Outcome, ErrorCode]
_BROKEN: _Meaning = (Outcome.SERVER_ERROR, "module_error")
_BUSY: _Meaning = (Outcome.TURNED_AWAY, "busy")
_NOT_NOW: _Meaning = (Outcome.TURNED_AWAY, "module_error")
# The same request is wanted elsewhere, so it was not executed here; no other server gets it: redirects are not followed.
_MOVED: _Meaning = (Outcome.PERMANENT, "invalid_response")
# A gateway's words: it may have passed the request on.
_IN_BETWEEN: _Meaning = (Outcome.UNKNOWN, "module_error")
# Also 302 and 303, with which web applications answer when the work is done, and 2xx, which says that it was taken.
_NO_ANSWER: _Meaning = (Outcome.UNKNOWN, "invalid_response")

_BY_STATUS = {
    **dict.fromkeys((429, 503), _BUSY),
    **dict.fromkeys((408, 425), _NOT_NOW),
    **dict.fromkeys((301, 307, 308), _MOVED),
    **dict.fromkeys((502, 504), _IN_BETWEEN),
}
_BY_CLASS: dict[int, _Meaning] = {4: (Outcome.PERMANENT, "module_error"), 5: _BROKEN}

_End = TypeVar("_End", Attempt, Attempt | None)
_NOTHING: Mapping[str, ModuleHeaders] = MappingProxyType({})
_NO_REPLICAS: Mapping[str, tuple[Replica, ...]] = MappingProxyType({})
_OK = HTTPStatus.OK  # a look at a member is a call of Python's
_NOT_READY = frozenset({HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT})

_NEXT_SECONDS = 1.5  # a packet that is lost is sent again after 1 s
_LEFT = "another process is there by now"
_BEST_FIRST = (Health.WELL, Health.NOT_READY, Health.UNKNOWN, Health.AWAY)


async def send_to_one(replicas: Replicas, lease: Lease, send: SendTo) -> Attempt | None:
    """Make one attempt, at the process that the lease names if that is still there; `None` if there is no process.

    Another process is noted on the lease before anything is sent to it. Raises `LeaseOver`, and what `send` raises.
    """
    tried = set[str]()
    state, attempt = replicas.noted(lease.replica) or replicas.choose(), None
    while state is not None:
        tried.add(state.replica.id)
        if id_in(lease.replica) != state.replica.id:
            await lease.move(state.note)
        others = sum(id_ not in tried for id_ in replicas.states)
        attempt = await _sent(state, send, others)
        if attempt.unreached is not Health.AWAY:
            return attempt
        state = replicas.choose(tried)
    return attempt


async def _sent(state: ReplicaState, send: SendTo, others: int) -> Attempt:
    state.in_flight += 1
    try:
        attempt = await send(state, others)
    finally:
        state.in_flight -= 1
    if attempt.unreached is Health.AWAY and state.missed():
        log.warning("replica_ejected", replica=state.replica.id, seconds=state.pause)
    return attempt


async def _judge_error(call: PublishedCall, response: ModuleResponse, own: ModuleHeaders) -> Attempt:
    """Return the attempt of an error with a body that is still to be read; `own` headers were sent with the request, and are hidden."""
    body = await start_of_error(response)
    if response.status == HTTPStatus.ACCEPTED and (attempt := judge_reply(call, body)).goes_on:
        return attempt
    attempt = _judge_status(call, response, own.hide(body))
    if response.status != HTTPStatus.UNAUTHORIZED:
        return attempt
    advice = own.advice(response.status)
    log.warning("module_refused_credentials", advice=advice)
    if not own:
        return attempt
    result = attempt.result.model_copy(update={"error": f"{attempt.result.error} (for the operator: {advice})"})
    return replace(attempt, result=result)


def _judge_status(call: PublishedCall, response: ModuleResponse, body: bytes) -> Attempt:
    """Return the attempt's end. `body` is the start of the response's body."""
    status = response.status
    outcome, code = _BY_STATUS.get(status) or _BY_CLASS.get(status // 100, _NO_ANSWER)
    may_be_between = status == HTTPStatus.SERVICE_UNAVAILABLE and response.field("retry-after") is None
    if may_be_between:
        outcome, code = _BROKEN
    text = readable(body.decode(errors="replace"))
    reason = reason_of(call, body) if outcome is Outcome.TURNED_AWAY else None
    attempt = unsuccessful(call, outcome, code, reason or f"Module returned status {status}: {text}".rstrip())
    if outcome is Outcome.SERVER_ERROR:
        replied = with_reply(attempt, call, body)
        # A proxy says 503 also when its connection broke after it had passed the request on: only a module replies.
        return replace(attempt, outcome=_IN_BETWEEN[0]) if may_be_between and replied is attempt else replied
    if outcome is not Outcome.TURNED_AWAY:
        return attempt
    retry_after = parse_retry_after(response.field("retry-after"))
    return Attempt(outcome, attempt.result.model_copy(update={"retry_after_seconds": retry_after}), retry_after)


class HttpExecutor:
    """`POST {url}/execute` to a call's module, by `client`, which it closes; `services` is module name -> base URL.

    A reply of more than `max_reply_bytes`, as sent or unpacked, is not read further. What `caller_token` says of a call
    goes with it in `Toolfleet-Caller`, and `headers` with each request to a module.
    """

    def __init__(
        self,
        services: Mapping[str, str],
        *,
        client: HttpClientPort,
        max_reply_bytes: int,
        caller_token: CallerToken | None = None,
        headers: Mapping[str, ModuleHeaders] = _NOTHING,
    ) -> None:
        if max_reply_bytes <= 0:
            raise ValueError(f"max_reply_bytes must be positive, not {max_reply_bytes}")
        self._book = AddressBook()
        self._max_reply_bytes = max_reply_bytes
        self._caller_token = caller_token
        self._client = client
        self.statuses = HttpStatuses(client, self._book.status_of, max_reply_bytes, caller_token)
        self.reread: Callable[[], Awaitable[object]] | None = None
        """Reads the directory of modules again. Called before a call of an unknown module is refused: it may have been added a moment ago."""
        self.serve(services, headers=headers)

    def serve(
        self,
        services: Mapping[str, str],
        *,
        headers: Mapping[str, ModuleHeaders] = _NOTHING,
        ended: frozenset[str] = frozenset(),
        replicas: Mapping[str, tuple[Replica, ...]] = _NO_REPLICAS,
    ) -> None:
        """Have these modules from now on. The `ended` ones were removed, and their calls are told so. Running calls go on.

        `replicas`: the processes of those modules that have more than an address.
        """
        if self._book.serve(services, headers, ended, replicas) and any(
            address.call.origin.is_tls for address in self._book.every()
        ):
            self._client.trust()

    def guard(self, guards: Mapping[str, Callable[[str], bool]]) -> None:
        """Connect to these modules only at IP addresses that are allowed to them."""
        found = {each.call.origin: allows for name, allows in guards.items() for each in self._book.of(name)}
        self._client.guard(found)

    def replica_for(self, call: PublishedCall) -> str:
        """Return which of its module's processes a call would go to, as its lease is to note it; "" for a module with one address."""
        replicas = self._replicas_of(call) if self._book.replicas else None
        chosen = None if replicas is None else replicas.choose()
        return "" if chosen is None else chosen.note

    def counts(self) -> dict[str, dict[str, tuple[int, int, float]]]:
        """Return the known facts about the processes of each module that has several, as `Replicas.counts`."""
        return {module: each.counts() for module, each in self._book.replicas.items() if len(each.states) > 1}

    async def execute(self, call: PublishedCall, *, seconds: float, lease: Lease = UNBOUNDED) -> Attempt:
        """Make one attempt within `seconds`. Raises `TimeoutError` if they are over after the request was sent."""
        request, progress = self._prepare(call, seconds, lease), SendProgress()
        if isinstance(request, Attempt) and request.result.error_code == "unknown_module" and self.reread is not None:
            clock = asyncio.get_running_loop().time
            began = clock()
            await self.reread()
            seconds -= clock() - began
            request = self._prepare(call, seconds, lease)
        replicas = self._replicas_of(call) if self._book.replicas else None
        if isinstance(request, Attempt):
            return request
        if seconds <= 0:  # over a connection that is there it would be sent all the same
            return no_time_left(call)
        try:
            with SharedTimeout(seconds):
                if replicas is None:
                    return await self._attempt(call, request, progress)
                return await self._attempt_at_one(replicas, call, seconds, lease, progress)
        except LeaseOver:
            late = too_late(call)
            log.warning("lease_over_before_sending", error_code=late.result.error_code)
            return late
        except TimeoutError:
            if progress.sent:
                raise
            return not_sent(call, str(silent(seconds)), Health.AWAY, "silent")

    async def reconcile(self, call: PublishedCall, *, seconds: float, lease: Lease = UNBOUNDED) -> Attempt | None:
        """Ask the call's module for its outcome, within `seconds`; `None` if that remains unknown."""
        known = self._book.who_knows(_module_of(call), lease.replica)
        call_log = log.bind(call_id=call.call_id, tool=call.tool_name)
        try:
            async with asyncio.timeout(seconds):
                attempt = await self._ask_first(call, known, seconds, lease)
        except (TimeoutError, NoReply, LeaseOver) as exc:
            call_log.warning("reconcile_unanswered", error=_cause(exc))
        except (BodyTooLarge, BodyUnreadable, ValueError) as exc:
            call_log.warning("reconcile_answer_invalid", error=str(exc))
        else:
            call_log.info("reconcile_answered", outcome=attempt.outcome if attempt else None)
            return attempt
        return None

    async def probe(self, module: str, *, seconds: float) -> Health:
        """`GET {url}/health`, over a new connection, within `seconds`: any answer says that the module is there."""
        found = await asyncio.gather(*(self._probe(each, seconds) for each in self._book.of(module)))
        return next((health for health in _BEST_FIRST if health in found), Health.WELL)

    async def aclose(self) -> None:
        """Close all connections; a call that still waits for its reply ends as unknown."""
        await self._client.aclose()

    async def _ask_first(
        self, call: PublishedCall, known: list[Address], seconds: float, lease: Lease
    ) -> Attempt | None:
        """Return the answer of the first of them that can be reached."""
        for place, address in enumerate(known):
            try:
                attempt = await self._ask(call, address, seconds, lease, others=len(known) - place - 1)
            except NotConnected:
                if address is known[-1]:
                    raise
                continue
            is_nothing = attempt is not None and not attempt.result.success and attempt.result.effect_state == "none"
            return None if is_nothing and lease.is_scattered else attempt
        return None

    async def _ask(
        self, call: PublishedCall, address: Address, seconds: float, lease: Lease, *, others: int
    ) -> Attempt | None:
        token = self._caller_token
        question = build_question(call, address.question, seconds=seconds, lease=lease, caller_token=token)
        question.connect_seconds = _connect_seconds(seconds, others)
        response = await self._client.post(question, SendProgress())
        try:
            if address.is_left_by(response):
                raise NotConnected(_LEFT)
            if response.status != _OK:  # most modules have no such endpoint
                return None
            body = await read_reply(response, self._max_reply_bytes)
            return self._hidden(judge_answer, call, body, judge_answer(call, body))
        finally:
            response.release()

    async def _probe(self, address: Address, seconds: float) -> Health:
        try:
            async with asyncio.timeout(seconds):
                status = await self._client.probe(ModuleRequest(address.health.origin, address.health.head, b""))
        except Blocked:
            return Health.UNKNOWN
        except (TimeoutError, NoReply):
            return Health.AWAY
        return Health.NOT_READY if status in _NOT_READY else Health.WELL

    async def _attempt_at_one(
        self, replicas: Replicas, call: PublishedCall, seconds: float, lease: Lease, progress: SendProgress
    ) -> Attempt:
        """Make an attempt at one of the module's processes, or at the next if nothing could be sent."""
        clock, module = asyncio.get_running_loop().time, _module_of(call)
        ends_at = clock() + seconds

        async def send(state: ReplicaState, others: int) -> Attempt:
            address, left = self._book.replica(module, state.replica.id), ends_at - clock()
            if address is None:  # it has gone while the ledger was told
                return not_sent(call, _LEFT, Health.AWAY)
            request = self._prepare(call, left, lease, address)
            if isinstance(request, Attempt):
                return request
            if left <= 0:
                return no_time_left(call)
            request.connect_seconds = _connect_seconds(left, others)
            return await self._attempt(call, request, progress, address, state)

        return await send_to_one(replicas, lease, send) or not_sent(call, _LEFT, Health.AWAY)

    def _replicas_of(self, call: PublishedCall) -> Replicas | None:
        return self._book.replicas.get(_module_of(call))

    def _prepare(
        self, call: PublishedCall, seconds: float, lease: Lease, address: Address | None = None
    ) -> ModuleRequest | Attempt:
        try:
            module = ToolName.parse(call.tool_name).module
        except InvalidToolName as exc:
            return unsuccessful(call, Outcome.PERMANENT, "invalid_tool_name", str(exc))
        if (address := address or self._book.first(module)) is None:
            return unsuccessful(call, Outcome.PERMANENT, "unknown_module", self._book.why_unknown(module))
        try:
            return build_request(call, address.call, seconds=seconds, lease=lease, caller_token=self._caller_token)
        except ValueError as exc:
            return unsuccessful(call, Outcome.PERMANENT, "invalid_arguments", f"Tool execution error: {exc}")

    async def _attempt(
        self,
        call: PublishedCall,
        request: ModuleRequest,
        progress: SendProgress,
        address: Address | None = None,
        state: ReplicaState | None = None,
    ) -> Attempt:
        """Send one request. `address` and `state` are those of a replica."""
        try:
            if address is None and request.lease.replica:  # of a time at which the module had several
                await request.lease.move("")
            response = await self._client.post(request, progress)
            try:
                if address is not None and address.is_left_by(response):
                    progress.sent = False  # nor was anything: who has answered was not meant
                    return not_sent(call, _LEFT, Health.AWAY)
                if state is not None:
                    state.reached()
                body = response.plain
                if body is not None and len(body) <= self._max_reply_bytes:
                    attempt = judge_reply(call, body)
                    return (
                        attempt
                        if attempt.outcome is Outcome.SUCCESS
                        else self._hidden(judge_reply, call, body, attempt)
                    )
                return await self._judge(call, response)
            finally:
                response.release()
        except NoReply as exc:
            log.warning("module_connection_failed", sent=progress.sent, error=_cause(exc))
            if progress.sent:
                return lost(call, exc)
            why: Why = exc.why if isinstance(exc, NotConnected) else "away"
            return not_sent(call, str(exc), Health.UNKNOWN if isinstance(exc, Blocked) else Health.AWAY, why)

    async def _judge(self, call: PublishedCall, response: ModuleResponse) -> Attempt:
        if response.status != _OK:
            return await _judge_error(call, response, self._headers_of(call))
        try:
            body = await (read_last_line if is_stream(response) else read_reply)(response, self._max_reply_bytes)
            return self._hidden(judge_reply, call, body, judge_reply(call, body))
        except BodyTooLarge as exc:
            return too_large(call, exc)
        except BodyUnreadable as exc:
            text = f"Tool execution error: the module's reply is invalid: {exc}"
            return unsuccessful(call, Outcome.UNKNOWN, "invalid_response", text)

    def _hidden(
        self, judge: Callable[[PublishedCall, bytes], _End], call: PublishedCall, body: bytes, attempt: _End
    ) -> _End:
        """Return the attempt that `judge` has found in a body. Values of our headers are removed from an error that quotes them."""
        if attempt is None or attempt.outcome is Outcome.SUCCESS or attempt.goes_on:
            return attempt
        shown = self._headers_of(call).hide(body)
        return attempt if shown is body else judge(call, shown)

    def _headers_of(self, call: PublishedCall) -> ModuleHeaders:
        return self._book.headers_of(_module_of(call))


def _module_of(call: PublishedCall) -> str:
    return call.tool_name.partition(".")[0]


def _connect_seconds(left: float, others: int) -> float:
    """Return how long connecting to a process may take, so that there is time for others."""
    return min(_NEXT_SECONDS, left / 2) if others else math.inf


def _cause(exc: TimeoutError | NoReply | LeaseOver) -> str:
    """Return the cause for the log: the operating system's error, if there is one."""
    return error_text(exc.__cause__ if isinstance(exc.__cause__, OSError) else exc)
