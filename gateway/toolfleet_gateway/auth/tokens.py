"""Verifies the tokens of an OAuth issuer: signature, audience, expiry, and the claims about its holder."""

import hashlib
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

import jwt

from toolfleet_gateway.auth.credentials import LONGEST_TOKEN
from toolfleet_gateway.auth.identity import Identity
from toolfleet_gateway.auth.issuer_keys import IssuerKeys
from toolfleet_gateway.auth.refusals import AuthRefused
from toolfleet_registry.access.api_key import LEAST_RATE, MOST_LIMIT, MOST_MODULES
from toolfleet_registry.access.roles import ROLES, Role
from toolfleet_registry.config.gateway_settings import DEFAULT_CLAIMS, ClaimUse
from toolfleet_registry.contracts import Caller, Level
from toolfleet_registry.policy.call_faults import LONGEST
from toolfleet_registry.system.http_bodies import loads_strict
from toolfleet_registry.time import fleet_clock

_LEEWAY_SECONDS: Final = 30
"""By how much clocks may differ: an issuer's, and ours."""

MOST_GOOD: Final = 1000
"""Tokens that are known to be good, until they end or the issuer's keys are read anew."""

_TYPES = frozenset({"jwt", "at+jwt", "application/at+jwt", "application/jwt"})
# A key that comes with the token proves nothing, and an extension that a token insists on is one that we do not have.
_REFUSED_HEADERS = frozenset({"crit", "jwk", "jku", "x5u", "x5c", "b64", "zip", "enc"})
_SEGMENTS = 3

_jws = jwt.PyJWS()

_LEVELS: tuple[Level, ...] = get_args(Level)  # the lowest first


@dataclass(frozen=True, slots=True)
class TokenVerifier:
    """Takes tokens of one issuer, for one of these audiences. `scopes`: what all of them must have."""

    keys: IssuerKeys
    issuer: str
    audiences: frozenset[str]
    algorithms: frozenset[str]
    scopes: tuple[str, ...] = ()
    claims: Mapping[ClaimUse, str] = field(default_factory=lambda: DEFAULT_CLAIMS)
    now: Callable[[], float] = field(default=lambda: fleet_clock.now())  # noqa: PLW0108 - read when it is called

    # Good tokens by their digests: to verify one takes longer than all else that a gateway does for a request.
    _good: OrderedDict[bytes, tuple[int, Identity]] = field(default_factory=OrderedDict, init=False, repr=False)

    async def verify(self, token: str, *, resources: frozenset[str] = frozenset()) -> Identity:
        """Verify a token and return its sender.

        It may be for one of the requested `resources` as well as for an audience.

        Raises `AuthRefused`: 401 for an invalid token, 403 for too little scope, 503 without keys.
        """
        self.keys.refresh_old()
        about = "\n".join((token, *sorted(resources)))
        digest = hashlib.sha256(about.encode("utf-8", "surrogatepass")).digest()
        readings, known = self._good.get(digest, (-1, None))
        if known is not None and readings == self.keys.readings and self.now() < (known.expires_at or 0):
            return known
        before = self.keys.readings  # its key may be withdrawn meanwhile
        identity = await self._verify(token, self.audiences | resources)
        self._good[digest] = before, identity
        while len(self._good) > MOST_GOOD:
            self._good.popitem(last=False)
        return identity

    async def _verify(self, token: str, audiences: frozenset[str]) -> Identity:
        claims = await self._signed_claims(token)
        expires_at = self._check_claims(claims, audiences)
        granted = {*_words_of(claim_of(claims, "scope")), *_words_of(claim_of(claims, "scp"))}
        if not granted >= {*self.scopes}:
            raise AuthRefused("insufficient-scope", "The token has not all scopes.", scopes=self.scopes)
        return identity_of(claims, self.claims, expires_at=expires_at)

    async def _signed_claims(self, token: str) -> dict[str, Any]:
        header = self._header(token)
        algorithm = header["alg"]
        key = await self.keys.find(header.get("kid"), algorithm)
        if key is None:
            raise _invalid("its issuer has no such key")
        try:
            payload = _jws.decode_complete(token, key.key, algorithms=[algorithm])["payload"]
            claims = loads_strict(payload)
        except (jwt.PyJWTError, ValueError, TypeError) as exc:
            raise _invalid("its signature is not its issuer's") from exc
        if not isinstance(claims, dict):
            raise _invalid("it has no claims")
        return claims

    def _header(self, token: str) -> dict[str, Any]:
        """The header of a token that may be one. Nothing in it is proved yet."""
        if len(token) > LONGEST_TOKEN or token.count(".") != _SEGMENTS - 1:
            raise _invalid("it is no signed JWT")
        try:
            header = _jws.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError, TypeError) as exc:
            raise _invalid("it is no signed JWT") from exc
        kind, algorithm = header.get("typ", "JWT"), header.get("alg")
        if not isinstance(kind, str) or kind.lower() not in _TYPES:
            raise _invalid("it is a token of another type")
        if not isinstance(algorithm, str) or algorithm not in self.algorithms:
            raise _invalid("it is not signed as its issuer's tokens are")
        if _REFUSED_HEADERS & header.keys() or not isinstance(header.get("kid", ""), str):
            raise _invalid("its header has what is not taken here")
        return header

    def _check_claims(self, claims: Mapping[str, Any], audiences: frozenset[str]) -> float:
        """Raise unless the token is of this issuer, for one of these audiences, and now. Returns when it ends."""
        if claims.get("iss") != self.issuer:
            raise _invalid("it is of another issuer")
        audience = claims.get("aud")
        named = [audience] if isinstance(audience, str) else audience if isinstance(audience, list) else []
        if audiences.isdisjoint(each for each in named if isinstance(each, str)):
            raise _invalid("it is for another audience")
        now, expires_at = self.now(), _moment(claims, "exp")
        if expires_at is None:
            raise _invalid("it has no end")
        if now >= expires_at + _LEEWAY_SECONDS:
            raise _invalid("it has expired")
        if max(_moment(claims, "nbf") or 0, _moment(claims, "iat") or 0) > now + _LEEWAY_SECONDS:
            raise _invalid("it is not valid yet")
        return expires_at + _LEEWAY_SECONDS


