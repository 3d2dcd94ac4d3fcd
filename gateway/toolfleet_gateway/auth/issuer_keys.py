"""Keeps an issuer's public keys: asks for them rarely, takes up new ones, and forgets none because the issuer is away."""

import asyncio
import contextlib
import math
from collections.abc import Collection, Sequence

from toolfleet_gateway.auth.issuer_metadata import GetDocument, find_jwks_url
from toolfleet_gateway.auth.json_document import NoDocument, get_document
from toolfleet_gateway.auth.key_sets import IssuerKey, read_key_set
from toolfleet_gateway.auth.refusals import unavailable
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.time import fleet_clock

REFRESH_SECONDS = 600.0
"""How old keys may be: one that its issuer has withdrawn counts for so long still."""

PAUSE_SECONDS = 10.0
"""Between two questions because of an unknown key: whoever invents key ids must not have the issuer asked for each."""

_AWAY_SECONDS = 1.0  # after a question in vain: whoever has a key that nobody knows waits for the next one
_PATIENCE_SECONDS = 6.0  # of a request whose key nobody knows: more than one document may take

_log = get_logger(__name__)


class IssuerKeys:
    """For one event loop. `jwks_url`: where they are, if the issuer's metadata shall not be asked."""

    def __init__(
        self,
        issuer: str,
        *,
        jwks_url: str | None,
        algorithms: Collection[str],
        get: GetDocument = get_document,
    ) -> None:
        self._issuer, self._jwks_url, self._algorithms, self._get = issuer, jwks_url, frozenset(algorithms), get
        self._keys: Sequence[IssuerKey] = ()
        self.readings = 0
        """How often they were read: a key that has verified something may be gone after the next time."""
        self._read_at = self._asked_at = -math.inf
        self._is_away = False
        self._asking: asyncio.Task[None] | None = None

    async def find(self, key_id: str | None, algorithm: str) -> IssuerKey | None:
        """The key of that id, for that algorithm; without an id the only one there is. `None`: the issuer has no such key.

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
        """Have keys that are old read anew, beside whoever wants one."""
        due_at = max(self._read_at + REFRESH_SECONDS, self._asked_at + PAUSE_SECONDS)
        if self._asking is None and fleet_clock.suspend_aware() > due_at:
            self._ask()

    async def aclose(self) -> None:
        """End a question that is under way."""
        if self._asking is not None:
            self._asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._asking

    def _fitting(self, key_id: str | None, algorithm: str) -> IssuerKey | None:
        fitting = [key for key in self._keys if algorithm in key.algorithms and key_id in {None, key.key_id}]
        return fitting[0] if len(fitting) == 1 or (fitting and key_id is not None) else None

    async def _refresh(self) -> None:
        """Wait for a question that begins now, or has begun before and is answered; unless one was answered a moment ago."""
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
        """For how many seconds it is not asked because of an unknown key."""
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
        except NoDocument as exc:
            self._is_away = True
            _log.warning("issuer_keys_unreadable", issuer=self._issuer, error=str(exc), known=len(self._keys))

    async def _get_keys(self) -> Sequence[IssuerKey]:
        url = self._jwks_url or await find_jwks_url(self._issuer, self._get)
        keys = read_key_set(await self._get(url), self._algorithms)
        if not keys:
            raise NoDocument(f"{url} has no key for {', '.join(sorted(self._algorithms))}")
        return keys
