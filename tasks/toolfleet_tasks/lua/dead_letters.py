"""Loads the scripts of dead letters.

Those of a kind are a hash, id -> letter, and a sorted set, id -> when it died (ms); for events that were never
accepted, which `wakeups` writes, a counter has their size in bytes. While a call's letter is replayed, the hash has a
second field for it, `<call id>/replay`: until when (s) no other replay may start. No id has a slash.
"""

from toolfleet_tasks.lua.files import script

BURY_ENDED = script("dead_letters/bury_ended")

DROP = script("dead_letters/drop")
"""Returns the ids of those that were there."""

TAKE = script("dead_letters/take")
"""Returns the letter, and for how many seconds another replay may still run: 0 if ours may. Nothing if there is no letter."""

SETTLE = script("dead_letters/settle")
"""Returns 1 if the letter was dropped."""
