"""Keeps claims that were made as messages were fetched: of calls whose first attempt started in the ledger then.

This is done only with calls of which a repeat does no harm: a worker that dies before it has started one leaves an
attempt that may have been. Until its task takes a claim over, nothing was sent; if the message is released before, the
claim is undone.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from toolfleet_registry.time import fleet_clock
from toolfleet_tasks.lua.ledger import FORGET
from toolfleet_tasks.redis.connection import PipelinedConnection
from toolfleet_tasks.worker_runtime import WorkerRuntime

_AVOIDED_SECONDS = (
    30.0  # that a queue's calls are claimed by themselves after a claim that was made as one was fetched was of no use
)


class FetchedClaim(NamedTuple):
    """A call's claim. `token`: the ledger knows it by this. `sent_at`: when it was asked for, by both clocks."""

    token: str
    call_id: str
    sent_at: tuple[float, float]


class FetchedClaims:
    """A worker's, by the tags of its messages. Belongs to its loop's thread; makes none until it is told how."""

    def __init__(self, here: WorkerRuntime) -> None:
        self._loop = here.loop
        self._connection: PipelinedConnection | None = None
        self._record_key: Callable[[str], str] = str
        self._may_claim: Callable[[], bool] = _never
        self._worker: Callable[[], str] = str
        self.record_seconds = 0
        """How long a claim's record lives at least, as it does with the ledger."""
        self._lease_ms = 0
        self._claims = dict[str, FetchedClaim]()
        self._avoided = dict[str, float]()  # queues, until when by the loop's clock

    def enable(
        self,
        connection: PipelinedConnection,
        *,
        record_key: Callable[[str], str],
        lease_ms: int,
        may_claim: Callable[[], bool],
        worker: Callable[[], str],
        record_seconds: int,
    ) -> None:
        """Claim calls from now on whenever `may_claim`. `connection`: that of the ledger, over which messages are fetched as well.

        `worker`: who makes the claims, as their tokens show it.
        """
        self._connection, self._record_key = connection, record_key
        self._lease_ms, self._may_claim, self._worker = lease_ms, may_claim, worker
        self.record_seconds = record_seconds

    @property
    def worker(self) -> str:
        """The maker of the claims, as their tokens show it; '' if unknown."""
        return self._worker()

    @property
    def lease_ms(self) -> int:
        """The lease of calls claimed with a fetch now, 0 for no claims."""
        return self._lease_ms if self._may_claim() else 0

    def avoided(self, queues: Sequence[str]) -> list[int]:
        """Return the numbers, from 1, of the queues whose calls must not be claimed now."""
        if not self._avoided:
            return []
        now = self._loop.time()
        self._avoided = {queue: until for queue, until in self._avoided.items() if until > now}
        return [number for number, queue in enumerate(queues, 1) if queue in self._avoided]

    def note(self, tag: str, claim: FetchedClaim) -> None:
        """A call was claimed with a message that was fetched."""
        self._claims[tag] = claim

    def take(self, tag: str) -> FetchedClaim | None:
        """Take over the claim of a message, if there is one: for the task that starts it, or to give the message back."""
        return self._claims.pop(tag, None)

    def give_back(self, claim: FetchedClaim, queue: str = "") -> None:
        """Take a claim back of which nothing came. Is not waited for: commands that follow over the connection find it done.

        Of calls from `queue` none is claimed so for a while: more of them may be of that kind.
        """
        if queue:
            self._avoided[queue] = self._loop.time() + _AVOIDED_SECONDS
        if self._connection is not None:
            command = FORGET.command(record=self._record_key(claim.call_id), token=claim.token)
            self._connection.send(*command).add_done_callback(_seen)  # if it is lost, the lease runs out

    def drop(self, tag: str) -> None:
        """Forget a finished message: its claim is undone if no task has started it."""
        if self._claims and (claim := self._claims.pop(tag, None)) is not None:
            self.give_back(claim)

    def __contains__(self, tag: str) -> bool:
        return tag in self._claims


def asked(claims: FetchedClaims | None, queues: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of `RESERVE` about the claims to make with messages of these queues."""
    if claims is None:
        return {"lease_ms": 0, "worker": "", "record_seconds": 0, "avoided": ()}
    seconds, avoided = claims.record_seconds, claims.avoided(queues)
    return {"lease_ms": claims.lease_ms, "worker": claims.worker, "record_seconds": seconds, "avoided": avoided}


def sending() -> tuple[float, float]:
    """The time by both clocks: one that counts suspension, and the fleet's."""
    return fleet_clock.suspend_aware(), fleet_clock.now()


def _never() -> bool:
    return False


def _seen(reply: "asyncio.Future[object]") -> None:
    if not reply.cancelled():
        reply.exception()
