"""Builds the Redis keys of what workers say of themselves: each has its rule in `redis/key_rules.py`."""

from dataclasses import dataclass

from toolfleet_registry.redis.key_rules import OURS


@dataclass(frozen=True, slots=True)
class WorkerKeys:
    """The names, with a fleet's `prefix` before each."""

    prefix: str = ""

    @property
    def loads(self) -> str:
        """A hash: how many calls of each module a live worker runs, by its name. Expires when all of them are silent."""
        return f"{self.prefix}{OURS}worker-loads"
