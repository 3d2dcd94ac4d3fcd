"""Loads the scripts that know which worker consumes which queue: each worker notes it every second, and an agent asks with a call.

A note is a member `<worker> <digest>` of one sorted set, by until when it counts (s, the server's clock). The digest
names a set of queues, by their keys: all workers of a lane share one. A worker that stops for a restart leaves the note
`restart <digest>`, which counts for longer. So would the note of anything else that has calls wait, such as an
operator's pause.
"""

from toolfleet_tasks.lua.files import script

NOTE = script("consumers/note")
"""Returns 0 where nobody has written the queues yet."""

LEAVE = script("consumers/leave")

COUNT = script("consumers/count")
"""Returns queues, by their keys, and how many workers have each: a queue comes as often as there are digests with it."""

READ = script("consumers/read")
"""Returns for how many ms nobody has consumed the queue; -1 if somebody does."""
