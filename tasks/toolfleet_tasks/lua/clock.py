"""Loads the scripts of the fleet's clock.

The fleet's time is the server's, unless the server's clock was set while a worker watched: then it goes on as before,
and returns to the server's gradually. Both times are in microseconds. The clock is a hash: `offset`: of the fleet's
time from the server's, as it was at `since`, by the server's clock; `reached`: the latest time that the clock of any
worker has shown. A second key has the lead of each worker's own machine: `<worker> <s>`, by when it said so.
"""

from toolfleet_tasks.lua.files import script

READ = script("clock/read")
"""Returns the server's time, the fleet's, the latest that any worker's clock had shown before, `since`, and all notes."""

BRIDGE = script("clock/bridge")
"""Returns 1, or 0 if others have done it meanwhile."""
