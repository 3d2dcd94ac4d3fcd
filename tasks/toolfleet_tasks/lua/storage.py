"""Loads the scripts that count the bytes of stored results by caller, and drop the text of results that were fetched.

A caller's results are a sorted set, `<call id> <bytes>` by when (ms) they expire, and the same key with `:bytes` is
their sum. Small ones are not counted: they are bounded by the number of a caller's calls. Times are the server's.
"""

from toolfleet_tasks.lua.files import script

HAD = script("storage/had")

KEEP = script("storage/keep")
FORGET_CONTENTS = script("storage/forget_contents")
"""Returns of how many calls something was removed."""
