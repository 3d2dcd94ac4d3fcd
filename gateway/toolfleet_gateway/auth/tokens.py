"""Verifies the tokens of an OAuth issuer by its public keys: signature, audience, expiry, and the claims about its holder."""

import asyncio
import contextlib
import hashlib
import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args
from urllib.parse import urlsplit

import httpx
import jwt
from jwt.types import JWKDict

from toolfleet_gateway.auth.identity import LONGEST_TOKEN, AuthRefused, Identity, unavailable
from toolfleet_registry.access import LEAST_RATE, MOST_LIMIT, MOST_MODULES, ROLES, Role
from toolfleet_registry.config.gateway_settings import DEFAULT_CLAIMS, ClaimUse, is_private_url
from toolfleet_registry.contracts import Caller, Level
from toolfleet_registry.errors import BodyTooLarge, BodyUnreadable
from toolfleet_registry.manifests.http_get import NoAnswer, requested
from toolfleet_registry.policy.call_faults import LONGEST
from toolfleet_registry.system import fleet_clock
from toolfleet_registry.system.http_bodies import loads_strict, read_body
from toolfleet_registry.system.loggers import get_logger

_log = get_logger(__name__)

_DOCUMENT_SECONDS = 5.0  # in all: requests may be waiting for it
_MOST_DOCUMENT_BYTES = 256 * 1024
_OK = 200

_MOST_KEYS: Final = 100
"""The most keys that a set may have: each refresh reads all of them."""

_RSA_BITS = 2048  # a shorter key can be broken
_LONGEST_ID = 256
_CURVES = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}
_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_PUBLIC = {"RSA": ("n", "e"), "EC": ("crv", "x", "y"), "OKP": ("crv", "x")}

REFRESH_SECONDS = 600.0
"""The most age of keys: a key that its issuer has withdrawn counts for so long."""

PAUSE_SECONDS = 10.0
"""The pause between fetches for an unknown key id: a client that invents ids must not cause a fetch for each."""

_AWAY_SECONDS = 1.0  # after a failed refresh: a request with an unknown key waits for the next one
_PATIENCE_SECONDS = 6.0  # of a request with an unknown key: more than one document may take

_LEEWAY_SECONDS: Final = 30
"""The seconds by which the issuer's clock may differ from ours."""

MOST_GOOD: Final = 1000
"""The number of tokens that are remembered as valid, until they end or the issuer's keys are read again."""

_TYPES = frozenset({"jwt", "at+jwt", "application/at+jwt", "application/jwt"})
# A key that comes with the token proves nothing, and an extension that a token insists on is one that we do not have.
_REFUSED_HEADERS = frozenset({"crit", "jwk", "jku", "x5u", "x5c", "b64", "zip", "enc"})
_SEGMENTS = 3

_jws = jwt.PyJWS()

_LEVELS: tuple[Level, ...] = get_args(Level)  # the lowest first


class _NoDocument(Exception):
    """There is no such document; its text says why."""


class _DocumentNotFound(_NoDocument):
    """The server has answered that there is no such document."""


async def _get_document(url: str) -> dict[str, Any]:
    """Get a document that is an object. Raises `_NoDocument`."""
    try:
        async with (
            asyncio.timeout(_DOCUMENT_SECONDS),
            requested(
                httpx.URL(url), headers={"accept": "application/json"}, connect_seconds=_DOCUMENT_SECONDS
            ) as answer,
        ):
            if answer.status != _OK:
                kind = _DocumentNotFound if answer.status // 100 == 4 else _NoDocument  # noqa: PLR2004 - their class
                raise kind(f"{url} answers {answer.status}")
            body = await read_body(answer.headers, answer.chunk, _MOST_DOCUMENT_BYTES)
        document = loads_strict(body)
    except (NoAnswer, BodyTooLarge, BodyUnreadable, ValueError) as exc:
        raise _NoDocument(f"{url}: {exc}") from exc
    except TimeoutError as exc:
        raise _NoDocument(f"{url}: no answer within {_DOCUMENT_SECONDS:g} s") from exc
    except (httpx.InvalidURL, OSError) as exc:
        raise _NoDocument(f"{url}: {exc}") from exc
    if not isinstance(document, dict):
        raise _NoDocument(f"{url} is no JSON object")
    return document


