"""Defines why a request is not let in: a status, a problem of RFC 9457, and the headers that go with it.

No text here repeats what a client has sent: it may be a secret.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from toolfleet_registry.errors import FleetError

AuthProblem = Literal[
    "repeated-credentials",
    "credentials-in-query",
    "malformed-credentials",
    "missing-credentials",
    "invalid-key",
    "invalid-token",
    "insufficient-scope",
    "acts-for-others",
    "agent-of-key",
    "invalid-user",
    "too-many-requests",
    "too-many-streams",
    "auth-unavailable",
]
"""What is wrong with who sends a request: the last part of a problem's `type`."""

STATUSES: Mapping[AuthProblem, int] = {
    "repeated-credentials": 400,
    "credentials-in-query": 400,
    "malformed-credentials": 400,
    "missing-credentials": 401,
    "invalid-key": 401,
    "invalid-token": 401,
    "insufficient-scope": 403,
    "acts-for-others": 403,
    "agent-of-key": 403,
    "invalid-user": 400,
    "too-many-requests": 429,
    "too-many-streams": 429,
    "auth-unavailable": 503,
}
"""The HTTP status of each."""


class AuthRefused(FleetError):
    """A request is not let in. `problem` says why to programs, the message to people; `scopes` is what a token lacks."""

    def __init__(
        self,
        problem: AuthProblem,
        message: str,
        *,
        scopes: Sequence[str] = (),
        retry_after_seconds: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.problem: AuthProblem = problem
        self.status = STATUSES[problem]
        self.scopes = tuple(scopes)
        self.retry_after_seconds = retry_after_seconds
        self.headers = dict(headers or {})
        if retry_after_seconds is not None:
            self.headers["Retry-After"] = str(max(int(-(-retry_after_seconds // 1)), 1))
        super().__init__(message)


def unavailable(what: str) -> AuthRefused:
    """Return the refusal of a request that cannot be judged now; in a second perhaps."""
    return AuthRefused("auth-unavailable", f"{what}; try again.", retry_after_seconds=1)
