"""Maps an HTTP status other than 200 to what it means for a call."""

from dataclasses import replace
from http import HTTPStatus

from toolfleet_registry.contracts import ErrorCode, PublishedCall
from toolfleet_registry.contracts.outcomes import Attempt, Outcome
from toolfleet_registry.contracts.retry_after import parse_retry_after
from toolfleet_registry.headers.module_headers import ModuleHeaders
from toolfleet_registry.system.loggers import get_logger
from toolfleet_workers.executors.error_text import readable
from toolfleet_workers.executors.http.module_client import ModuleResponse
from toolfleet_workers.executors.http.reply import judge_reply, reason_of, with_reply
from toolfleet_workers.executors.http.reply_body import start_of_error
from toolfleet_workers.runner.attempts import unsuccessful

log = get_logger(__name__)


async def judge_error(call: PublishedCall, response: ModuleResponse, own: ModuleHeaders) -> Attempt:
    """The attempt's end, by an error whose body is still to be read; `own` was sent with the request, and is not shown."""
    body = await start_of_error(response)
    if response.status == HTTPStatus.ACCEPTED and (attempt := judge_reply(call, body)).goes_on:
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


def judge_status(call: PublishedCall, response: ModuleResponse, body: bytes) -> Attempt:
    """The attempt's end. `body` is the start of the response's body."""
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


_Meaning = tuple[Outcome, ErrorCode]
_BROKEN: _Meaning = (Outcome.SERVER_ERROR, "module_error")
_BUSY: _Meaning = (Outcome.TURNED_AWAY, "busy")
_NOT_NOW: _Meaning = (Outcome.TURNED_AWAY, "module_error")
# The same request is wanted elsewhere, so it was not executed here; nobody else gets it: redirects are not followed.
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
