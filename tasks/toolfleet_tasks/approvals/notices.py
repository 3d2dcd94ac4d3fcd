"""Puts notices of approvals into the outbox of webhooks: continues each receiver's position, each event once for each.

Any worker may do so, and several at once: the position moves in one step with the write to the outbox.
"""

import asyncio
from datetime import UTC, datetime
from typing import Any, Final

from toolfleet_registry.settings import Settings
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.approvals.approvers import Approver
from toolfleet_tasks.approvals.records import ApprovalRecords
from toolfleet_tasks.approvals.shown import shown
from toolfleet_tasks.messages.signing import seal_of
from toolfleet_tasks.redis.connection import PipelinedConnection
from toolfleet_tasks.wakeups.webhook_events import approval_receiver_of, notice_body, outbox_id
from toolfleet_tasks.wakeups.webhook_scripts import feed_receiver

_AT_ONCE, _MOST_BATCHES = 100, 10  # events in one script, and scripts in one tick
_START: Final = "0-0"
_NOBODY: Final = Approver("webhook", None, "guest")
"""Who reads a notice: sensitive arguments are not for them."""

log = get_logger(__name__)


class ApprovalNotices:
    """The notices of one process, for the webhooks of its settings. Raises Redis's errors."""

    def __init__(self, connection: PipelinedConnection, records: ApprovalRecords, settings: Settings) -> None:
        self._connection, self._records, self._keys = connection, records, settings.keys
        self._seal = seal_of(settings, purpose="job")
        self._kinds = {approval_receiver_of(each.url): frozenset(each.events) for each in settings.approvals.webhooks}

    async def put(self) -> int:
        """Put what has happened since into the outbox; a receiver that is new is told of what happens from now on.

        Returns how far the receivers got, in events.
        """
        if not self._kinds:
            return 0
        names = list(self._kinds)
        found = await self._connection.execute("HMGET", self._keys.webhook_positions, *names)
        return sum(await asyncio.gather(*map(self._put, names, found)))

    async def _put(self, receiver: str, at: bytes | None) -> int:
        if at is None:
            last = await self._connection.execute("XREVRANGE", self._records.keys.events, "+", "-", "COUNT", "1")
            start = last[0][0] if last else _START
            await self._connection.execute("HSETNX", self._keys.webhook_positions, receiver, start)
            return 0
        position, done = at.decode(), 0
        if position != _START and not await self._connection.execute(
            "XRANGE", self._records.keys.events, position, position
        ):
            await self._note_gap(receiver, position)
        for _ in range(_MOST_BATCHES):
            entries: list[Any] = await self._connection.execute(
                "XRANGE", self._records.keys.events, f"({position}", "+", "COUNT", str(_AT_ONCE)
            )
            if not entries:
                break
            until = entries[-1][0].decode()
            if not await self._move(receiver, position, until, entries):
                break
            position, done = until, done + len(entries)
        return done

    async def _note_gap(self, receiver: str, position: str) -> None:
        """Say that events may be gone: the stream has forgotten where the receiver was, and has others."""
        if await self._connection.execute("EXISTS", self._records.keys.events):
            log.error("approval_events_lost", receiver=receiver, after=position)

    async def _move(self, receiver: str, at: str, to: str, entries: list[Any]) -> bool:
        """Put these into the outbox and note that, in one step; whether it was done."""
        made = await asyncio.gather(*(self._notice(receiver, name.decode(), said) for name, said in entries))
        events = [each for each in made if each is not None]
        became = await feed_receiver(self._connection, self._keys, receiver, at=at, to=to, events=events)
        if became == "full":
            log.warning("approval_webhook_waits", receiver=receiver, reason="too many events wait")
        return became == "fed"

    async def _notice(self, receiver: str, event_id: str, said: list[bytes]) -> tuple[str, str] | None:
        """Return the notice of an event; `None` if the receiver does not want it, or the approval is gone."""
        fields = {said[i].decode(): said[i + 1].decode(errors="replace") for i in range(0, len(said), 2)}
        kind = fields.get("kind", "")
        if kind not in self._kinds[receiver]:
            return None
        found = await self._records.listed(fields.get("id", ""))
        if found is None:
            return None
        data = shown(found, _NOBODY).model_dump(mode="json", exclude={"may_decide"})
        at = datetime.fromtimestamp(int(event_id.partition("-")[0]) / 1000, UTC)
        payload = {"type": f"approval.{kind}", "timestamp": at.isoformat().replace("+00:00", "Z"), "data": data}
        return outbox_id(event_id, receiver), self._seal.sign(notice_body(event_id, receiver, payload))
