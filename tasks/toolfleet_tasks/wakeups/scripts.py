"""Loads the scripts of the outbox: what happens at once inside Redis with wake-ups.

News are a hash each (`kind`: continue, notify, call or registry; `body`: JSON; `tries`: how many were begun; `first_at`: since when it is
due, ms; `error`: of the last try; `rest`: for how many ms it was put off last), and an id in a sorted set, by when the next try is due (ms). Those of kind `call` have a
set of their own, its name with `:calls` behind, so that a core that is slow holds up no call; so have events of the registry, for each
receiver of webhooks (`:webhooks:<receiver>`; their ids end with `@<receiver>`). Who tries has a token in the
hash, and a lease: the id's score, until which nobody else does. Dead news are a hash, id -> JSON with all that as text, a
sorted set, id -> when they were given up (ms), and how many bytes all of them have.

What became of the wake-ups of a job is kept in its own record, as `outcomes` words it: written in the step that ends one.

Times are the fleet's, as it is known inside Redis: where the server's clock is set, nothing waits for longer, and nobody's lease
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
