"""Seals a session of the console into a cookie and opens it, until its time is over or its person has signed out."""

import hmac
import json
import secrets
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from redis.asyncio import Redis
from starlette.requests import Request
from starlette.responses import Response

from toolfleet_gateway.auth.own_secrets import FleetCodec, NotSealedHere
from toolfleet_registry.config.gateway_settings import GatewaySettings
from toolfleet_registry.redis.keys import GatewayKeys
from toolfleet_registry.redis.servers import answering
from toolfleet_registry.system import fleet_clock

COOKIE: Final = "toolfleet_console"
"""Holds the session."""

LASTS_SECONDS: Final = 12 * 3600
"""A working day: then a person signs in again."""

_LONGEST_COOKIE: Final = 3_900
"""Characters: browsers drop a cookie of more than 4,096 bytes with its name and attributes."""

_SECONDS = 2.0  # for an answer of Redis

SAID, THEME = f"{COOKIE}_said", f"{COOKIE}_theme"
"""What came of the last change, and whether pages are light or dark."""

_YEAR = 365 * 86_400
_SAID_SECONDS = 60


class CredentialTooLong(ValueError):
    """A token does not fit into a cookie."""


@dataclass(frozen=True, slots=True)
class ConsoleSession:
    """A signed-in session. `csrf` is in each of its forms, and otherwise secret."""

    credential: str = field(repr=False)
    csrf: str = field(repr=False)
    until: float

    def is_own(self, csrf: str) -> bool:
        """Return whether a form is one that this session was shown."""
        return hmac.compare_digest(self.csrf.encode(), csrf.encode("utf-8", "replace"))


class ConsoleSessions:
    """The console's sessions.

    A session is stored in its cookie. Redis has only those that have signed out, each until its normal end.

    It fails closed: without Redis no session is found. Its key is checked with each request, in addition.
    """

    def __init__(self, codec: FleetCodec, redis: Redis, keys: GatewayKeys) -> None:
        self._codec = codec
        self._redis = redis
        self._keys = keys

    async def begin(self, credential: str) -> str:
        """Return the cookie of a new session. Raises `CredentialTooLong` and `FleetUnavailable`."""
        facts = {"key": credential, "csrf": secrets.token_urlsafe(24), "until": fleet_clock.now() + LASTS_SECONDS}
        sealed = await self._codec.seal(zlib.compress(json.dumps(facts).encode()))
        if len(sealed) > _LONGEST_COOKIE:
            raise CredentialTooLong("The token is too long for a session: sign in with an API key.")
        return sealed

    async def find(self, cookies: Mapping[str, str]) -> ConsoleSession | None:
        """Return the session of these cookies, if it is valid and has not ended. Raises `FleetUnavailable`."""
        try:
            facts = json.loads(zlib.decompress(await self._codec.unseal(cookies[COOKIE])))
            session = ConsoleSession(facts["key"], facts["csrf"], facts["until"])
        except (KeyError, TypeError, ValueError, NotSealedHere, zlib.error):
            return None
        return None if await self.has_ended(session) else session

    async def has_ended(self, session: ConsoleSession) -> bool:
        """Return whether its time is over, or its user has signed out, at any gateway. Raises `FleetUnavailable`."""
        if fleet_clock.now() >= session.until:
            return True
        async with answering(self._redis, seconds=_SECONDS):
            return bool(await self._redis.exists(self._keys.console_signed_out(session.csrf)))

    async def end(self, session: ConsoleSession) -> None:
        """End a session at every gateway, also for copies of its cookie. Raises `FleetUnavailable` if it has not ended."""
        async with answering(self._redis, seconds=_SECONDS):  # for all its hours: clocks of gateways differ
            await self._redis.set(self._keys.console_signed_out(session.csrf), 1, ex=LASTS_SECONDS)


class ConsoleCookies:
    """The cookies of a console at `path`."""

    def __init__(self, settings: GatewaySettings, path: str) -> None:
        self._path = path
        self._is_known_https = (settings.gateway_resource or "").startswith("https://")

    def sign_in(self, request: Request, response: Response, sealed: str) -> None:
        """Have the browser send the session."""
        self._put(request, response, COOKIE, sealed, LASTS_SECONDS)

    def sign_out(self, request: Request, response: Response) -> None:
        """Have it forgotten."""
        self._put(request, response, COOKIE, "", 0)

    def say(self, request: Request, response: Response, sealed: str) -> None:
        """Have the next page say what came of a change; an empty text: nothing any more."""
        self._put(request, response, SAID, sealed, _SAID_SECONDS if sealed else 0)

    def choose_theme(self, request: Request, response: Response, theme: str) -> None:
        """Keep how pages are to look."""
        self._put(request, response, THEME, theme, _YEAR)

    def _put(self, request: Request, response: Response, name: str, value: str, seconds: int) -> None:
        response.set_cookie(
            name,
            value,
            max_age=seconds,
            path=self._path,
            secure=self._is_https(request),
            httponly=True,
            samesite="strict",
        )

    def _is_https(self, request: Request) -> bool:
        """Return whether the request came by https. A proxy's header is trusted: it can only make a cookie stricter."""
        forwarded = request.headers.get("x-forwarded-proto", "").partition(",")[0].strip().lower()
        return self._is_known_https or "https" in {request.url.scheme, forwarded}
