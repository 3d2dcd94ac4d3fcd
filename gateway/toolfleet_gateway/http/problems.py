"""Describes what is wrong with a request, in the format of RFC 9457 (`application/problem+json`), and answers with it."""

from http import HTTPStatus
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolfleet_gateway.auth.identity import AuthRefused
from toolfleet_registry.contracts import EffectState
from toolfleet_registry.errors import BrokerAway, FleetUnavailable
from toolfleet_registry.system.loggers import get_logger

log = get_logger(__name__)

MEDIA_TYPE = "application/problem+json"
_TYPE_PREFIX = "urn:toolfleet:problem:"

_LONGEST_INSTANCE = 512  # characters: what comes back must not be as long as what came

_UNAVAILABLE_SECONDS = 1.0
_REDIS_AWAY = "The fleet's Redis does not answer."
_BROKER_AWAY = "The broker of the fleet's queues does not answer."


class ProblemBody(BaseModel):
    """A fault of a request. Nothing of it has happened, unless `effect_state` says otherwise."""

    model_config = ConfigDict(frozen=True)

    type: str
    """Which kind of problem: `urn:toolfleet:problem:` and the error code, with hyphens."""
    title: str
    """The status in words."""
    status: int
    """The HTTP status."""
    detail: str
    """What is wrong, in one sentence."""
    instance: str
    """The path that was asked for."""
    error_code: str
    """What is wrong, for programs."""
    effect_state: EffectState = "none"
    """Whether the effect of a call has happened."""
    retryable: bool = False
    """Whether a repeat, as it is, may work and cannot double an effect."""
    retry_after_seconds: float | None = None
    """When a repeat makes sense."""
    hint: str | None = None
    """What to do next, in one sentence."""
    ends_run: bool | None = None
    """Whether the agent's run is to end with this refusal, by a limit of its profile; left out where it may go on."""


class Problem(Exception):
    """Ends a request with a problem. Raise it anywhere below `ProblemAnswers`.

    `headers` are sent with it; `retry_after_seconds` also as `Retry-After`. `closes`: the connection is closed
    afterwards.
    """

    def __init__(
        self,
        status: int,
        error_code: str,
        detail: str,
        *,
        hint: str | None = None,
        effect_state: EffectState = "none",
        retryable: bool = False,
        retry_after_seconds: float | None = None,
        ends_run: bool = False,
        headers: dict[str, str] | None = None,
        closes: bool = False,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.error_code = error_code
        self.detail = detail
        self.hint = hint
        self.effect_state: EffectState = effect_state
        self.retryable = retryable
        self.retry_after_seconds = retry_after_seconds
        self.ends_run = ends_run
        self.headers = headers or {}
        self.closes = closes

    def body(self, instance: str) -> ProblemBody:
        """Return the answer's body. `instance` is the requested path."""
        return ProblemBody(
            type=_TYPE_PREFIX + self.error_code.replace("_", "-"),
            title=title_of(self.status),
            status=self.status,
            detail=self.detail,
            instance=instance[:_LONGEST_INSTANCE],
            error_code=self.error_code,
            effect_state=self.effect_state,
            retryable=self.retryable,
            retry_after_seconds=self.retry_after_seconds,
            hint=self.hint,
            ends_run=self.ends_run or None,
        )

    def answer(self, instance: str) -> Response:
        """Return the HTTP answer."""
        headers = dict(self.headers)
        if self.retry_after_seconds is not None:
            headers.setdefault("retry-after", str(max(1, round(self.retry_after_seconds + 0.5))))
        if self.closes:
            headers["connection"] = "close"
        text = self.body(instance).model_dump_json(exclude_none=True)
        return Response(text, self.status, headers, media_type=MEDIA_TYPE)


def title_of(status: int) -> str:
    """Return an HTTP status in words."""
    return HTTPStatus(status).phrase


def not_found(detail: str, *, code: Literal["not_found", "unknown_tool"] = "not_found", **rest: Any) -> Problem:
    """Return the problem of a missing object, or of another user's: both look alike."""
    return Problem(404, code, detail, **rest)


def invalid_request(detail: str) -> Problem:
    """Return the problem of an invalid body, query or header."""
    return Problem(400, "invalid_request", detail)


class ProblemAnswers:
    """The one place that turns anything into an answer: a defect of ours is 500, and its traceback is in the log only."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Implement ASGI."""
        has_begun = False

        async def sending(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception as exc:  # the edge: for any error, the client gets one clear answer
            problem = problem_of(exc)
            if has_begun:  # a stream that breaks: the client comes again
                log.warning("answer_cut", path=scope["path"], error=type(exc).__name__)
                raise
            scope["toolfleet.problem"] = problem.error_code
            await problem.answer(scope["path"])(scope, receive, send)


def problem_of(error: Exception) -> Problem:
    """Return the problem that a client is told for an error."""
    match error:
        case Problem():
            return error
        case AuthRefused():
            return Problem(
                error.status,
                error.problem.replace("-", "_"),
                str(error),
                retryable=error.retry_after_seconds is not None,
                retry_after_seconds=error.retry_after_seconds,
                headers={name.lower(): value for name, value in error.headers.items()},
            )
        case HTTPException(status_code=404):
            return not_found("There is nothing at this path.")
        case HTTPException():
            return Problem(
                error.status_code, "invalid_request", title_of(error.status_code), headers=dict(error.headers or {})
            )
        case FleetUnavailable():
            return unavailable(_BROKER_AWAY if isinstance(error, BrokerAway) else _REDIS_AWAY)
        case _:
            log.error("request_failed", exc_info=error)
            return Problem(500, "internal", "The gateway failed; its log says why.", effect_state="unknown")


def unavailable(detail: str = _REDIS_AWAY) -> Problem:
    """Return the problem of an unavailable fleet."""
    return Problem(503, "fleet_unavailable", detail, retryable=True, retry_after_seconds=_UNAVAILABLE_SECONDS)
