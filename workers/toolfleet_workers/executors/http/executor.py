"""Runs a call over HTTP: one POST to the module that owns the tool, and what came of it.

Nothing is sent twice. Whether the module can have seen the request is observed, never guessed from an error's class.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from types import MappingProxyType
from typing import TypeVar

from toolfleet_registry.contracts import PublishedCall
from toolfleet_registry.contracts.names import ToolName
from toolfleet_registry.contracts.outcomes import Attempt, Health, Outcome
from toolfleet_registry.errors import BodyTooLarge, BodyUnreadable, InvalidToolName
from toolfleet_registry.headers.module_headers import NO_HEADERS, ModuleHeaders
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.time.lease import UNBOUNDED, Lease, LeaseOver
from toolfleet_workers.executors.http.error_body import start_of_error
from toolfleet_workers.executors.http.module_client import HttpClientPort, ModuleResponse, SendProgress
from toolfleet_workers.executors.http.ndjson import is_stream, read_last_line
from toolfleet_workers.executors.http.no_reply import Blocked, NoReply, ReplyBroken
from toolfleet_workers.executors.http.reconcile import QUESTION_HEADERS, build_question, judge_answer
from toolfleet_workers.executors.http.reply import judge_reply, too_large
from toolfleet_workers.executors.http.reply_body import read_reply
from toolfleet_workers.executors.http.request import (
    COMMON_HEADERS,
    PROBE_HEADERS,
    CallerToken,
    ModuleRequest,
    build_request,
)
from toolfleet_workers.executors.http.status import HttpStatuses, StatusTarget
from toolfleet_workers.executors.http.statuses import judge_status
from toolfleet_workers.executors.http.target import Target
from toolfleet_workers.runner.attempts import error_text, too_late, unsuccessful

log = get_logger(__name__)

_End = TypeVar("_End", Attempt, Attempt | None)
_NOTHING: Mapping[str, ModuleHeaders] = MappingProxyType({})
_NOT_READY = frozenset({HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT})


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
        self._modules = dict[str, _Module]()
        self._services = dict[str, str]()
        self._headers: Mapping[str, ModuleHeaders] = {}
        self._ended = frozenset[str]()
        self._max_reply_bytes = max_reply_bytes
        self._caller_token = caller_token
        self._client = client
        self.statuses = HttpStatuses(client, self._status_of, max_reply_bytes, caller_token)
        self.serve(services, headers=headers)

    def serve(
        self,
        services: Mapping[str, str],
        *,
        headers: Mapping[str, ModuleHeaders] = _NOTHING,
        ended: frozenset[str] = frozenset(),
    ) -> None:
        """Have these modules from now on. The `ended` ones were removed, and their calls are told so. Running calls go on."""
        if services == self._services and ended == self._ended and headers == self._headers:
            return
        self._services, self._headers = dict(services), headers
        before, self._ended = self._modules, ended
        self._modules = {
            name: _Module.at(url, headers.get(name, NO_HEADERS), known=before.get(name))
            for name, url in services.items()
        }
        if any(module.call.origin.is_tls for module in self._modules.values()):
            self._client.trust()

    def guard(self, guards: Mapping[str, Callable[[str], bool]]) -> None:
        """Connect to these modules only at IP addresses that are allowed to them."""
        found = {self._modules[name].call.origin: allows for name, allows in guards.items() if name in self._modules}
        self._client.guard(found)

    async def execute(self, call: PublishedCall, *, seconds: float, lease: Lease = UNBOUNDED) -> Attempt:
        """One attempt within `seconds`. Raises `TimeoutError` if they are over after the request was sent."""
        request = self._prepare(call, seconds, lease)
        if isinstance(request, Attempt):
            return request
        progress = SendProgress()
        try:
            async with asyncio.timeout(seconds):
                return await self._attempt(call, request, progress)
        except LeaseOver:
            late = too_late(call)
            log.warning("lease_over_before_sending", error_code=late.result.error_code)
            return late
        except TimeoutError:
            if progress.sent:
                raise
            return _not_sent(call, f"no connection within {max(seconds, 0):.3g}s", Health.AWAY)

    async def reconcile(self, call: PublishedCall, *, seconds: float, lease: Lease = UNBOUNDED) -> Attempt | None:
        """Ask the call's module what became of it, within `seconds`; `None` if that remains unknown."""
        module = self._modules.get(call.tool_name.partition(".")[0])
        if module is None:
            return None
        call_log = log.bind(call_id=call.call_id, tool=call.tool_name)
        try:
            async with asyncio.timeout(seconds):
                attempt = await self._ask(call, module.question, seconds, lease)
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
        known = self._modules.get(module)
        if known is None:
            return Health.WELL
        try:
            async with asyncio.timeout(seconds):
                status = await self._client.probe(ModuleRequest(known.health.origin, known.health.head, b""))
        except Blocked:
            return Health.UNKNOWN
        except (TimeoutError, NoReply):
            return Health.AWAY
        return Health.NOT_READY if status in _NOT_READY else Health.WELL

    async def aclose(self) -> None:
        """Close all connections; a call that still waits for its reply ends as unknown."""
        await self._client.aclose()

    def _prepare(self, call: PublishedCall, seconds: float, lease: Lease) -> ModuleRequest | Attempt:
        try:
            module = ToolName.parse(call.tool_name).module
        except InvalidToolName as exc:
            return unsuccessful(call, Outcome.PERMANENT, "invalid_tool_name", str(exc))
        known = self._modules.get(module)
        if known is None:
            why = f"Module {module!r} was removed before this call began." if module in self._ended else None
            return unsuccessful(call, Outcome.PERMANENT, "unknown_module", why or f"Unknown module: {module}")
        try:
            return build_request(call, known.call, seconds=seconds, lease=lease, caller_token=self._caller_token)
        except ValueError as exc:
            return unsuccessful(call, Outcome.PERMANENT, "invalid_arguments", f"Tool execution error: {exc}")

    async def _ask(self, call: PublishedCall, target: Target, seconds: float, lease: Lease) -> Attempt | None:
        question = build_question(call, target, seconds=seconds, lease=lease, caller_token=self._caller_token)
        response = await self._client.post(question, SendProgress())
        try:
            if response.status != HTTPStatus.OK:  # most modules have no such endpoint
                return None
            return self._judged(judge_answer, call, await read_reply(response, self._max_reply_bytes))
        finally:
            response.release()

    async def _attempt(self, call: PublishedCall, request: ModuleRequest, progress: SendProgress) -> Attempt:
        try:
            response = await self._client.post(request, progress)
            try:
                return await self._judge(call, response)
            finally:
                response.release()
        except NoReply as exc:
            log.warning("module_connection_failed", sent=progress.sent, error=_cause(exc))
            if progress.sent:
                return _lost(call, exc)
            return _not_sent(call, str(exc), Health.UNKNOWN if isinstance(exc, Blocked) else Health.AWAY)

    async def _judge(self, call: PublishedCall, response: ModuleResponse) -> Attempt:
        if response.status != HTTPStatus.OK:
            return await self._judge_error(call, response)
        try:
            read = read_last_line if is_stream(response) else read_reply
            return self._judged(judge_reply, call, await read(response, self._max_reply_bytes))
        except BodyTooLarge as exc:
            return too_large(call, exc)
        except BodyUnreadable as exc:
            text = f"Tool execution error: the module's reply is invalid: {exc}"
            return unsuccessful(call, Outcome.UNKNOWN, "invalid_response", text)

    async def _judge_error(self, call: PublishedCall, response: ModuleResponse) -> Attempt:
        own, body = self._headers_of(call), await start_of_error(response)
        if response.status == HTTPStatus.ACCEPTED and (attempt := judge_reply(call, body)).acceptance is not None:
            return attempt
        attempt = judge_status(call, response, own.hide(body))
        if response.status != HTTPStatus.UNAUTHORIZED:
            return attempt
        advice = own.advice(response.status)
        log.warning("module_refused_credentials", advice=advice)
        if not own:
            return attempt
        result = attempt.result.model_copy(update={"error": f"{attempt.result.error} (for the operator: {advice})"})
        return replace(attempt, result=result)

    def _judged(self, judge: Callable[[PublishedCall, bytes], _End], call: PublishedCall, body: bytes) -> _End:
        """The end of the call. An error that quotes what only the module and we shall know is read without it."""
        attempt = judge(call, body)
        if attempt is None or attempt.outcome is Outcome.SUCCESS or attempt.acceptance is not None:
            return attempt
        shown = self._headers_of(call).hide(body)
        return attempt if shown is body else judge(call, shown)

    def _status_of(self, call: PublishedCall) -> StatusTarget | None:
        known = self._modules.get(call.tool_name.partition(".")[0])
        return None if known is None else StatusTarget(known.status, known.headers)

    def _headers_of(self, call: PublishedCall) -> ModuleHeaders:
        return self._headers.get(call.tool_name.partition(".")[0], NO_HEADERS)


