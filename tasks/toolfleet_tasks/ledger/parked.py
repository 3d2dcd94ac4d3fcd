"""Keeps calls in the ledger that their modules continue by themselves, and that no worker holds meanwhile."""

from typing import cast

from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.system import randomness
from toolfleet_tasks.ledger.accepted_attempt import AcceptedAttempt
from toolfleet_tasks.ledger.claims import Claim, Claims
from toolfleet_tasks.ledger.earlier import EarlierAttempts
from toolfleet_tasks.ledger.parameters import Ended
from toolfleet_tasks.lua.ledger import PARK, RECALL
from toolfleet_tasks.redis.connection import PipelinedConnection
from toolfleet_tasks.redis.durable_write import run_durably


class CallEnded(Exception):
    """The call has ended meanwhile, from outside."""


class ParkedCalls:
    """The parked calls of one Redis, over the ledger's connection."""

    def __init__(self, connection: PipelinedConnection, keys: Keys, claims: Claims, earlier: EarlierAttempts) -> None:
        self._connection, self._keys = connection, keys
        self._claims, self._earlier = claims, earlier

    async def park(self, claim: Claim, accepted: AcceptedAttempt, ended: Ended, *, seconds: float) -> bool:
        """Let go of a call until it is asked for, in about `seconds`; `ended` is how the request ended that was the last.

        False if others have the call by now. Raises `CallEnded`.
        """
        call = claim.call
        parameters = PARK.parameters_of(
            claim.keys.of_attempt,
            token=claim.token,
            call_id=call.call_id,
            attempt=claim.attempts,
            effect=call.effect or "",
            accepted=self._earlier.signed(call.call_id, accepted),
            wait_ms=round(seconds * 1000),
            outcome=ended.outcome,
            away=ended.away,
            failures=ended.failures,
            longest_ms=ended.longest_ms,
            seconds=claim.ttl_seconds,
        )
        answer = await run_durably(self._connection, PARK, parameters)
        self._claims.drop(claim)
        if answer == _ENDED:
            raise CallEnded
        return bool(answer)

    async def recall(self, call_id: str) -> tuple[AcceptedAttempt, str] | None:
        """Return the attempt whose module must be told of the call's cancellation: once, of a call that was ended from outside.

        Also returns the note about which of the module's processes has it. `None` if there is none. Raises
        `NotEndedYet` for a call that has not ended.
        """
        parameters = RECALL.parameters(record=self._keys.call(call_id), token=randomness.uuid4().hex)
        kind, found, replica = cast(
            "tuple[bytes, bytes, bytes]", await run_durably(self._connection, RECALL, parameters)
        )
        if kind == b"open":
            raise NotEndedYet
        accepted = await self._earlier.accepted(call_id, found) if found else None
        return None if accepted is None else (accepted, replica.decode())


class NotEndedYet(Exception):
    """The call may still be wanted."""


_ENDED = 2  # what `PARK` says of a call that has ended
