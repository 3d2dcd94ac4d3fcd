"""Keeps a user's limits in this process's memory, by the rules of `lua/limits.py`: for tags that run without a fleet."""

from collections.abc import Sequence
from dataclasses import dataclass

from toolfleet_tasks.admission.limits import Limit

_DAY_MS = 86_400_000
_MANY = 10_000  # users and tools that are remembered before those of days gone by are forgotten


@dataclass(slots=True)
class _Used:
    day: int
    count: int
    last_ms: int
    until_ms: int  # from then on nothing of it matters


class MemoryLimits:
    """How often each limit was used, of this process's calls. Times are handed in, in ms since the epoch."""

    def __init__(self) -> None:
        self._used: dict[str, _Used] = {}
        self._many = _MANY

    def judge(self, limits: Sequence[Limit], now_ms: int) -> tuple[int, int, int, int] | None:
        """What is against another call now, as `limits.refused_by` reads it; `None`: nothing. Takes nothing."""
        rests = [(*self._rest(limit, now_ms), number) for number, limit in enumerate(limits, 1)]
        rest_ms, is_daily, number = max(rests, default=(0, 0, 0))
        return (number, is_daily, rest_ms, now_ms) if rest_ms > 0 else None

    def take(self, limits: Sequence[Limit], now_ms: int) -> None:
        """Count a call that begins now."""
        day = now_ms // _DAY_MS
        for limit in limits:
            used = self._used.get(limit.key)
            count = used.count if used is not None and used.day == day else 0
            until_ms = max((day + 1) * _DAY_MS, now_ms + limit.cooldown_ms)
            self._used[limit.key] = _Used(day, count + 1, now_ms, until_ms)
        if len(self._used) > self._many:
            self._used = {key: used for key, used in self._used.items() if used.until_ms > now_ms}
            self._many = max(_MANY, 2 * len(self._used))

    def _rest(self, limit: Limit, now_ms: int) -> tuple[int, int]:
        """The ms until a call may begin, and 1 if that is for the day's limit."""
        used = self._used.get(limit.key)
        if used is None:
            return 0, 0
        day, rest_ms, is_daily = now_ms // _DAY_MS, 0, 0
        if limit.daily and used.day == day and used.count >= limit.daily:
            rest_ms, is_daily = (day + 1) * _DAY_MS - now_ms, 1
        if limit.cooldown_ms and used.last_ms + limit.cooldown_ms - now_ms > rest_ms:
            rest_ms, is_daily = used.last_ms + limit.cooldown_ms - now_ms, 0
        return rest_ms, is_daily
