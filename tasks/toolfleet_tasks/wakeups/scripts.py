"""Loads the scripts of the outbox: the atomic steps of wake-ups inside Redis.

Each event is a hash (`kind`: continue, notify, call or registry; `body`: JSON; `tries`: how many were started;
`first_at`: since when it is due, ms; `error`: of the last attempt; `rest`: for how many ms it was put off last), and an
id in a sorted set, by when the next attempt is due (ms). Those of kind `call` have a set of their own, its name with
`:calls` appended, so that a slow core delays no call; so have events of the registry, for each receiver of webhooks
(`:webhooks:<receiver>`; their ids end with `@<receiver>`). The process that tries has a token in the hash, and a lease:
the id's score, until which no other one tries. Dead events are a hash, id -> JSON with all that as text, a sorted set,
id -> when they were given up (ms), and how many bytes all of them have.

The outcomes of a job's wake-ups are kept in its own record, in the format of `outcomes`: written in the step that ends
one.

Times are the fleet's, as it is known inside Redis: if the server's clock is set, nothing waits for longer, and no lease
ends.
"""

from toolfleet_tasks.lua.files import script

MOST_DEAD_BYTES = 100_000_000
"""Of all dead news together: they must leave Redis room for the fleet."""

CLAIM = script("wakeups/claim")
"""Returns for each, the longest due first: id, kind, body, and the number of this try."""

ACCEPTED = script("wakeups/accepted")
"""Returns 1 if it was there."""

RELEASED = script("wakeups/released")

DROP_WAITING = script("wakeups/drop")
"""Returns 1; 2 if a try is under way, which may still be accepted; 0 if none of this id waits."""

FAILED = script("wakeups/failed")
"""Returns `later`; `dead`; or `lost`: others have it, or have delivered it."""

REPLAY = script("wakeups/replay")
"""Returns 1; 0 if there are none of this id; -1 if they cannot be read; -2 for a call whose arguments were not kept."""
