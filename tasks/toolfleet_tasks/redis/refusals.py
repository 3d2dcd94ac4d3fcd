"""Tells what an error of Redis's says of the fleet: that it takes no calls now, for a moment or until somebody sees to it."""

from toolfleet_registry.errors import BrokerUnavailable
from toolfleet_tasks.redis.protocol import is_one_of

# It takes no writes until somebody makes room, mends its disk, or brings its replicas back.
_LASTING = ("OOM", "MISCONF", "NOREPLICAS")
# It loads its data, runs another's script, or is no master, and another one is, or soon will be.
_PASSING = ("LOADING", "BUSY", "READONLY", "MASTERDOWN")


def unavailable(reason: str) -> BrokerUnavailable | None:
    """What to raise where Redis gave this `reason` for not taking a call; `None` if it says nothing of the kind.

    Redis gives these before it has written anything: it does not take the script, or not its first write.
    """
    if is_one_of(_LASTING, reason):
        return BrokerUnavailable(reason, passes=False)
    if is_one_of(_PASSING, reason):
        return BrokerUnavailable(reason, passes=True)
    return None
