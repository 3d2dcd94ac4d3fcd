"""Finds the scripts that run inside Redis (`lua/`), and names the numbers that they share with Python.

A script does all of its work at once, or nothing. It is loaded where its answer is read: `script("ledger/claim")`.
"""

from pathlib import Path

from toolfleet_registry.redis.script import ScriptFolder
from toolfleet_registry.system.fleet_clock import LONGEST_BRIDGE_SECONDS, RETURN_RATE
from toolfleet_tasks.messages.json_text import VERSION

LONGEST_LEASE_SECONDS = 15.0
"""The longest lease of a running call. RabbitMQ delivers the calls of a dead worker at once, and they wait for its end."""

CALLER_LIMIT_KEPT_SECONDS = 3600
"""How long the key of a caller's limit lives at least after its last call: its end has to be moved only rarely."""

SLOTS_COUNT_SECONDS = 20
"""A worker that has not noted its slots for so long has died."""

WORKER_COUNTS_SECONDS = 20
"""A worker that has not noted its clock for so long has died."""

COUNTED_FROM_BYTES = 4096
"""The size from which a stored result counts: smaller ones take less room than their call's record and audit line."""

WAITING_COUNTS_BYTES = 16_384
"""The least that a waiting approval counts in its user's share: so the share bounds the number of approvals, too."""

BYTES_FROM_MESSAGES = 16
"""The number of waiting messages from which their bytes are bounded: fewer are bounded by the size of one."""

FIRST_PAUSE_MS, GROWTH = 1000, 1.5
"""The first pause of a breaker, and the factor by which each pause grows. A module's restart takes a second or two."""

TOKENS = 4
"""How many calls start at once when a module has come back. Each that is answered lets two more in."""

LONGEST_WAIT_MS = 120_000
"""The longest time until a module is asked about a call that it continues. A longer one means that Redis's clock was set back."""

END_CHECK_SECONDS = 10.0
"""How often a call is checked for its end that its module continues and that waits for an answer."""

YOUNG_MS, GLANCE_MS = 5000, 100
"""How long calls wait for their turn after a module has come back, and how soon they ask again."""

PATIENCE_MS = 5000
"""How long a call waits for a module that is away, counted from its publishing and again from the end of each attempt."""

DEFERENCE_MS = 400
"""How long a worker whose probe has failed lets others probe first: the fault may be its own."""

FRESH_MS = 30_000
"""How long a worker's failure to connect counts at least. It must exceed the time between two probes of a worker."""

MEMORY_MS = 600_000
"""Failures that are longer ago no longer count."""

REPLICAS_SINCE = 2
"""The first version whose workers know that a call's outcome may be known to one process of its module only."""

APPROVALS_SINCE = 3
"""The first version whose workers know that people may have to approve a call."""

APPROVAL_EVENTS_KEPT, APPROVAL_EVENTS_SECONDS = 10_000, 7 * 86_400
"""How many of the last events of approvals are kept for readers that come again, and for how long after the last one."""

ANSWERED_THERE_SINCE = 3
"""The first version whose workers deliver an answer to a call that its module continues."""

TURNS_SINCE = 6
"""The first version whose workers pass on the turn of a call that ends."""

RESTART = "restart"
"""Stands for the worker's name in a note for the queues of a worker that is being restarted."""

WAKES_CORE = " core"
"""The word in the note of a worker that wakes a core."""

REPLIES = " replies"
"""The word in the note of a worker that announces ends on the reply channels of agents, too."""

REPLY_DIGITS = 12
"""How many digits at the end of a call's id name the reply channel of the agent that has made it."""

NOTE_SECONDS = 2.0
"""How long a note of the consumed queues counts. A worker writes one every second, and may be a second late."""

KEPT_SECONDS = 3600
"""How long old notes are kept: they tell since when a queue has had no worker."""

MOST_EVENTS_WAITING = 1_000
"""The registry's events that wait for one receiver of webhooks. The others wait in the registry, which keeps 10,000."""

OUTCOMES_BYTES = 4_000
"""The size of a job's record of its wake-ups: about the latest twenty. A recurring job has new ones without end."""

TRAIL_BYTES = 3_000
"""The size of the record of a call's attempts and waits: some thirty of them."""

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
    "REPLIES": REPLIES,
    "REPLY_DIGITS": REPLY_DIGITS,
    "REPLICAS_SINCE": REPLICAS_SINCE,
    "RESTART": RESTART,
    "RETURN_RATE": RETURN_RATE,
    "CALLER_LIMIT_KEPT_SECONDS": CALLER_LIMIT_KEPT_SECONDS,
    "SLOTS_COUNT_SECONDS": SLOTS_COUNT_SECONDS,
    "TOKENS": TOKENS,
    "TRAIL_BYTES": TRAIL_BYTES,
    "TURNS_SINCE": TURNS_SINCE,
    "VERSION": VERSION,
    "WAITING_COUNTS_BYTES": WAITING_COUNTS_BYTES,
    "WORKER_COUNTS_SECONDS": WORKER_COUNTS_SECONDS,
    "YOUNG_MS": YOUNG_MS,
}
"""The numbers that scripts use by name."""

FILES = ScriptFolder(Path(__file__).parent / "lua", IN_LUA)
"""The scripts below `lua/`, by file and name: `ledger/claim`."""

script = FILES.script
