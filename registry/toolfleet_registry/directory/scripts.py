"""Changes the directory of modules in Lua: each change happens inside Redis, as a whole or not at all.

The directory is a hash: module -> entry (JSON, with a signature before it if the fleet signs); next to it is a counter
of changes. Announcements of hosts are in another hash, and the times when they were heard in a sorted set. A change is
announced on the channel that tells of changed manifests, so that agents read both.
"""

from toolfleet_registry.lua_files import script

REPLACE = script("directory/replace")
"""Returns 1 if it has happened."""

FEED = script("directory/feed")
"""Returns for each what was there, if it was something else."""

ASK = script("directory/ask")
"""Returns the look's number."""

ANNOUNCE = script("directory/announce")
"""Returns Redis's time in milliseconds."""

HOSTS = script("directory/hosts")
"""Returns Redis's time in milliseconds, and of each host its member, what is stored, and 1 if it is live."""

LEAVE = script("directory/leave")
"""Returns how many other hosts of the module are live."""

FORGET_HOSTS = script("directory/forget_hosts")