@dataclass(frozen=True, slots=True)
class _Module:
    """Where a module is asked what."""

    url: str
    call: Target
    question: Target
    status: Target
    health: Target
    headers: ModuleHeaders

    @classmethod
    def at(cls, url: str, headers: ModuleHeaders, *, known: "_Module | None") -> "_Module":
        """The module there; the one that was known, if it is the same."""
        if known is not None and (known.url, known.headers) == (url, headers):
            return known
        base, own = url.rstrip("/"), headers.plain()
        return cls(
            url,
            call=Target.of(f"{base}/execute", {**COMMON_HEADERS, **own}),
            question=Target.of(f"{base}/reconcile", {**QUESTION_HEADERS, **own}),
            status=Target.of(f"{base}/status", {**QUESTION_HEADERS, **own}),
            health=Target.of(f"{base}/health", {**PROBE_HEADERS, **own}, method="GET"),
            headers=headers,
        )


_REFUSED = "Connection refused"


def _not_sent(call: PublishedCall, reason: str, unreached: Health) -> Attempt:
    # To the letter: agents match on what a refused connection has always read.
    text = f"Tool execution error: {'' if reason == _REFUSED else 'the module cannot be reached: '}{reason}"
    attempt = unsuccessful(call, Outcome.NOT_SENT, "module_unreachable", text)
    return Attempt(attempt.outcome, attempt.result, unreached=unreached)


def _lost(call: PublishedCall, exc: NoReply) -> Attempt:
    if isinstance(exc, ReplyBroken):
        text = "Tool execution error: the module's reply is invalid: not HTTP, or cut short"
        return unsuccessful(call, Outcome.UNKNOWN, "invalid_response", text)
    # Not module_unreachable: that code promises that nothing was executed.
    text = "Tool execution error: the connection to the module was lost before it replied"
    return unsuccessful(call, Outcome.UNKNOWN, "module_error", text)


def _cause(exc: TimeoutError | NoReply | LeaseOver) -> str:
    """For the log: what the operating system said, where it was asked."""
    return error_text(exc.__cause__ if isinstance(exc.__cause__, OSError) else exc)
