"""Finds the scripts that run inside Redis (`lua/`), and names the numbers that they share with Python.

A script does all of its work at once, or nothing. It is loaded where its answer is read: `script("ledger/claim")`.
"""

from pathlib import Path

from toolfleet_registry.redis.script import ScriptFolder
from toolfleet_registry.system.fleet_clock import LONGEST_BRIDGE_SECONDS, RETURN_RATE
from toolfleet_tasks.messages.json_text import VERSION

LONGEST_LEASE_SECONDS = 15.0
"""Of a call that runs. RabbitMQ delivers the calls of a dead worker at once, and they wait for this."""

CALLER_LIMIT_KEPT_SECONDS = 3600
"""How long the limit's key lives at least after its last call, so that its end need hardly ever be moved."""

SLOTS_COUNT_SECONDS = 20
"""A worker that has noted no slots for so long has died."""

WORKER_COUNTS_SECONDS = 20
"""A worker that has said nothing of its clock for so long has died."""

COUNTED_FROM_BYTES = 4096
"""Of a stored result, that it counts: smaller ones take less room than their call's record and audit line."""

WAITING_COUNTS_BYTES = 16_384
"""With at least so many a waiting approval counts in its user's share: so the share bounds their number, too."""

BYTES_FROM_MESSAGES = 16
"""That wait in a queue: fewer are bounded by what one of them may have."""

FIRST_PAUSE_MS, GROWTH = 1000, 1.5
"""How long a module is left alone at first, and how much longer each time. A restart takes a second or two."""

TOKENS = 4
"""So many calls begin at once when a module has come back; each that is answered lets two more in."""

LONGEST_WAIT_MS = 120_000
"""No call that its module goes on with waits longer until it is asked for: Redis's clock was set back."""

END_CHECK_SECONDS = 10.0
"""So often it is checked whether a call has ended that its module goes on with, and that waits for an answer."""

YOUNG_MS, GLANCE_MS = 5000, 100
"""So long after a module has come back, calls wait for their turn, and ask again after so long."""

PATIENCE_MS = 5000
"""How long a call waits for a module that is away, counted from its publishing and again from the end of each attempt, in seconds."""

DEFERENCE_MS = 400
"""So long whoever has looked last in vain lets others go first: it may be its own trouble."""

FRESH_MS = 30_000
"""So long at least it counts that a worker could not connect. It must exceed the time between two looks of a worker's."""

MEMORY_MS = 600_000
"""Failures that are longer ago say nothing of now."""

REPLICAS_SINCE = 2
"""The first version whose workers know that what became of a call may be known to one process of its module only."""

APPROVALS_SINCE = 3
"""The first version whose workers know that people may have to approve a call."""

APPROVAL_EVENTS_KEPT, APPROVAL_EVENTS_SECONDS = 10_000, 7 * 86_400
"""So many of the last events of approvals are there for whoever comes again, and for so long after the last."""

ANSWERED_THERE_SINCE = 3
"""The first version whose workers give what a call asks that its module goes on with its answer there."""

RESTART = "restart"
"""In the place of the worker's name: a note of nobody, for the queues of a worker that is being restarted."""

NOTE_SECONDS = 2.0
"""A worker notes which queues it consumes every second, and one that is a second late has not died."""

KEPT_SECONDS = 3600
"""Notes that count no longer still tell since when a queue has had nobody."""

MOST_EVENTS_WAITING = 1_000
"""Of the registry, for one receiver of webhooks: the others wait in the registry, which keeps 10,000."""

OUTCOMES_BYTES = 4_000
"""Of what a job keeps of its wake-ups: about the latest twenty, as one that recurs has new ones for ever."""

TRAIL_BYTES = 3_000
"""Of what is kept of a call's attempts and waits: some thirty of them."""

IN_LUA: dict[str, float | str] = {
    "ANSWERED_THERE_SINCE": ANSWERED_THERE_SINCE,
    "APPROVALS_SINCE": APPROVALS_SINCE,
    "BYTES_FROM_MESSAGES": BYTES_FROM_MESSAGES,
    "COUNTED_FROM_BYTES": COUNTED_FROM_BYTES,
    "DEFERENCE_MS": DEFERENCE_MS,
    "FIRST_PAUSE_MS": FIRST_PAUSE_MS,
    "FRESH_MS": FRESH_MS,
    "APPROVAL_EVENTS_KEPT": APPROVAL_EVENTS_KEPT,
    "APPROVAL_EVENTS_SECONDS": APPROVAL_EVENTS_SECONDS,
    "GLANCE_MS": GLANCE_MS,
    "GROWTH": GROWTH,
    "KEPT_SECONDS": KEPT_SECONDS,
    "LONGEST_BRIDGE_SECONDS": LONGEST_BRIDGE_SECONDS,
    "LONGEST_LEASE_MS": int(LONGEST_LEASE_SECONDS * 1000),
    "LONGEST_WAIT_MS": LONGEST_WAIT_MS,
    "END_CHECK_MS": int(END_CHECK_SECONDS * 1000),
    "MEMORY_MS": MEMORY_MS,
    "PATIENCE_MS": PATIENCE_MS,
    "MOST_EVENTS_WAITING": MOST_EVENTS_WAITING,
    "OUTCOMES_BYTES": OUTCOMES_BYTES,
    "REPLICAS_SINCE": REPLICAS_SINCE,
    "RESTART": RESTART,
    "RETURN_RATE": RETURN_RATE,
    "CALLER_LIMIT_KEPT_SECONDS": CALLER_LIMIT_KEPT_SECONDS,
    "SLOTS_COUNT_SECONDS": SLOTS_COUNT_SECONDS,
    "TOKENS": TOKENS,
    "TRAIL_BYTES": TRAIL_BYTES,
    "VERSION": VERSION,
    "WAITING_COUNTS_BYTES": WAITING_COUNTS_BYTES,
    "WORKER_COUNTS_SECONDS": WORKER_COUNTS_SECONDS,
    "YOUNG_MS": YOUNG_MS,
}
"""What a script may ask for at its head."""

FILES = ScriptFolder(Path(__file__).parent / "lua", IN_LUA)
"""The scripts below `lua/`, by file and name: `ledger/claim`."""

script = FILES.script