@dataclass(frozen=True, slots=True)
class _IssuerKey:
    """A public key, and the algorithms that go with it and no others: what confuses them is an attack."""

    key_id: str | None
    algorithms: frozenset[str]
    key: Any


def _read_key_set(document: Mapping[str, Any], allowed: Collection[str]) -> list[_IssuerKey]:
    """Return the keys for signatures by allowed algorithms; other keys, secrets and unreadable entries are left out."""
    listed = document.get("keys")
    if not isinstance(listed, Sequence):
        return []
    found = (_read(each, allowed) for each in listed[:_MOST_KEYS] if isinstance(each, Mapping))
    return [key for key in found if key is not None]


def _read(fields: Mapping[str, Any], allowed: Collection[str]) -> _IssuerKey | None:
    key_id, use = fields.get("kid"), fields.get("use", "sig")
    operations = fields.get("key_ops", ["verify"])
    if use != "sig" or not isinstance(operations, Sequence) or "verify" not in operations:
        return None
    if key_id is not None and (not isinstance(key_id, str) or len(key_id) > _LONGEST_ID):
        return None
    algorithms = _algorithms_of(fields) & frozenset(allowed)
    return _public_key(fields, key_id, algorithms) if algorithms else None


def _algorithms_of(fields: Mapping[str, Any]) -> frozenset[str]:
    """Return the algorithms that a key of its kind can have; the one that it names, if it does."""
    match fields.get("kty"), fields.get("crv"):
        case "RSA", _:
            fitting = frozenset(_RSA)
        case "EC", str(curve):
            fitting = frozenset({_CURVES[curve]} if curve in _CURVES else ())
        case "OKP", "Ed25519":
            fitting = frozenset({"EdDSA"})
        case _:
            return frozenset()
    named = fields.get("alg")
    return fitting if named is None else fitting & {named if isinstance(named, str) else ""}


def _public_key(fields: Mapping[str, Any], key_id: str | None, algorithms: frozenset[str]) -> _IssuerKey | None:
    kind: str = fields["kty"]
    public: JWKDict = {"kty": kind, **{name: fields.get(name) for name in _PUBLIC[kind]}}
    try:
        key = jwt.PyJWK(public, min(algorithms)).key
    except (jwt.PyJWTError, TypeError, ValueError, AttributeError):  # with any fault in it
        return None
    if kind == "RSA" and key.key_size < _RSA_BITS:
        return None
    return _IssuerKey(key_id, algorithms, key)


async def _find_jwks_url(issuer: str) -> str:
    """Return the URL of its keys. Raises `_NoDocument`."""
    last: _NoDocument = _DocumentNotFound(f"{issuer} has no metadata")
    for url in _metadata_urls(issuer):
        try:
            return _jwks_url_of(issuer, await _get_document(url), url)
        except _DocumentNotFound as exc:
            last = exc
    raise last


def _metadata_urls(issuer: str) -> tuple[str, str]:
    parts = urlsplit(issuer)
    path = parts.path.rstrip("/")
    origin = f"{parts.scheme}://{parts.netloc}"
    return (
        f"{origin}/.well-known/oauth-authorization-server{path}",
        f"{origin}{path}/.well-known/openid-configuration",
    )


def _jwks_url_of(issuer: str, document: dict[str, Any], url: str) -> str:
    if document.get("issuer") != issuer:  # otherwise the server of one could speak for the other
        raise _NoDocument(f"{url} is of another issuer")
    found = document.get("jwks_uri")
    if not isinstance(found, str) or not is_private_url(found):
        raise _NoDocument(f"{url} names no jwks_uri with https://")
    return found


