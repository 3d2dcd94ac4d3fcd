"""Builds the Redis keys of canaries: each has its rule in `redis/key_rules.py`."""

from toolfleet_registry.redis.key_rules import OURS
from toolfleet_registry.redis.keys import Keys


def canary_key(keys: Keys, canary_id: str) -> str:
    """A list: how workers have answered a canary. Expires a minute after the last answer."""
    return f"{keys.prefix}{OURS}canary:{canary_id}"
