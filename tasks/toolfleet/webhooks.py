"""For an agent's core that the fleet wakes over HTTP: who sent it, and was it acted on before? Needs `toolfleet[webhooks]`.

`SQLSeen` needs `toolfleet[sql]` as well, and is imported when somebody asks for it.
"""

from typing import TYPE_CHECKING

from toolfleet_registry.errors import WakeBusy, WakeLost, WakeRefused
from toolfleet_registry.jobs import WakeUp
from toolfleet_tasks.receiver import Delivery, WakeReceiver
from toolfleet_tasks.seen import Seen
from toolfleet_tasks.seen import lazy_attribute as __getattr__  # noqa: F401 - Python asks it for what is not here
from toolfleet_tasks.seen_redis import RedisSeen

if TYPE_CHECKING:
    from toolfleet_tasks.seen_sql import SQLSeen

__all__ = [
    "Delivery",
    "RedisSeen",
    "SQLSeen",
    "Seen",
    "WakeBusy",
    "WakeLost",
    "WakeReceiver",
    "WakeRefused",
    "WakeUp",
]
