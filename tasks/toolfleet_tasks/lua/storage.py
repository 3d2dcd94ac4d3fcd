"""Loads the scripts that count the bytes of stored results by caller, and drop the text of results that have been had.

A caller's results stand in a sorted set, `<call id> <bytes>` by when (ms) they expire, and beside it under `:bytes` is their sum.
Small ones are not counted: what bounds them is the number of a caller's calls. Times are the server's.
"""

from toolfleet_tasks.lua.files import script

HAD = script("storage/had")
