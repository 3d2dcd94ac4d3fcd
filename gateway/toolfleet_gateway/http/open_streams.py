"""Holds the streams that are open here: bounds how many, and ends each with its own credential, and all with their gateway."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Literal

from toolfleet_gateway.auth.authenticator import Authenticator
from toolfleet_gateway.auth.identity import Identity
from toolfleet_gateway.auth.key_limits import KeyLimits
from toolfleet_gateway.auth.refusals import AuthRefused
from toolfleet_gateway.http.problems import Problem
from toolfleet_tasks.aio.closing import Closing

End = Literal["closing", "revoked"]

_FRACTION = 0.5  # of the streams, for a key without a limit of its own: no single key takes every stream
_WATCH_SECONDS = 0.7  # between two looks at each key: a revocation is effective within two seconds


class OpenStreams:
    """The open streams, at most `most`, and of each key as many as it may have open over all gateways."""

    def __init__(self, most: int, closing: Closing, authenticator: Authenticator, limits: KeyLimits) -> None:
        self._most = most
        self._closing = closing
        self._authenticator = authenticator
        self._limits = limits
        # By all that `is_live` judges: tokens of one subject end at times of their own.
        self._open: dict[tuple[str, float | None], tuple[Identity, set[asyncio.Future[End]]]] = {}
        self._of_holder = Counter[str]()
        self.count = 0

    @asynccontextmanager
    async def place(self, who: Identity) -> AsyncGenerator[asyncio.Future[End]]:
        """Hold a stream open in this block; the yielded future says when it must end: at once in a gateway that ends.

        A refusal would be an error to clients whose load balancer does not know yet. Raises `Problem` (503) if there is
        no room here, and `AuthRefused` (429) if the key may have no other. A key without a limit of its own may have
        half of the streams here.
        """
        if self.count >= self._most:
            detail = "So many streams are open here that no other can be."
            raise Problem(503, "busy", detail, retryable=True, retry_after_seconds=1)
        allowed = max(round(self._most * _FRACTION), 1)
        if who.streams is None and self._of_holder[who.name] >= allowed:
            detail = f"This key may have {allowed} streams open at once at a gateway, half of all: it has no limit of its own."
            raise AuthRefused("too-many-streams", detail, retry_after_seconds=1)
        self.count += 1
        self._of_holder[who.name] += 1
        ending: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        number = self._closing.tell(lambda: _end(ending, "closing"))
        credential = (who.name, who.expires_at)
        _, streams = self._open.setdefault(credential, (who, set()))
        streams.add(ending)
        try:
            async with self._limits.stream(who):
                yield ending
        finally:
            self.count -= 1
            self._of_holder[who.name] -= 1
            if not self._of_holder[who.name]:
                del self._of_holder[who.name]
            self._closing.forget(number)
            streams.discard(ending)
            if not streams and self._open.get(credential, (who, None))[1] is streams:
                del self._open[credential]

    async def watch(self) -> None:
        """End each stream whose own key was revoked, or own token has expired. Runs as long as the gateway does."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            for who, streams in list(self._open.values()):
                if not await self._is_live(who):
                    for ending in list(streams):
                        _end(ending, "revoked")

    async def _is_live(self, who: Identity) -> bool:
        try:
            return await self._authenticator.is_live(who)
        except AuthRefused:  # the keys cannot be read: neither could the client come again
            return True


def _end(ending: "asyncio.Future[End]", why: End) -> None:
    if not ending.done():
        ending.set_result(why)
