"""A model's tool calls, run side by side; what could not even begin for want of a queue is tried again for a while."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from toolfleet import Caller, Conversation, ToolCall, ToolFleet, ToolResult

_FIRST_WAIT_SECONDS = 0.2  # doubled each time


class FleetAway(Exception):
    """The queue cannot be reached, so that a call surely did nothing: the turn goes on when it comes again."""


@dataclass(frozen=True, slots=True)
class Calls:
    """Makes calls in one conversation. `patience_seconds`: how long a call that surely did nothing is made anew."""

    fleet: ToolFleet
    patience_seconds: float

    async def run(self, calls: Sequence[ToolCall], caller: Caller, conversation: Conversation) -> list[ToolResult]:
        """The results, in the order of the calls. Raises `FleetAway`."""
        return await asyncio.gather(*(self._run(call, caller, conversation) for call in calls))

    async def _run(self, call: ToolCall, caller: Caller, conversation: Conversation) -> ToolResult:
        give_up_at = time.monotonic() + self.patience_seconds
        wait = _FIRST_WAIT_SECONDS
        while True:
            # Not `fleet.call`: that takes the call back when we are cancelled, and a core that is stopped in the
            # middle of a turn wants to find the call's result when it goes on.
            handle = await self.fleet.submit(call, caller, conversation=conversation)
            result = await handle.result()
            if result.success or not result.retryable or result.effect_state != "none":
                return result
            pause = max(wait, result.retry_after_seconds or 0)
            if time.monotonic() + pause > give_up_at:
                if result.error_code == "fleet_unavailable":
                    raise FleetAway(result.error)
                return result
            await asyncio.sleep(pause)
            wait *= 2
