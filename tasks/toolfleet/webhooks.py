"""For an agent's core that the fleet wakes over HTTP: who sent it, and was it acted on before? Needs `toolfleet[webhooks]`.

`SQLSeen` needs `toolfleet[sql]` as well, and is imported when somebody asks for it.
"""

from typing import TYPE_CHECKING

from toolfleet_registry.contracts.jobs import WakeUp
from toolfleet_registry.errors import WakeBusy, WakeLost, WakeRefused
from toolfleet_tasks.webhooks.dedup import Seen
from toolfleet_tasks.webhooks.dedup import lazy_attribute as __getattr__  # noqa: F401 - Python asks it for what is not here
from toolfleet_tasks.webhooks.dedup_redis import RedisSeen
from toolfleet_tasks.webhooks.receiver import Delivery, WakeReceiver

if TYPE_CHECKING:
    from toolfleet_tasks.webhooks.dedup_sql import SQLSeen

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
