"""Loads the scripts of a fleet's status: bounded, for any number and content of queues."""

from toolfleet_tasks.lua.files import script

QUEUES = script("queues/oldest")
"""Returns of each queue that holds something its number, from 1, its length, and its oldest message, '' if that is not known."""

BREAKERS = script("breaker/failing")
"""Returns of each breaker that has seen failures its number, from 1, what it is, for how many ms, the failures in a row, and why it was opened."""
