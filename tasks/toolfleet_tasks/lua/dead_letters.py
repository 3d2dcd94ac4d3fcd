"""What happens at once inside Redis with dead letters.

They are a hash, call id -> letter, and a sorted set, call id -> when it died (ms). While a letter is replayed, the hash has
a second field for it, `<call id>/replay`: until when (s) nobody else may. No call id has a slash.
"""

from toolfleet_tasks.lua.files import script

BURY_ENDED = script("dead_letters/bury_ended")

TAKE = script("dead_letters/take")
"""Returns the letter, and for how many seconds another replay may still run: 0 if ours may. Nothing if there is no letter."""

SETTLE = script("dead_letters/settle")
"""Returns 1 if the letter was dropped."""
