"""Names the keys that the ledger's scripts take, in one order: those of an attempt first. See `lua/ledger.py`."""

import functools
from collections.abc import Container
from typing import NamedTuple

from toolfleet_registry.contracts import PublishedCall
from toolfleet_registry.contracts.names import ToolName
from toolfleet_registry.redis.keys import Keys, QueueKeys

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

    @property
    def of_finish(self) -> tuple[str, ...]:
        """The keys that end a call in its worker's hands."""
        return self[:9]


class LedgerKeys:
    """Makes them for one call after the other. `bounded`: the modules that may run so many calls only.

    What calls share is made once and kept, for time and for memory: each call in flight holds on to its keys.
    """

    def __init__(self, keys: Keys, bounded: Container[str]) -> None:
        self._keys = keys
        self._bounded = bounded
        self._dead, self._dead_order = keys.dead, keys.dead_order
        self._data_id, self._audit = keys.data_id, keys.audit
        self._queue_states = QueueKeys(keys.prefix).states
        self._caller_limit = functools.lru_cache(_MOST_KEPT)(keys.caller_limit)
        self._of_module = functools.lru_cache(_MOST_KEPT)(functools.partial(_of_module, keys))

    def of(self, call: PublishedCall) -> CallKeys:
        """A call's keys."""
        module = ToolName.parse(call.tool_name).module
        running, breaker = self._of_module(module)
        record = self._keys.call(call.call_id)
        return CallKeys(
            record,
            self._keys.result(call.call_id),
            self._caller_limit(call.lane, call.user_id),
            running if module in self._bounded else record,
            breaker,
            self._keys.intent(call.user_id, call.idempotency_key) if call.idempotency_key else record,
            self._dead,
            self._dead_order,
            self._audit,
            self._data_id,
            self._queue_states,
        )

    def of_unknown(self, call_id: str) -> CallKeys:
        """The keys of a call of which nothing but its id is known."""
        record = self._keys.call(call_id)
        return CallKeys._make((record, self._keys.result(call_id), *[record] * 6, self._audit, record, record))


def _of_module(keys: Keys, module: str) -> tuple[str, str]:
    return keys.running(module), keys.breaker(module)
