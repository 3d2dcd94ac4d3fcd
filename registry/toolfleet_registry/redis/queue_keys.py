"""Builds the Redis key of what operators have done to queues: it has its rule in `redis/key_rules.py`."""

from dataclasses import dataclass

from toolfleet_registry.redis.key_rules import OURS


@dataclass(frozen=True, slots=True)
class QueueKeys:
    """The name, with a fleet's `prefix` before it."""

    prefix: str = ""

    @property
    def states(self) -> str:
        """A hash: which queues are paused or draining, by module, and by lane as `lane:<lane>`. Lasts until the last is resumed."""
        return f"{self.prefix}{OURS}queue-states"
