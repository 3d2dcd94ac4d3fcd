"""Defines what happens at once inside Redis for those who read a conversation's wake-ups.

News are entries of a stream (`id`: the wake's, `body`: JSON), all readers one consumer group of it. A reader has at most one
entry at a time: whatever else is pending for him is what he was given and never heard of, or what he left behind when he died.
What was read is removed.
"""

from toolfleet_tasks.lua.files import script

TAKE = script("wakeups/take")
"""Returns [1, entry id, fields], or [0, the entry id after which there will be another one]."""

KEEP = script("wakeups/keep")
"""Returns 0 if others have the entry, or nobody."""

DONE, SKIP, LEAVE = script("wakeups/read"), script("wakeups/skip"), script("wakeups/leave")
