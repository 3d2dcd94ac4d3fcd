"""Describes what is wrong with a request, in the format of RFC 9457: `application/problem+json`."""

from http import HTTPStatus
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from toolfleet_registry.contracts import EffectState

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:toolfleet:problem:"


class ProblemBody(BaseModel):
    """What is wrong with a request. Nothing of it has happened, unless `effect_state` says otherwise."""

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

    def __init__(  # noqa: PLR0913 - what RFC 9457 and a `ToolResult` say of an error
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
            type=TYPE_PREFIX + self.error_code.replace("_", "-"),
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
        """The HTTP answer."""
        headers = dict(self.headers)
        if self.retry_after_seconds is not None:
            headers.setdefault("retry-after", str(max(1, round(self.retry_after_seconds + 0.5))))
        if self.closes:
            headers["connection"] = "close"
        text = self.body(instance).model_dump_json(exclude_none=True)
        return Response(text, self.status, headers, media_type=MEDIA_TYPE)


def title_of(status: int) -> str:
    """An HTTP status in words."""
    return HTTPStatus(status).phrase


def not_found(detail: str, *, code: Literal["not_found", "unknown_tool"] = "not_found", **rest: Any) -> Problem:
    """Return the problem of a missing object, or of another user's: both look alike."""
    return Problem(404, code, detail, **rest)


def invalid_request(detail: str, *, hint: str | None = None) -> Problem:
    """The request itself is wrong: its body, its query or a header."""
    return Problem(400, "invalid_request", detail, hint=hint)


_LONGEST_INSTANCE = 512  # characters: what comes back must not be as long as what came
