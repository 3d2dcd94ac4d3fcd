"""Defines what happens at once inside Redis with the registry's events on their way into the outbox of webhooks.

Up to where each receiver was told stands in a hash, receiver -> id of an event, and moves together with what is put into the
outbox. So whoever dies has done both or neither, and of two that read the same events one does.
"""

from toolfleet_tasks.lua.files import script

FEED = script("wakeups/feed")
"""Returns `fed`; `moved`: somebody else has fed meanwhile, or nobody has set a position; `full`: too many wait for this receiver."""
