"""Defines what happens at once inside Redis for those who read a conversation's wake-ups.

News are entries of a stream (`id`: the wake's, `body`: JSON) for each user of a conversation, all readers one consumer group of
it. Older processes write all users' to one stream. A reader has at most one entry at a time: whatever else is pending for him is
what he was given and never heard of, or what he left behind when he died. What was read is removed.

Of entries that were trimmed before they were read, their number is kept, and the first entry that was left: `<number> <id>`.
"""

from toolfleet_tasks.lua.files import script

TAKE = script("wakeups/take")
"""Returns [1, stream, entry id, fields], or [2, key, value] for entries that were trimmed, or [0, streams, the ids after which there will
be more in them]."""

KEEP = script("wakeups/keep")
"""Returns 0 if others have the entry, or nobody."""

DONE, SKIP, LEAVE = script("wakeups/read"), script("wakeups/skip"), script("wakeups/leave")

REPORTED = script("wakeups/reported")
"""Returns 1 if it was not reported before, and nothing was trimmed since."""

CARRY = script("wakeups/carry")
"""Returns 1 if the entry was there."""
