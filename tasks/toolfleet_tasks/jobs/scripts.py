"""Changes jobs inside Redis, each change at once.

A job is a hash: `spec` (sealed JSON), `at` (its `JobPosition`, sealed JSON: a change names the one that it follows, so of two who move a
job one succeeds), `poll_values` (sealed JSON: what its polls take from its start's result) and `end` (JSON, once it is over; with
`end_signature`, where the fleet signs); `sent`, of one whose call is under way: when that was last confirmed to be in its queue;
`unread`: since when nobody could read it; `workflow`: what tells the user's workflows apart; `stopped`: the job of that workflow that has
failed: only its own end as cancelled can follow, and whoever claims it next writes that. Its id is in `jobs_due` until then, by when (ms) somebody should look at it, and in its
user's set by when (ms) it was made; after that in the user's set of ended ones, and in that of all. When a job
is due is the fleet's time, as are those of its news; other times are the server's.
"""

from toolfleet_tasks.lua.files import script

MOST_ENDED = 1_000
"""Jobs that have ended, of a user or of all, that can be listed. Of a user, no others are kept."""

CREATE = script("jobs/create")
"""Returns `made`; `exists` with the fields of the one that has this id; or `full` with how many there are."""

READ = script("jobs/read")
"""Returns the server's time (ms), then id, spec, at, told, `done`, `begun` or '' for the call, what is stored of it, when it was confirmed
to be in its queue (ms, or ''), and which job has stopped this one (or ''); or nothing.
"""

CLAIM = script("jobs/claim")
"""Returns the server's time (ms) and, the longest due first, each as `READ` has it, but without what is stored of calls: a hundred results
could be more than Redis sends in a second.
"""

MOVE = script("jobs/move")
"""Returns 1, or 0 with nothing changed: others have moved it, or one of its workflow has failed."""

PUT_OFF = script("jobs/put_off")
"""Returns 1 if nobody looks any more."""
