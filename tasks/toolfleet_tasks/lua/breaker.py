"""Loads the scripts of a module's circuit breaker: closed, open while the module is away, half-open while it comes back.

The breaker is a hash:

- `failures`: calls in a row that were sent and not answered; `by:<worker>`: when a worker last found that it cannot connect
- `open_until` (ms): nobody begins a call before; when it is over, one process looks whether the module is there: `probe`, which
  has until `probe_until` for that; `failed_by`: who has looked last, in vain; `pause` (ms): how long it was left alone the last time
- `why`: for which reason it was opened by workers that cannot connect, as `policy.module_troubles` has them
- `unready_since`: since when it says, whenever it is looked at, that it cannot serve now
- `half_at`: since when it is half-open; `tokens`: how many calls may begin now; `let_in_at`: when the last one did; `passed`: how
  many were answered since; `relapsed`: that one was not, and had it open again

Times are the server's, in ms, and handed in. Where its clock was set back, a time lies further ahead than it can: nothing is
waited for then. The hash expires when its failures are long ago.
"""

from toolfleet_tasks.lua.files import script

UNREACHED = script("breaker/unreached")
"""Returns for how many ms the breaker is open, or 0."""

REACHED = script("breaker/reached")

ASK = script("breaker/ask")
"""Returns what to do (`probe`, `open`, `closed` or `half`), and for how many ms."""

PROBED = script("breaker/probed")
"""Returns as `UNREACHED`."""
