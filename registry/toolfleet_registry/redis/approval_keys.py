"""Builds the Redis keys of approvals: each has its rule in `redis/key_rules.py`."""

import hashlib
import json
from dataclasses import dataclass

from toolfleet_registry.redis.key_rules import OURS
from toolfleet_registry.redis.keys import Keys


@dataclass(frozen=True, slots=True)
class ApprovalKeys:
    """The approvals' keys of the fleet with these other keys."""

    keys: Keys

    def approval(self, approval_id: str) -> str:
        """A hash: what people see of a call that waits for them, and what they decide. Expires a week after it is settled, at the latest."""
        return f"{self._begin}:{approval_id}"

    def asked(self, user_id: str | None, idempotency_key: str) -> str:
        """The id of a call that a framework's step has made, and that was deferred, for people or for its time: the step may run again after its end. Expires a week after people's time, or its own."""
        digest = hashlib.sha256(json.dumps([user_id, idempotency_key]).encode()).hexdigest()
        return f"{self._begin}-asked:{digest[:32]}"

    @property
    def waiting(self) -> str:
        """The calls that wait for people, or whose approval is not settled, by the time of the next necessary step."""
        return f"{self._begin}s-waiting"

    @property
    def settled(self) -> str:
        """The last approvals that were settled, by when that was. Expires a week after the last."""
        return f"{self._begin}s-settled"

    @property
    def events(self) -> str:
        """A stream: what happens to approvals, the last 10,000 of it. Expires a week after the last."""
        return f"{self._begin}s-events"

    @property
    def changed(self) -> str:
        """A pub/sub channel, no key: carries the id of an approval to which something has happened."""
        return f"{self._begin}s-changed"

    @property
    def _begin(self) -> str:
        return f"{self.keys.prefix}{OURS}approval"
