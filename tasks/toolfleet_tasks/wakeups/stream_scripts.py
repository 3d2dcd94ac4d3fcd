"""Defines the atomic steps inside Redis for readers of a conversation's wake-ups.

Wake-ups are entries of a stream (`id`: the wake's, `body`: JSON) for each user of a conversation, with all readers in
one consumer group. Older processes write all users' to one stream. A reader has at most one entry at a time: its other
pending entries are those that it was given and never received, or that it left behind when it died. A read entry is
removed.

Of entries that were trimmed before they were read, their number is kept, and the first entry that was left: `<number>
<id>`.
"""

from toolfleet_tasks.lua.files import script

TAKE = script("wakeups/take")
"""Returns [1, stream, entry id, fields], or [2, key, value] for entries that were trimmed, or [0, streams, the ids after which there will
be more in them]."""

KEEP = script("wakeups/keep")
"""Returns 0 if others have the entry, or nobody."""

DONE, LEAVE = script("wakeups/read"), script("wakeups/leave")

REPORTED = script("wakeups/reported")
"""Returns 1 if it was not reported before, and nothing was trimmed since."""

CARRY = script("wakeups/carry")
"""Returns 1 if the entry was there."""
