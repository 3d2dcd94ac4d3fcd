"""Tells where calls are that a module has accepted, and remembers what they came to."""

import asyncio
import json
import logging
from dataclasses import replace
from typing import Any

from toolfleet_modules.calls.reply import Follower, Reply, StatusAnswer, said_later
from toolfleet_registry.contracts.call_context import progress_of
from toolfleet_registry.contracts.inputs import CallInputs
from toolfleet_registry.errors import StoreAway
from toolfleet_registry.once.port import PatientStore, Record, new_token

_log = logging.getLogger("toolfleet.sdk")

FOLLOW_SECONDS = 4.0  # for one answer of the follower's; the fleet waits 5 s for a status
_UNKNOWN = {"state": "unknown"}


class NotFollowed(Exception):
    """The call's state is unknown now: it is asked for again."""


class AcceptedCalls:
    """The calls of one module that go on by themselves: `follower` knows them, and the store has how they ended."""

    def __init__(self, store: PatientStore, follower: Follower) -> None:
        self._store, self._follower = store, follower

    async def status(
        self,
        call_id: str,
        handle: str,
        *,
        cancel: bool = False,
        takes_input: bool = False,
        inputs: CallInputs | None = None,
    ) -> dict[str, Any]:
        """Return the answer of `/status` for a call. Its outcome is kept; then the follower is not asked any more.

        A call with a question that its caller cannot answer is ended. A call whose record was lost is still the same:
        its follower may know it by its handle. Raises `NotFollowed`.
        """
        record = await self._record(call_id)
        if record is not None and record.state in {"done", "failed"}:
            return {"call_id": call_id, **said_later(record.reply), "state": "done"}
        if record is not None and record.state == "accepted" and Reply.kept(record.reply).handle != handle:
            return {"call_id": call_id, **_UNKNOWN}
        answer = await self._follow(call_id, handle, cancel=cancel, inputs=inputs)
        if answer.state == "input_required" and not takes_input:
            answer = await self._unanswerable(call_id, handle)
        return await self._answered(call_id, handle, record, answer)

    async def became(self, call_id: str, handle: str) -> dict[str, Any]:
        """Return the answer of `/reconcile` for such a call: one that asks is reported as `running`, and asks again when `/status` is asked."""
        answer = await self.status(call_id, handle, takes_input=True)
        if answer["state"] != "input_required":
            return answer
        return {"call_id": call_id, **_in_json(StatusAnswer.running(), handle)}

    async def _answered(self, call_id: str, handle: str, record: Record | None, answer: StatusAnswer) -> dict[str, Any]:
        if answer.state == "input_required" and answer.reply is not None:
            asked = json.loads(answer.reply.body)
            del asked["tool_name"]
            return {"call_id": call_id, **asked, "state": answer.state}
        if answer.reply is None:
            return {"call_id": call_id, **_in_json(answer, handle)}
        body = answer.reply.body
        if record is not None and record.state == "accepted":
            body = await self._keep(call_id, record, answer.reply)
        return {"call_id": call_id, **json.loads(body), "state": "done"}

    async def _record(self, call_id: str) -> Record | None:
        try:
            return await self._store.get(call_id)
        except StoreAway as exc:
            _log.warning("What is kept of call %s is not known: the store of replies is away: %s", call_id, exc)
            return None

    async def _unanswerable(self, call_id: str, handle: str) -> StatusAnswer:
        """End a call with a question that its caller cannot answer; it may have ended by itself."""
        answer = await self._follow(call_id, handle, cancel=True)
        if answer.reply is not None and answer.reply.is_success:
            return answer
        return StatusAnswer.failed("It asks for more input, and whoever called it cannot be asked.")

    async def _follow(
        self, call_id: str, handle: str, *, cancel: bool, inputs: CallInputs | None = None
    ) -> StatusAnswer:
        try:
            async with asyncio.timeout(FOLLOW_SECONDS):
                return await self._follower(call_id, handle, cancel=cancel, inputs=inputs)
        except TimeoutError:
            raise NotFollowed("Nobody said in time where the call is.") from None
        except Exception as exc:  # it is an author's, and may raise anything
            _log.error("Where call %s is cannot be said", call_id, exc_info=exc)
            raise NotFollowed(f"Nobody could say where the call is ({type(exc).__name__}); the log says why.") from exc

    async def _keep(self, call_id: str, record: Record, reply: Reply) -> str:
        """Store the reply under the called tool's name, for later requests and repeats, and return it."""
        named = {**json.loads(reply.body), "tool_name": json.loads(record.reply)["tool_name"]}
        body = json.dumps(named, ensure_ascii=False, separators=(",", ":"))
        ended = replace(
            record, state="done" if reply.is_success else "failed", token=new_token(record.attempt), reply=body
        )
        try:
            await self._store.swap(call_id, record.token, ended)  # refused: another process has kept it
        except StoreAway as exc:
            _log.warning("The reply of call %s is not kept: %s", call_id, exc)
        return body


def _in_json(answer: StatusAnswer, handle: str) -> dict[str, Any]:
    if answer.state != "running":
        return {"state": answer.state}
    progress = progress_of(answer.progress, answer.message)
    content: dict[str, Any] = {"state": "running", "handle": handle}
    if progress.fraction is not None or progress.message:
        content |= {"progress": progress.fraction, "message": progress.message}
    if answer.poll_after_seconds is not None:
        content["poll_after_seconds"] = answer.poll_after_seconds
    return content
