"""Loads the scripts that know a user's limits: which calls count in each, since when.

A limit is a sorted set of call ids with the time (ms, the server's) from which each counts. A second set has those that
no worker has started yet, each until its deadline: one that passes it was never started, and counts no longer. The
limits of a call are noted under its own key, by which it is given back at any end.

Times are passed in. A function that is called again with the same id changes nothing more. Every key that one writes
has a TTL.
"""

from toolfleet_tasks.lua.files import script

TAKE = script("limits/take")
"""Returns 0; or -1 if others have the call, or ['limited', which one of them is the last to be free again, 1 if that is for the day's
limit, the ms until then, the server's time (ms)], and has changed nothing. May be sent again.
"""

READ = script("limits/read")
"""Returns the server's time (ms), then for each the calls that count on this day, and the ms until the next one may be let in."""

JUDGE = script("limits/judge")
"""Returns 0, or as `TAKE` does ['limited', …]."""
