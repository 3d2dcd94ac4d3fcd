"""Admits whoever has the one key that was made when the gateway started."""

import hashlib
import hmac
from dataclasses import dataclass

from starlette.datastructures import Headers

from toolfleet_gateway.http.identities import CallerIdentity
from toolfleet_gateway.http.problems import Problem
from toolfleet_registry.contracts import Caller

_OWNER = Caller(user_id="local", permission="owner", allowed_modules="*")


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """Who has the generated key: they may do everything, also in other names."""

    caller: Caller = _OWNER

    def caller_for(self, user_id: str | None) -> Caller:
        """As `CallerIdentity`."""
        return self.caller if user_id is None else self.caller.model_copy(update={"user_id": user_id})


class GeneratedKey:
    """As `RequestAuthenticator`: knows one key, by its digest."""

    def __init__(self, text: str) -> None:
        self._digest = hashlib.sha256(text.encode()).digest()

    async def authenticate(self, headers: Headers) -> CallerIdentity:
        """As `RequestAuthenticator`."""
        scheme, _, text = headers.get("authorization", "").partition(" ")
        given = text.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        if not hmac.compare_digest(hashlib.sha256(given.encode()).digest(), self._digest):
            raise Problem(
                401,
                "unauthenticated",
                "The request has no valid key: send it as Authorization: Bearer.",
                headers={"www-authenticate": 'Bearer realm="toolfleet"'},
            )
        return KeyHolder()
