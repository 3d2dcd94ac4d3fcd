"""What a process has claimed in the ledger: kept while it lives, and interrupted when it is lost."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal

import structlog
from redis.exceptions import ResponseError

from toolfleet_registry.contracts import EffectState, PublishedCall, ToolResult
from toolfleet_tasks import ledger_scripts
from toolfleet_tasks.line import Line, LineLost

log = structlog.get_logger(__name__)

Granted = Literal["go", "unknown", "exhausted", "open"]
"""What a claim was granted for: to run an attempt, or to end a call that must not be run again, or not now."""

_RENEWALS = 4  # a lease is begun anew so often within its time: some may fail
_CHUNK = 200  # records a script, so that none holds Redis up


@dataclass(slots=True, eq=False)
class Claim:
    """One call in this process's hands, under a fencing `token`.

    `attempts` counts those begun, this one included; `so_far` is what earlier ones may have done, `last` what the last
    ended one came to, `log` how each ended. `rest_seconds`: until its module's open breaker lets one through. `keys`:
    those of its scripts. `ttl_seconds`: how long its record lives. `on_lost` is called when others have the call.
    """

    call: PublishedCall
    keys: tuple[str, ...]
    token: str
    granted: Granted = "go"
    attempts: int = 0
    so_far: EffectState = "none"
    last: ToolResult | None = None
    log: str = ""
    rest_seconds: float = 0
    on_lost: Callable[[], object] = field(default=lambda: None)
    ttl_seconds: int = 0

    @property
    def parts(self) -> tuple[str | int, ...]:
        """What writes its record anew, where Redis has lost it."""
        call = self.call
        return (
            self.token,
            call.call_id,
            self.granted,
            self.attempts,
            call.effect or "",
            self.so_far,
            self.ttl_seconds,
        )


class Claims:
    """Renews what is held, all at once, several times in a lease. Belongs to the line's event loop."""

    def __init__(self, line: Line, *, lease_seconds: float) -> None:
        self.lease_ms = round(lease_seconds * 1000)
        self._line = line
        self._held: dict[str, Claim] = {}
        self._task: asyncio.Task[None] | None = None
        line.on_connect.append(self._renew)  # after an outage, before anybody else is told that a lease has run out

    def holding(self, claim: Claim) -> AbstractContextManager[None]:
        """Keep the claim inside. Whoever leaves without having ended or closed the attempt has let go of it."""
        return _Holding(self, claim)

    def drop(self, claim: Claim) -> None:
        """The attempt is closed, or the call has ended."""
        self._held.pop(claim.token, None)

    def give_back(self, claim: Claim) -> None:
        """Nothing was made of the claim, if it was granted at all."""
        names = (claim.token, claim.call.call_id)
        keys = (claim.keys[0], claim.keys[3], claim.keys[4])
        self._line.send("EVAL", ledger_scripts.UNCLAIM, len(keys), *keys, *names).add_done_callback(_seen)

    async def aclose(self) -> None:
        """Renew no more, and let go of what is held: whoever gets the calls next need not wait."""
        if self._task is not None:
            self._task.cancel()
        held, self._held = list(self._held.values()), {}
        await asyncio.gather(*(self._let_go(claim) for claim in held), return_exceptions=True)

    def _hold(self, claim: Claim) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._keep(), name="toolfleet-claims")
        self._held[claim.token] = claim

    def _leave(self, claim: Claim) -> None:
        if self._held.pop(claim.token, None) is not None:
            self._let_go(claim)

    def _let_go(self, claim: Claim) -> "asyncio.Future[object]":
        keys = (claim.keys[0], claim.keys[3])
        command = ("EVAL", ledger_scripts.LET_GO, 2, *keys, claim.token, claim.call.call_id)
        reply: asyncio.Future[object] = self._line.send(*command)
        reply.add_done_callback(_seen)  # if it is lost, the lease runs out
        return reply

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self.lease_ms / 1000 / _RENEWALS)
            try:
                self._renew()
            except Exception:  # a defect of ours: without this loop every lease would run out
                log.exception("claims_not_renewed")

    def _renew(self) -> None:
        held = list(self._held.values())
        for start in range(0, len(held), _CHUNK):
            self._send_renewal(held[start : start + _CHUNK])

    def _send_renewal(self, claims: Sequence[Claim]) -> None:
        keys = [claim.keys[0] for claim in claims] + [claim.keys[3] for claim in claims]
        parts = [part for claim in claims for part in claim.parts]
        reply = self._line.send("EVAL", ledger_scripts.RENEW, len(keys), *keys, self.lease_ms, *parts)
        reply.add_done_callback(self._on_renewed)

    def _on_renewed(self, reply: "asyncio.Future[list[bytes]]") -> None:
        error = None if reply.cancelled() else reply.exception()
        if isinstance(error, ResponseError):
            log.warning("claims_not_renewed", error=str(error))
        if reply.cancelled() or error is not None:
            return
        for token in reply.result():
            claim = self._held.pop(token.decode(), None)
            if claim is not None:
                log.warning("claim_lost", call_id=claim.call.call_id, tool=claim.call.tool_name)
                claim.on_lost()


class _Holding:
    """A claim is kept inside. No generator, of which each call in flight would have one."""

    __slots__ = ("_claim", "_claims")

    def __init__(self, claims: Claims, claim: Claim) -> None:
        self._claims, self._claim = claims, claim

    def __enter__(self) -> None:
        self._claims._hold(self._claim)  # noqa: SLF001 - a part of it

    def __exit__(self, *exc_info: object) -> None:
        self._claims._leave(self._claim)  # noqa: SLF001 - as above


def _seen(reply: "asyncio.Future[object]") -> None:
    error = None if reply.cancelled() else reply.exception()
    if error is not None and not isinstance(error, LineLost):
        log.warning("claim_not_let_go", error=str(error))