def _moment(claims: Mapping[str, Any], name: str) -> float | None:
    at = claims.get(name)
    if at is None:
        return None
    if isinstance(at, bool) or not isinstance(at, int | float) or not math.isfinite(at):
        raise _invalid(f"its claim {name!r} is no time")
    return at


def _invalid(reason: str) -> AuthRefused:
    return AuthRefused("invalid-token", f"The token is not good here: {reason}.")


def identity_of(claims: Mapping[str, Any], names: Mapping[ClaimUse, str], *, expires_at: float) -> Identity:
    """Return the sender of a token with these verified claims. Raises `AuthRefused` if they name no user."""
    found = {use: claim_of(claims, name) for use, name in names.items()}
    user_id = _text(found["user_id"], names["user_id"])
    if user_id is None:
        raise AuthRefused("invalid-token", f"The token has no claim {names['user_id']!r}.")
    caller = Caller(
        user_id=user_id,
        permission=_level(found["permission"]),
        allowed_modules=_modules(found["modules"], names["modules"]),
        agent=_text(found["agent"], names["agent"]),
    )
    return Identity(
        caller=caller,
        role=_role(found["role"]),
        subject=user_id,
        conversation_id=_text(found["conversation_id"], names["conversation_id"]),
        expires_at=expires_at,
        acts_for_others=found["acts_for_others"] is True,
        requests_per_second=_limit(found["requests_per_second"], names["requests_per_second"]),
        streams=_whole_limit(found["streams"], names["streams"]),
    )


def claim_of(claims: Mapping[str, Any], name: str) -> Any:
    """The claim of that name; if there is none, what its dots lead to; `None` if there is nothing."""
    if name in claims:
        return claims[name]
    at: Any = claims
    for part in name.split("."):
        at = at.get(part) if isinstance(at, Mapping) else None
    return at


def _words_of(value: Any) -> list[str]:
    """The words of a claim: a list of texts, or one text with spaces or commas between them. Others have none."""
    if isinstance(value, str):
        return value.replace(",", " ").split()
    return [word for word in value if isinstance(word, str)] if isinstance(value, Sequence) else []


def _text(value: Any, name: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST or not value.isprintable():
        raise AuthRefused("invalid-token", f"The token's claim {name!r} must be a text of 1 to {LONGEST} characters.")
    return value


def _limit(value: Any, name: str, least: float = LEAST_RATE) -> float | None:
    """A limit that is not understood refuses the token: without it, it would have none."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= MOST_LIMIT:
        raise AuthRefused("invalid-token", f"The token's claim {name!r} must be a number, as a key's limit.")
    return float(value)


def _whole_limit(value: Any, name: str) -> int | None:
    limit = _limit(value, name, least=0)
    if limit is not None and not limit.is_integer():
        raise AuthRefused("invalid-token", f"The token's claim {name!r} must be a whole number.")
    return None if limit is None else int(limit)


def _level(value: Any) -> Level:
    """The highest of those that are named, and a guest without any."""
    words = _words_of(value)
    named: list[Level] = [level for level in _LEVELS if words.count(level)]
    return named[-1] if named else "guest"


def _role(value: Any) -> Role:
    words = _words_of(value)
    named: list[Role] = [role for role in ROLES if words.count(role)]
    return named[-1] if named else "none"


def _modules(value: Any, name: str) -> frozenset[str] | Literal["*"] | None:
    """Return the named modules; `None`, which means all that the permission allows, only if the claim is missing."""
    if value is None:
        return None
    words = _words_of(value)
    if isinstance(value, Sequence) and not isinstance(value, str) and len(words) != len(value):
        raise AuthRefused("invalid-token", f"The token's claim {name!r} must be a list of modules' names.")
    if not isinstance(value, str | Sequence) or len(words) > MOST_MODULES:
        raise AuthRefused("invalid-token", f"The token's claim {name!r} must be at most {MOST_MODULES} names, or *.")
    return "*" if "*" in words else frozenset(words)
