"""Keeps calls in the ledger that wait without a worker: their modules continue them, or wait for an answer."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from pydantic import ValidationError

from toolfleet_registry.contracts import EffectState, Message
from toolfleet_registry.contracts.attempts import Question
from toolfleet_registry.contracts.inputs import InputRequest, PendingInput
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.system import randomness
from toolfleet_tasks.ledger.claims import AcceptedAttempt, Claim, Claims, EarlierAttempts
from toolfleet_tasks.ledger.parameters import Ended
from toolfleet_tasks.ledger.retry import combined
from toolfleet_tasks.ledger.scripts import ANSWER, ASK, PARK, RECALL
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.redis_connection import PipelinedConnection, run_durably, write_durably

_ENDED = 2  # what `PARK` and `ASK` say of a call that has ended

Verdict = Literal["taken", "again", "answered", "not_asked", "ended", "unknown"]
"""What becomes of an answer, as `ANSWER` says it."""


class CallEnded(Exception):
    """The call has ended meanwhile, from outside."""


class NotEndedYet(Exception):
    """The call may still be wanted."""


class _Kept(Message):
    """A question as its record has it."""

    round: int
    requests: dict[str, InputRequest]
    state: str = ""
    so_far: EffectState = "unknown"


@dataclass(frozen=True, slots=True)
class KeptQuestion:
    """A call's question; `state` and `so_far` go back to its module. `text`: the call, sealed, as its attempt had it.

    `is_open`: it has no answer yet.
    """

    pending: PendingInput
    state: str
    so_far: EffectState
    text: str
    is_open: bool


class SuspendedCalls:
    """The calls of one Redis that wait without a worker, over the ledger's connection: parked, or asked for an answer."""

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
            **ended.of(claim),
            effect=call.effect or "",
            accepted=self._earlier.signed(call.call_id, accepted),
            wait_ms=round(seconds * 1000),
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

    async def ask(
        self, claim: Claim, question: Question, ended: Ended, *, text: str, accepted: AcceptedAttempt | None = None
    ) -> bool:
        """Release a call until `question` is answered; `text` is the call, sealed, and `ended` how its request ended.

        `accepted`: its module continues it by itself, and is given the answer there; otherwise the call is started
        again with that. False if another worker has the call by now. Raises `CallEnded`.
        """
        call, so_far = claim.call, combined(claim.so_far, question.effect_state)
        number = 1 if call.inputs is None else call.inputs.round + 1
        kept = _Kept(round=number, requests=question.requests, state=question.state, so_far=so_far)
        content = json_text.dump(kept)
        parameters = ASK.parameters_of(
            claim.keys.of_attempt,
            **ended.of(claim),
            effect=call.effect or "",
            so_far=so_far,
            question=self._earlier.signed_text(call.call_id, content),
            round=number,
            message=text,
            accepted="" if accepted is None else self._earlier.signed(call.call_id, accepted),
            until_ms=round(call.deadline_at * 1000),
            channel=self._keys.progress(call.call_id),
            seconds=claim.ttl_seconds,
        )
        answer = await run_durably(self._connection, ASK, parameters, size=len(text) + len(content))
        self._claims.drop(claim)
        if answer == _ENDED:
            raise CallEnded
        return bool(answer)

    async def find(self, call_id: str) -> KeptQuestion | None:
        """Return the call's question, open or with an answer on its way over another broker; `None` if there is none, or it is unsigned."""
        command = ("HMGET", self._keys.call(call_id), "state", "token", "question", "message")
        fields = cast("list[bytes | None]", await write_durably(self._connection, command, size=0))
        state, token, question, text = fields
        if state == b"done" or not question:
            return None
        content = await self._earlier.believed(call_id, question)
        if not content:
            return None
        try:
            kept = json_text.load(_Kept, content)
        except (ValueError, ValidationError):
            return None
        pending = PendingInput(round=kept.round, requests=kept.requests)
        return KeptQuestion(pending, kept.state, kept.so_far, (text or b"").decode(), token == b"asked")

    async def answer(
        self, call_id: str, number: int, responses: Mapping[str, Any], *, queue: str, message: str
    ) -> Verdict:
        """Take the answer to question `number`, and put `message` into the call's `queue`, by its name, unless it is empty."""
        parameters = ANSWER.parameters(
            record=self._keys.call(call_id),
            queue=self._keys.queue(queue),
            notify_key=self._keys.notify_key(queue),
            round=number,
            digest=_digest(responses),
            message=message,
        )
        verdict = cast("bytes", await run_durably(self._connection, ANSWER, parameters, size=len(message)))
        return cast("Verdict", verdict.decode())


def _digest(responses: Mapping[str, Any]) -> str:
    text = json.dumps(responses, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