class IssuerKeys:
    """The issuer's keys, for one event loop. `jwks_url`: their address, if the issuer's metadata is not used."""

    def __init__(self, issuer: str, *, jwks_url: str | None, algorithms: Collection[str]) -> None:
        self._issuer, self._jwks_url, self._algorithms = issuer, jwks_url, frozenset(algorithms)
        self._keys: Sequence[_IssuerKey] = ()
        self.readings = 0
        """How often they were read: a key that has verified something may be gone after the next time."""
        self._read_at = self._asked_at = -math.inf
        self._is_away = False
        self._asking: asyncio.Task[None] | None = None

    async def find(self, key_id: str | None, algorithm: str) -> _IssuerKey | None:
        """Return the key of that id and algorithm, without an id the only one; `None` if the issuer has no such key.

        Raises `AuthRefused`, 503, if no keys were ever had.
        """
        self.refresh_old()
        found = self._fitting(key_id, algorithm)
        if found is None:
            await self._refresh()
            found = self._fitting(key_id, algorithm)
        if found is None and not self._keys:
            raise unavailable("The keys of the tokens' issuer cannot be read")
        return found

    def refresh_old(self) -> None:
        """Refresh old keys in the background."""
        due_at = max(self._read_at + REFRESH_SECONDS, self._asked_at + PAUSE_SECONDS)
        if self._asking is None and fleet_clock.suspend_aware() > due_at:
            self._ask()

    async def aclose(self) -> None:
        """End a question that is under way."""
        if self._asking is not None:
            self._asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._asking

    def _fitting(self, key_id: str | None, algorithm: str) -> _IssuerKey | None:
        fitting = [key for key in self._keys if algorithm in key.algorithms and key_id in {None, key.key_id}]
        return fitting[0] if len(fitting) == 1 or (fitting and key_id is not None) else None

    async def _refresh(self) -> None:
        """Wait for a refresh that starts now, or is under way; unless one ended a moment ago."""
        came_at, readings = fleet_clock.suspend_aware(), self.readings
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_SECONDS):
                while self.readings == readings and (self._asking is not None or self._asked_at < came_at):
                    if self._asking is not None:
                        await asyncio.wait({self._asking})
                    elif (rest := self._rest()) <= 0:
                        self._ask()
                    elif self._is_away:  # it may be back by now
                        await asyncio.sleep(rest)
                    else:
                        break

    def _rest(self) -> float:
        """Return for how many seconds no refresh is made for an unknown key."""
        return self._asked_at + (_AWAY_SECONDS if self._is_away else PAUSE_SECONDS) - fleet_clock.suspend_aware()

    def _ask(self) -> None:
        self._asked_at = fleet_clock.suspend_aware()
        self._asking = asyncio.create_task(self._read(), name="toolfleet-issuer-keys")
        self._asking.add_done_callback(self._forget_question)

    def _forget_question(self, _: object) -> None:
        self._asking = None

    async def _read(self) -> None:
        """Get the keys. Each document has its own deadline."""
        try:
            self._keys = await self._get_keys()
            self._read_at = fleet_clock.suspend_aware()
            self.readings += 1
            self._is_away = False
        except _NoDocument as exc:
            self._is_away = True
            _log.warning("issuer_keys_unreadable", issuer=self._issuer, error=str(exc), known=len(self._keys))

    async def _get_keys(self) -> Sequence[_IssuerKey]:
        url = self._jwks_url or await _find_jwks_url(self._issuer)
        keys = _read_key_set(await _get_document(url), self._algorithms)
        if not keys:
            raise _NoDocument(f"{url} has no key for {', '.join(sorted(self._algorithms))}")
        return keys


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
        """Return the header of a token. It is not verified yet."""
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
    """Return the claim of that name, else the value at the path that its dots describe, else `None`."""
    if name in claims:
        return claims[name]
    at: Any = claims
    for part in name.split("."):
        at = at.get(part) if isinstance(at, Mapping) else None
    return at


def _words_of(value: Any) -> list[str]:
    """Return the words of a claim: a list of texts, or one text with spaces or commas. Other values have no words."""
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
    """Parse a limit. An invalid one refuses the token, which would otherwise have no limit."""
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
    """Return the highest of the named permissions, or `guest` without any."""
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
