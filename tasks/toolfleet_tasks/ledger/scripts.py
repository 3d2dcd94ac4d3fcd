"""Loads the ledger's scripts, and names the keys that they take, in one order: those of an attempt first.

The record is a hash:

- `begun`: attempts begun, this says when they are used up; `effect`: what a repeat would do, fixed at the first claim
- `token`, `lease` (ms): who is at it, and until when nobody else may be (a worker's token ends with `~<when it was made, in hex
  microseconds>~<worker>`); `as`: what the claim was granted for
- `lapsed`: how many open attempts' leases ran out, their workers having died or been cut off
- `closed`: whose attempt ended last; `so_far`: what ended attempts may have done; `last`: what the last one came to, and
  `last_signature`, where the fleet signs
- `log`: `<attempt> <outcome> <ms>;` for each that ended, or was found never closed
- `state`: `done` once the call has its one result; `by`: who ended it; `result`: it, where Celery's own key is not written here
- `known`, `known_line`: Celery's value and the end of the audit line of what its worker knows, which it asks the module about now
- `accepted`: under which handle its module goes on with it, with its signature before it where the fleet signs; `ask_at` (ms): when it
  is asked for again; `parked`: who has asked last; `recalled`: who has told the module that nobody wants it any more
- `question`: what its module asks, and the call waits for (`token` is `asked`), with its signature as above; `round`: how many it has asked;
  `message`: the call as it travels once it is answered; `answered`: `;<round> <digest>` for each answer
- `approved`: what people have approved, sealed, which the claim of the first attempt hands to its worker; `may_begin`: until then (`token` is
  `approval` while they have not decided)
- `v`: the version of these fields that whoever claims the call must know, if the first will not do
- `replica`: the note about which of its module's processes has the attempts that may have done something, from before anything is sent
  there; `scattered`: `1` if an earlier one of them may have gone to another process
- `trail`: of a call that is tried again, accepted or asks something, and of an attempt that was lost: when each was claimed (by the fleet's
  clock), took how long and ended, on which worker and at which process; `polls`: how often its module was asked where it is. Both go into the audit line
- `turn`: when its last attempt has surely ended (ms, the fleet's clock), of a call that runs in its turn; see `lua/turns.lua`
- `size`: its bytes, if they count for its caller; `had`: what is to stand in its place once those who wait for it have it, too

Every script may be sent again with the same token, when its answer was lost, and then answers the same. Where a call has no
such key, the record's stands in its place.
"""

import functools
from collections.abc import Container
from typing import NamedTuple

from toolfleet_registry.contracts import PublishedCall
from toolfleet_registry.contracts.names import ToolName
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.scripts import script

CLAIM = script("ledger/claim")
"""Returns `done` with the stored result; `early` with the ms until somebody asks where the call is; `busy` with the rest of another's lease (ms); `full`; `paused` where an operator has its queue wait; `away` with the ms that its module is
likely to be so, or `queued` if that is back and lets calls in one after the other; `newer` for a record of a later version; `stale` for a message that does not bring the
answer to what the call has asked last; `behind` where it has not the turn that it needs; or, with
attempts begun, what they may have done, the last one's result (its signature and a space before it, if there is one), the log, the
breaker's rest (ms), what is `accepted`, the replica that counts, `1` if earlier attempts may have been elsewhere, and what was `approved`: `accepted` (the module
is to be asked where the call is), `go` (an attempt is begun), `unknown` (one was never closed, and must not be repeated), `exhausted`, `open`,
`killed` or `unapproved` (nobody has approved what needs that): the call is to be ended under this token.
"""

KEEP_TURNS = script("turns/keep")

RENEW = script("ledger/renew")
"""Returns the tokens that hold no longer."""

CLOSE = script("ledger/close")
"""Returns 1, or 0 if others have the call by now."""

FINISH = script("ledger/finish")
"""Returns 1; 0 if others have ended the call; or 2 if it has ended so but for its audit line, which could not be written.

Of several calls a list of that; nothing for one whose end has failed.
"""

