"""Answers the questions of calls: each question once, from any process."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from redis.exceptions import ResponseError

from toolfleet_registry.contracts import Caller, PublishedCall
from toolfleet_registry.contracts.inputs import CallInputs, PendingInput, check_responses
from toolfleet_registry.errors import FleetUnavailable, InputNotTaken, MessageRefused, NotPublished, PublishUnconfirmed
from toolfleet_registry.settings import Settings
from toolfleet_registry.time import fleet_clock
from toolfleet_tasks.ledger.asked import KeptQuestion, Verdict
from toolfleet_tasks.ledger.ledger import Ledger
from toolfleet_tasks.messages.envelope import Label, args_shown, call_message, sender
from toolfleet_tasks.messages.signing import seal_of
from toolfleet_tasks.publish.publisher import Delivered, Publisher
from toolfleet_tasks.queues import nets_around, queue_for

_SECONDS = 10.0  # for Redis to take an answer

HideInput = Callable[[str, Caller, Any], Any]
"""Hides personal data in what a person says to a tool; see `CallPreparation.hidden_input`."""


class InputAnswers:
    """The answers to tools' questions of one session, with personal data hidden. Where the ledger's Redis has the queues, an answer and the call's message are one step in it."""

    def __init__(self, ledger: Ledger, publisher: Publisher, settings: Settings, hide: HideInput) -> None:
        self._asked, self._publisher, self._hide = ledger.asked, publisher, hide
        self._seal, self._origin = seal_of(settings), sender()
        self._has_queues = settings.broker == settings.redis_url

    async def pending(self, call_id: str) -> PendingInput | None:
        """Return the call's present question, or `None`. Raises Redis's errors, and has no deadline."""
        found = await self._asked.find(call_id)
        return None if found is None or not found.is_open else found.pending

    async def answer(self, call_id: str, number: int | None, responses: Mapping[str, Any]) -> bool:
        """Answer question `number` of the call, or its present one. False if it has the same answer already.

        Raises `InputNotTaken`, `ValueError` for an invalid answer, and `FleetUnavailable`: then it may have been taken,
        and the same answer may be given again.
        """
        async with _confirming():
            return await self._answer(call_id, number, responses)

    async def hidden(self, call_id: str, responses: Mapping[str, Any]) -> dict[str, Any]:
        """Return some answers to what the call asks now as its tool may be told them. Raises as `answer` does."""
        async with _confirming():
            found = await self._asked.find(call_id)
        if found is None:
            raise InputNotTaken(call_id, "not_asked")
        inputs = self._answered(call_id, found, responses).inputs
        return {} if inputs is None else inputs.responses

    async def _answer(self, call_id: str, number: int | None, responses: Mapping[str, Any]) -> bool:
        found = await self._asked.find(call_id)
        if found is None or (not found.is_open if number is None else found.pending.round != number):
            return await self._judged(call_id, number or 0, responses)
        check_responses(found.pending, responses)
        call = self._answered(call_id, found, responses)
        if call.deadline_at <= fleet_clock.now():
            raise InputNotTaken(call_id, "ended")
        queue, text = queue_for(call), self._seal.seal(call)
        message = call_message(call, queue, text=text, origin=self._origin) if self._has_queues else ""
        verdict = await self._asked.answer(call_id, found.pending.round, responses, queue=queue, message=message)
        is_new = self._verdict(call_id, verdict)
        if not self._has_queues:  # twice does no harm, and an earlier try may have been lost
            label = Label(call_id, call.tool_name, args_shown(call), queue, nets_around(call.limit_seconds))
            await self._publisher.republish(Delivered(text, label), delay=0, retries=0)
        return is_new

    async def _judged(self, call_id: str, number: int, responses: Mapping[str, Any]) -> bool:
        """Judge an answer to a question that the call does not ask now."""
        verdict = await self._asked.answer(call_id, number, responses, queue="", message="")
        return self._verdict(call_id, verdict)

    def _verdict(self, call_id: str, verdict: Verdict) -> bool:
        if verdict in {"taken", "again"}:
            return verdict == "taken"
        raise InputNotTaken(call_id, verdict)  # type: ignore[arg-type] # the two others are not among them

    def _answered(self, call_id: str, found: KeptQuestion, responses: Mapping[str, Any]) -> PublishedCall:
        """Return the call as it continues. Raises `InputNotTaken` if it is not the fleet's."""
        try:
            call = self._seal.open(found.text, task_id=call_id)
        except (MessageRefused, ValueError) as exc:
            raise InputNotTaken(call_id, "unknown") from exc
        given = self._hide(call.tool_name, call.caller, list(responses.values()))
        hidden = dict(zip(responses, given, strict=True))
        inputs = CallInputs(round=found.pending.round, responses=hidden, state=found.state, so_far=found.so_far)
        return call.model_copy(update={"inputs": inputs})


@asynccontextmanager
async def _confirming() -> AsyncGenerator[None]:
    try:
        async with asyncio.timeout(_SECONDS):
            yield
    except (OSError, ResponseError, NotPublished, PublishUnconfirmed) as exc:  # TimeoutError is an OSError
        raise FleetUnavailable("Redis has not confirmed the answer: give it again.") from exc
