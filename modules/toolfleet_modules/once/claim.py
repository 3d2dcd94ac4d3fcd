"""Claims one call for this process, and renews the claim in the store while the call runs."""

import asyncio
import logging
import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

from toolfleet_registry.errors import StoreAway
from toolfleet_registry.once.patient_store import PatientStore
from toolfleet_registry.once.port import Record, State, TokenSeries
from toolfleet_registry.time import fleet_clock, machine_clock
from toolfleet_registry.time.shared_timers import shared_timers

_log = logging.getLogger("toolfleet.sdk")

# How long a process may be silent before its calls count as those of a dead one: a blocked loop must not reach that.
LEASE_SECONDS = 12.0
RENEW_SECONDS = 4.0


class RunClaim:
    """A call that was begun here. Its record says so for `LEASE_SECONDS` after the last renewal."""

    def __init__(self, store: PatientStore, call_id: str, fingerprint: str, *, is_repeatable: bool) -> None:
        self._store = store
        self._call_id = call_id
        self._is_first = True
        self._is_kept = False
        self._renewing: asyncio.Task[None] | None = None
        self._live_until = math.inf
        until = machine_clock.wall() + LEASE_SECONDS
        self._tokens = TokenSeries()
        self._record = Record("running", self._tokens.next(0), fingerprint, until, is_repeatable=is_repeatable)

    @property
    def token(self) -> str:
        """What its record has, if it came to be written."""
        return self._record.token

    def live_until(self) -> float:
        """Until when nobody else can have taken the call over, on the clock that counts suspension."""
        return self._live_until

    async def take(self, seen: Record | None, attempt: int, *, is_first: bool = True) -> bool:
        """Begin, for the call's `attempt`th attempt, in the place of the record that was `seen`.

        `is_first`: nothing was ever begun before. Raises `StoreAway`: it may have begun all the same.
        """
        self._is_first = is_first
        self._record = replace(
            self._record, token=self._tokens.next(attempt), until=machine_clock.wall() + LEASE_SECONDS
        )
        self._live_until = fleet_clock.suspend_aware() + LEASE_SECONDS
        return await self._store.swap(self._call_id, seen.token if seen else None, self._record)

    @asynccontextmanager
    async def kept(self) -> AsyncGenerator[None]:
        """Renewed meanwhile, as far as the store can be asked."""
        self._is_kept = True
        timer = shared_timers(asyncio.get_running_loop()).call_later(RENEW_SECONDS, self._begin_renewing)
        try:
            yield
        finally:
            self._is_kept = False  # also for a store that loses the cancellation
            timer.cancel()
            if self._renewing is not None:
                self._renewing.cancel()
                await asyncio.gather(self._renewing, return_exceptions=True)

    async def undo(self) -> None:
        """Nothing has happened, so that it may begin anew: but not for attempts before this one, if there are any."""
        if self._record.attempt <= 1:
            await self.end(None)
        else:
            await self.end("open" if self._is_first else "stopped")

    async def end(self, state: State | None, reply: str = "") -> None:
        """Write how it ended; `None`: nothing, as if it had never begun."""
        token = self._tokens.next(self._record.attempt)
        record = state and replace(self._record, state=state, token=token, until=0, reply=reply)
        for wait in (*_TRIES_SECONDS, None):
            try:
                if not await self._store.swap(self._call_id, self._record.token, record or None):
                    _log.warning("The reply of call %s is not kept: another process has taken it over.", self._call_id)
            except StoreAway as exc:
                if wait is None:
                    _log.warning("The reply of call %s is not kept: %s", self._call_id, exc)
                    return
                await asyncio.sleep(wait)
            else:
                return

    def _begin_renewing(self) -> None:
        """Not before it is time: a call that ends soon needs no task for it."""
        self._renewing = asyncio.ensure_future(self._renew())

    async def _renew(self) -> None:
        """A renewal whose answer was lost may have been written or not: the token stays the same, so both are good."""
        while self._is_kept:
            renewed = replace(self._record, until=machine_clock.wall() + LEASE_SECONDS)
            live_until = fleet_clock.suspend_aware() + LEASE_SECONDS
            try:
                if not await self._store.swap(self._call_id, renewed.token, renewed):
                    self._live_until = -math.inf
                    return
                self._live_until = live_until
            except StoreAway as exc:
                _log.warning("The lease of call %s is not renewed: %s", self._call_id, exc)
            await asyncio.sleep(RENEW_SECONDS)


_TRIES_SECONDS = (0.1, 0.5)
