"""Loads the scripts of queues and leases: steps that must happen at once inside Redis, or not at all.

Most are sent as text each time (`EVAL`): they are short, and so survive restarts, fail-overs and SCRIPT FLUSH. Commands
of Redis 6.2 only. Times are the server's, so that machines whose clocks differ do not take each other's calls for lost.

A message that a worker holds is in two of kombu's keys: the hash `unacked`, by its tag, as the JSON text
`[<message>,"","<queue>"]`, and the sorted set `unacked_index`, by the time when its lease began. A *notify key* is a
list of at most one token for each queue: the queue may have messages, and no worker is reading it. Losing a token loses
no message.
"""

from toolfleet_tasks.scripts import script

PUBLISH = script("queues/publish")
"""Returns the queue's length, or ['backlog', how many wait already], if that is the limit."""

RESERVE = script("queues/reserve")
"""Returns [the queues (from 1) where something is left that may be taken, the mark of claims, tag, queue (from 1), message, the id of its call if that was
claimed or '', tag, …].
"""

HOLDING = script("queues/holding")
"""Returns which of the queues hold something, from 1."""

RELEASE_SLOT = script("queues/release_slot")

RENEW = script("queues/renew")
"""Returns the tags that are lost: others have their messages."""

ACK = script("queues/ack")
"""Returns how many messages there were."""

REQUEUE = script("queues/requeue")
"""Returns how many messages there were."""

RESTORE = script("queues/restore")
"""Returns how many leases had run out, how many messages were requeued, and how many could not be."""

EXPIRE = script("queues/expire")
"""Returns how many of the messages were there, or -1 if the worker is connected."""

QUARANTINE = script("queues/quarantine")
"""Returns how many messages there have ever been, 0 if the counter is none."""

STORE = script("queues/store")
"""Returns 1 if the result was written."""

FORGET = script("ledger/forget")
"""Undoes a claim that was made as a message was fetched."""
