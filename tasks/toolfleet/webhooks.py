"""Receives the fleet's webhooks: for an agent's core that it wakes, and for followers of the registry.

Needs `toolfleet[webhooks]`.

It verifies the sender, and whether the webhook was processed before. `SQLSeen` needs `toolfleet[sql]` as well, and is
imported on first use.
"""

from typing import TYPE_CHECKING

from toolfleet_registry.contracts.jobs import WakeUp
from toolfleet_registry.errors import WakeBusy, WakeLost, WakeRefused, WebhookRefused
from toolfleet_registry.specs import RegistryEvent
from toolfleet_registry.system.lazy_names import lazy_names
from toolfleet_tasks.webhooks.dedup import RedisSeen, Seen
from toolfleet_tasks.webhooks.receiver import Delivery, RegistryReceiver, WakeReceiver

if TYPE_CHECKING:
    from toolfleet_tasks.webhooks.dedup_sql import SQLSeen
else:
    __getattr__ = lazy_names(__name__, {"toolfleet_tasks.webhooks.dedup_sql": "SQLSeen"}, install="toolfleet[sql]")

__all__ = [
    "Delivery",
    "RedisSeen",
    "RegistryEvent",
    "RegistryReceiver",
    "SQLSeen",
    "Seen",
    "WakeBusy",
    "WakeLost",
    "WakeReceiver",
    "WakeRefused",
    "WakeUp",
    "WebhookRefused",
]
