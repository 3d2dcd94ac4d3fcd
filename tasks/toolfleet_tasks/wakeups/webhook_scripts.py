"""Defines the atomic steps inside Redis for the registry's events on their way into the outbox of webhooks.

The position of each receiver is in a hash, receiver -> id of an event, and moves in one step with the write to the
outbox. So a process that dies has done both or neither, and of two that read the same events one writes them.
"""

from collections.abc import Sequence
from typing import Literal

from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.lua.files import script
from toolfleet_tasks.redis.connection import PipelinedConnection
from toolfleet_tasks.redis.durable_write import run_durably

FEED = script("wakeups/feed")
"""Returns `fed`; `moved`: somebody else has fed meanwhile, or nobody has set a position; `full`: too many wait for this receiver."""

FedState = Literal["fed", "moved", "full"]
"""What `FEED` returns."""


async def feed_receiver(
    connection: PipelinedConnection, keys: Keys, receiver: str, *, at: str, to: str, events: Sequence[tuple[str, str]]
) -> FedState:
    """Put `events` (ids in the outbox, and sealed bodies) into the outbox, and move the receiver from `at` to `to`, in one step.

    Until Redis has it. Raises what `run_durably` does.
    """
    parameters = FEED.parameters(
        positions=keys.webhook_positions,
        due=keys.wakes_due,
        receiver_due=keys.webhooks_due(receiver),
        clock_key=keys.clock,
        receiver=receiver,
        at=at,
        to=to,
        prefix=keys.wake(""),
        events=list(events),
    )
    became = await run_durably(connection, FEED, parameters)
    return "fed" if became == b"fed" else "full" if became == b"full" else "moved"
