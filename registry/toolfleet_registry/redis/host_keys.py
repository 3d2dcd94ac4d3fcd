"""Builds the Redis keys of hosts that announce modules: each is one of `keys.Keys`, and has its rule in `redis/key_rules.py`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostKeys:
    """The names, with `begin` before each."""

    begin: str

    @property
    def announced(self) -> str:
        """A hash: the last heartbeat of each host, by its module and id. Expires `manifest_ttl_seconds` after the last one."""
        return f"{self.begin}module-hosts"

    @property
    def heartbeats(self) -> str:
        """When each live host was heard last, by Redis's clock (ms). Expires with the hash."""
        return f"{self.begin}module-heartbeats"

    @property
    def counts(self) -> str:
        """What each worker finds of the processes of modules that have several. Expires some seconds after the last note."""
        return f"{self.begin}replica-counts"
