"""Builds the Redis keys of gateways: each has its rule in `redis/key_rules.py`."""

import hashlib
from dataclasses import dataclass

from toolfleet_registry.redis.key_rules import OURS
from toolfleet_registry.redis.keys import Keys


@dataclass(frozen=True, slots=True)
class GatewayKeys:
    """Those of the fleet whose other keys these are."""

    keys: Keys

    def requests(self, holder: str) -> str:
        """How many requests the holder of a key may send now. Expires when it may send as many as ever."""
        return f"{self._begin}requests:{_digest(holder)}"

    def streams(self, holder: str) -> str:
        """The event streams that the holder of a key has open, by until when its gateway has said so. Expires with the last."""
        return f"{self._begin}streams:{_digest(holder)}"

    @property
    def _begin(self) -> str:
        return f"{self.keys.prefix}{OURS}gateway-"


def _digest(holder: str) -> str:
    """Names of people are of any length and any characters, and nobody's business."""
    return hashlib.sha256(holder.encode("utf-8", "surrogatepass")).hexdigest()[:32]
