"""Defines the sender of a request: its credential, its caller, its rights; or why the request is refused."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal
from urllib.parse import parse_qsl

from toolfleet_registry.access import BEGIN, ApiKey, KeyMaker, Role, has_role
from toolfleet_registry.contracts import Caller
from toolfleet_registry.errors import FleetError
from toolfleet_registry.policy.call_faults import LONGEST, sees_calls_of

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
"""The reason why a sender is refused: the last part of a problem's `type`."""

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
"""The HTTP status of each reason."""

LONGEST_TOKEN = 16 * 1024
"""The most characters of a token: more than any issuer's, and few enough to be read before the sender is known."""

_BEARER = re.compile(r"bearer +([A-Za-z0-9._~+/-]+=*)", re.IGNORECASE)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9!#$%&'*.^_`|~+-]*")
_NAMES = frozenset({"access_token", "api_key", "api-key", "apikey", "x-api-key", "authorization", "bearer"})
_TOKEN = re.compile(r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")
_MOST_FIELDS = 1000


@dataclass(frozen=True, slots=True)
class Identity:
    """An authenticated sender, by a key or by a token: one of `key_id` and `subject` is there.

    It holds neither the key nor the token.
    """

    caller: Caller
    role: Role = "none"
    key_id: str | None = None
    subject: str | None = None
    conversation_id: str | None = None
    expires_at: float | None = None
    acts_for_others: bool = False
    requests_per_second: float | None = None
    streams: int | None = None

    @classmethod
    def of_key(cls, key: ApiKey) -> "Identity":
        """Return the identity of an API key's holder."""
        return cls(
            caller=key.caller,
            role=key.role,
            key_id=key.id,
            expires_at=key.expires_at,
            acts_for_others=key.acts_for_others,
            requests_per_second=key.requests_per_second,
            streams=key.streams,
        )

    @property
    def name(self) -> str:
        """The name in logs and limits: `key <id>` or `token <subject>`."""
        return f"token {self.subject}" if self.key_id is None else f"key {self.key_id}"

    def has_role(self, needed: Role) -> bool:
        """Return whether it has at least this role."""
        return has_role(self.role, needed)

    def sees_calls_of(self, tool_name: str) -> bool:
        """Return whether it is shown its user's calls of the tool, by any key."""
        return sees_calls_of(self.caller, tool_name)

    def caller_for(self, user_id: str | None, agent: str | None = None) -> Caller:
        """Return the caller that it acts for: `user_id` and `agent`, as a request names them, or its own for `None`.

        Raises `AuthRefused`, 403, for another user's unless it acts for others, and for another agent than its own; one
        below its own (`own/other`) is accepted. 400 for an invalid user id.
        """
        if agent is not None and agent != (own := self.caller.agent):
            if own is not None and not agent.startswith(f"{own}/"):
                raise AuthRefused("agent-of-key", "This key is another agent's: leave agent out.")
            return replace(self, caller=self.caller.model_copy(update={"agent": agent})).caller_for(user_id)
        if user_id is None or user_id == self.caller.user_id:
            return self.caller
        if not self.acts_for_others:
            raise AuthRefused("acts-for-others", "This key does not act for other users: leave user_id out.")
        if not 0 < len(user_id) <= LONGEST:
            raise AuthRefused("invalid-user", f"user_id must have 1 to {LONGEST} characters.")
        return self.caller.model_copy(update={"user_id": user_id})

    def key_maker(self) -> KeyMaker:
        """Return the rights that it may hand on to an API key that it makes."""
        return KeyMaker(
            name=self.name,
            user_id=self.caller.user_id,
            permission=self.caller.permission,
            allowed_modules=self.caller.allowed_modules,
            role=self.role,
            agent=self.caller.agent,
            expires_at=self.expires_at,
            acts_for_others=self.acts_for_others,
            requests_per_second=self.requests_per_second,
            streams=self.streams,
        )


class AuthRefused(FleetError):
    """A request is refused. `problem` says why to programs, the message to people; `scopes` is what a token lacks.

    No message repeats what a client has sent: it may be a secret.
    """

    def __init__(
        self,
        problem: AuthProblem,
        message: str,
        *,
        scopes: Sequence[str] = (),
        retry_after_seconds: float | None = None,
    ) -> None:
        self.problem: AuthProblem = problem
        self.status = STATUSES[problem]
        self.scopes = tuple(scopes)
        self.retry_after_seconds = retry_after_seconds
        self.headers = dict[str, str]()
        if retry_after_seconds is not None:
            self.headers["Retry-After"] = str(max(int(-(-retry_after_seconds // 1)), 1))
        super().__init__(message)


def unavailable(what: str) -> AuthRefused:
    """Return the refusal of a request that cannot be judged now; in a second perhaps."""
    return AuthRefused("auth-unavailable", f"{what}; try again.", retry_after_seconds=1)


@dataclass(frozen=True, slots=True)
class SentCredential:
    """A request's credential: the text of an API key, or a token."""

    kind: Literal["key", "token"]
    text: str = field(repr=False)


def read_credential(headers: Iterable[tuple[bytes, bytes]], query: bytes = b"") -> SentCredential | None:
    """Return the credential in the headers, as ASGI has them; `None` if there is none.

    Raises `AuthRefused`: for several, for one that cannot be read, and for one in the query, where logs and histories keep it.
    """
    _refuse_secrets_in(query)
    found = [(name.lower(), value) for name, value in headers if name.lower() in {b"authorization", b"x-api-key"}]
    if len(found) > 1:
        raise AuthRefused("repeated-credentials", "Send one Authorization header, or one X-API-Key, and nothing else.")
    if not found:
        return None
    (name, value) = found[0]
    text = value.decode("latin-1").strip()
    if len(text) > LONGEST_TOKEN:
        raise AuthRefused("invalid-token", f"The credential has more than {LONGEST_TOKEN} characters.")
    return _read_key(text) if name == b"x-api-key" else _read_authorization(text)


def _read_key(text: str) -> SentCredential:
    if not text or not text.isascii() or not text.isprintable() or "," in text or " " in text:
        raise AuthRefused("malformed-credentials", "X-API-Key must be one API key.")
    return SentCredential("key", text)


def _read_authorization(text: str) -> SentCredential | None:
    match = _BEARER.fullmatch(text)
    if match is not None:
        return SentCredential("key" if match[1].startswith(BEGIN) else "token", match[1])
    scheme = _SCHEME.match(text)
    if scheme is None or scheme[0].lower() == "bearer":
        raise AuthRefused("malformed-credentials", "Authorization must be: Bearer, a space, and one key or token.")
    return None  # another scheme, which is answered with those that there are


def _refuse_secrets_in(query: bytes) -> None:
    if not query:
        return
    try:
        fields = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise AuthRefused("credentials-in-query", f"The query has more than {_MOST_FIELDS} fields.") from None
    for name, value in fields:
        if name.lower() in _NAMES or value.startswith(BEGIN) or _TOKEN.search(value):
            raise AuthRefused(
                "credentials-in-query",
                "A key or token must be in a header: what stands in a URL is logged. Revoke it, as it may have been.",
            )
