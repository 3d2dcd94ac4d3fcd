"""Loads the scripts that let calls in, and take that back: each all at once, or not at all.

Times are the server's, but for a call's deadline, which is the clock's of the agent that made it.
"""

from toolfleet_tasks.lua.files import script

ADMIT = script("admission/admit")
"""Returns the caller's limit if it was looked up, else 0, with 'served' before it where somebody had to consume the queue; or what
stands against the call: ['joined' or 'conflict', the call id that the key stands for], ['unserved', for how many ms nobody has consumed
the queue], ['draining', 0] where an operator has the queue take no new calls, ['open', ms until the breaker lets one through, if that is long], ['backlog', how many wait], ['bytes', how many bytes wait],
['share', how many it may have], ['stored', how many bytes of its results are stored], ['ended', its id] if it has a record already: this
comes late, or ['failed', why]. Then nothing was written, or it was taken back. 0 for a call that was let in before, if it is sent again.
"""

ADMIT_MANY = script("admission/admit_many")
"""Returns 0 if all calls were let in, or nothing if none was, and each is to be sent alone, by `ADMIT`."""

ADMIT_LIMITED = script("admission/admit_limited")
"""Returns the same as `ADMIT`, or ['limited', which limit is the last to be free again, 1 if that is for the day's, the ms until then,
the server's time (ms)].
"""

RETRACT = script("admission/retract")
