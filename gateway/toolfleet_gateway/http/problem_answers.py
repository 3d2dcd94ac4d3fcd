"""Answers with a problem what anything below has raised."""

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolfleet_gateway.auth.refusals import AuthRefused
from toolfleet_gateway.http.problems import Problem, not_found, title_of
from toolfleet_registry.errors import BrokerAway, FleetUnavailable
from toolfleet_registry.system.loggers import get_logger

log = get_logger(__name__)

_UNAVAILABLE_SECONDS = 1.0
_REDIS_AWAY = "The fleet's Redis does not answer."
_BROKER_AWAY = "The broker of the fleet's queues does not answer."


class ProblemAnswers:
    """The one place that turns anything into an answer: a defect of ours is 500, and its traceback is in the log only."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
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
