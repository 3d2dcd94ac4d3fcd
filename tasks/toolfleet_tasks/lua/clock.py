"""Loads the scripts of the fleet's clock.

The fleet's time is the server's, unless the server's clock was set while somebody watched: then it goes on as before, and
comes back to the server's by and by. Both times are in microseconds. The clock is a hash: `offset`: of the fleet's time from
the server's, as it was at `since`, by the server's clock; `reached`: the latest time that the clock of any worker has shown.
Beside it stands how far each worker's own machine is off: `<worker> <s>`, by when it said so.
"""

from toolfleet_tasks.lua.files import script

READ = script("clock/read")
"""Returns the server's time, the fleet's, the latest that any worker's clock had shown before, `since`, and all notes."""

BRIDGE = script("clock/bridge")
"""Returns 1, or 0 if others have done it meanwhile."""