END = script("ledger/end")
"""Returns `ended` with Celery's value, the audit line ('' if this had been done before) and 1 if that is kept, else 0; `done` with
Celery's value (of a call that had ended before, perhaps the result itself); or `begun`.
"""

MOVE = script("ledger/move")
"""Returns 1, 2 if an earlier attempt may have gone to another process, or 0 if others have the call by now."""

PARK = script("ledger/park")
"""Returns 1; 2 if the call has ended meanwhile; or 0 if others have it by now."""

RECALL = script("ledger/recall")
"""Returns `recalled` with what is `accepted` and the replica's note, `open` if that call has not ended, or `none`."""

ASK = script("ledger/ask")
"""Returns 1; 2 if the call has ended meanwhile; or 0 if others have it by now."""

ANSWER = script("ledger/answer")
"""Returns `taken`; `again` if it was answered so before; `answered` if otherwise; `not_asked`; `ended`; or `unknown`."""

BURY_ENDED = script("dead_letters/bury_ended")

UNCLAIM = script("ledger/unclaim")
LET_GO = script("ledger/let_go")
NOTE = script("ledger/note")

_MOST_KEPT = 1_024  # modules; and callers of a lane


class CallKeys(NamedTuple):
    """One call's keys, in the order in which the scripts name them; its record's stands where it has none of a kind."""

    record: str
    result: str
    caller_limit: str
    running: str
    breaker: str
    intent: str
    dead: str
    dead_order: str
    audit_stream: str
    data_id: str
    queue_states: str
    records: str = ""
    """The prefixes of the keys of records and of results; the call's id follows them."""
    results: str = ""

    @property
    def of_attempt(self) -> tuple[str, ...]:
        """The keys that start and close an attempt: each key costs Redis its time."""
        return self[:5]

    @property
    def of_claim(self) -> tuple[str, ...]:
        """The same, and what says whether the call may begin at all."""
        return (*self[:5], self.queue_states)

    @property
    def of_end(self) -> tuple[str, ...]:
        """The keys that end a call in any state."""
        return self[:10]


class LedgerKeys:
    """Makes them for one call after the other. `bounded`: the modules that may run so many calls only.

    What calls share is made once and kept, for time and for memory: each call in flight holds on to its keys.
    """

    def __init__(self, keys: Keys, bounded: Container[str]) -> None:
        self._keys = keys
        self._bounded = bounded
        self._dead, self._dead_order = keys.dead, keys.dead_order
        self._data_id, self._audit = keys.data_id, keys.audit
        self._queue_states = keys.queue_states
        self._records, self._results = keys.call(""), keys.result("")
        self._caller_limit = functools.lru_cache(_MOST_KEPT)(keys.caller_limit)
        self._of_module = functools.lru_cache(_MOST_KEPT)(functools.partial(_of_module, keys))

    def of(self, call: PublishedCall) -> CallKeys:
        """A call's keys."""
        module = ToolName.parse(call.tool_name).module
        running, breaker = self._of_module(module)
        record = self._records + call.call_id
        return CallKeys(
            record,
            self._results + call.call_id,
            self._caller_limit(call.lane, call.user_id),
            running if module in self._bounded else record,
            breaker,
            self._keys.intent(call.user_id, call.idempotency_key) if call.idempotency_key else record,
            self._dead,
            self._dead_order,
            self._audit,
            self._data_id,
            self._queue_states,
            self._records,
            self._results,
        )

    def of_unknown(self, call_id: str) -> CallKeys:
        """The keys of a call of which nothing but its id is known."""
        record = self._keys.call(call_id)
        return CallKeys._make((record, self._keys.result(call_id), *[record] * 6, self._audit, record, record, "", ""))


def _of_module(keys: Keys, module: str) -> tuple[str, str]:
    return keys.running(module), keys.breaker(module)
