"""Loads the scripts of approvals: a call waits for people in its own record, and beside it stands what they see and decide.

An approval is a hash: `state`, `revision` (another one after each decision), `request` and `call` (sealed), `expires_ms`, `votes`,
`journal`, and `trace` of a call that was made in one. Lists read `summary` (sealed, without large arguments, of the revision `summarised`)
and find it by `words`; `stored_key` and `stored_member` say where it counts, `trimmed` that large arguments are gone. The ledger's record of a call that waits has the token `approval`; of one that was approved `approved`, sealed, which the claim of
its first attempt consumes, and `may_begin` until then. Every script may be sent again, when its answer was lost.
"""

from toolfleet_tasks.lua.files import script

REQUEST = script("approvals/request")
"""Returns `waiting`; `joined` or `conflict` with the call that its idempotency key stands for; `ended`; `crowd` with how many wait; or
`stored` with the bytes of its user's share.
"""

DECIDE = script("approvals/decide")
"""Returns `taken`; `raced` if somebody has decided meanwhile; what the approval is, if it waits no longer; `expired`, or `waiting` if it is not
yet; `ended` if its call was taken back; `lost` if Redis has lost its record; or `unknown`.
"""

READ_APPROVAL = script("approvals/read")
"""Returns the fields of the approval, and `done`, `published`, `begun` or '' for its call; nothing if there is none."""

LIST_APPROVALS = script("approvals/list")
"""Returns the next rank, how many are still to be left out, what has no summary of its revision, and summaries with what belongs to them."""

SUMMARISE = script("approvals/summarise")

DUE = script("approvals/due")
"""Returns their ids."""

SETTLE = script("approvals/settle")
