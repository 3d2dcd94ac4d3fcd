"""Counts the fleet's keys in Redis by the rules for them, a bounded number of them."""

from collections import Counter
from dataclasses import dataclass, field

from redis.asyncio import Redis

from toolfleet_registry.redis.keys import Keys

_AT_ONCE = 1000  # keys of one step of SCAN: Redis is at them for about a millisecond


@dataclass(slots=True)
class KeyCensus:
    """The result of a census.

    `by_rule` counts keys by the pattern of their rule. `endless` have no TTL and should have one, by that pattern.

    `foreign`: how many keys no rule knows. `is_whole`: all keys were seen. Names of keys may hold ids, and are not in
    here.
    """

    by_rule: Counter[str] = field(default_factory=Counter[str])
    endless: Counter[str] = field(default_factory=Counter[str])
    foreign: int = 0
    seen: int = 0
    is_whole: bool = True


async def count_keys(redis: Redis, keys: Keys, *, at_most: int) -> KeyCensus:
    """Look at keys with the fleet's prefix until all were seen, or so many. Raises redis-py's errors."""
    census, cursor = KeyCensus(), 0
    while True:
        cursor, found = await redis.scan(cursor, match=f"{keys.prefix}*", count=_AT_ONCE)
        await _take(redis, keys, [_text(key) for key in found], census)
        if cursor == 0:
            return census
        if census.seen >= at_most:
            census.is_whole = False
            return census


async def _take(redis: Redis, keys: Keys, names: list[str], census: KeyCensus) -> None:
    census.seen += len(names)
    asked = list[tuple[str, str]]()
    for name in names:
        rule = keys.rule_of(name)
        if rule is None:
            census.foreign += 1
            continue
        census.by_rule[rule.pattern.pattern] += 1
        if rule.lasting is None:
            asked.append((name, rule.pattern.pattern))
    pipe = redis.pipeline(transaction=False)
    for name, _ in asked:
        pipe.ttl(name)
    for (_, pattern), left in zip(asked, await pipe.execute(), strict=True):
        if left == -1:
            census.endless[pattern] += 1


def _text(key: bytes | str) -> str:
    return key if isinstance(key, str) else key.decode(errors="replace")
