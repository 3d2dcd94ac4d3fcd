"""Loads the script that changes which queues are paused or draining.

What is stored is a hash of JSON texts, by module, and by lane as `lane:<lane>`. Scripts that admit and claim calls read it where it is
there at all: they include `queue_states/holds`.
"""

from toolfleet_tasks.lua.files import script

CHANGE = script("queue_states/change")
"""Returns 1 if another state holds now than before, else 0, and the text that was there, '' for none."""
