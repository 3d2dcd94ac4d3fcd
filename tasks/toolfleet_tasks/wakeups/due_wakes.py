"""Holds the due wake-ups that a process has claimed from the outbox, and their records when they are dead."""

import json
from collections.abc import Iterable
from dataclasses import dataclass

from toolfleet_registry.settings import Settings
from toolfleet_tasks.wakeups.sender import PATHS
from toolfleet_tasks.wakeups.webhook_events import REGISTRY


@dataclass(frozen=True, slots=True)
class DueWake:
    """A wake-up that this process has claimed, under `token`.

    `tries` counts this attempt; the meaning of `body` (JSON) depends on `kind`.

    `fault`: why it must not be sent.
    """

    wake_id: str
    kind: str
    body: str
    tries: int
    token: str
    fault: str = ""


def place_when_dead(wake: DueWake, settings: Settings) -> dict[str, str | int]:
    """Return the place of a dead wake-up, and how many of its kind are kept."""
    keys = settings.keys
    if wake.kind == REGISTRY:
        names = keys.dead_webhooks(), keys.dead_webhooks("-order"), keys.dead_webhooks("-bytes")
    else:
        names = keys.dead_wakes, keys.dead_wakes_order, keys.dead_wakes_bytes
    dead, order, size = names
    return {"dead": dead, "dead_order": order, "dead_bytes": size, "dead_kept": settings.dead_letters_kept}


def kept_when_dead(wake: DueWake) -> str:
    """Return the replacement of a secret call; "" for a wake-up that is kept as it is."""
    if wake.kind != "call":
        return ""
    try:
        body = json.loads(wake.body)
        if not body.get("is_secret"):
            return ""
    except (ValueError, AttributeError, RecursionError):
        return ""
    return json.dumps({name: value for name, value in body.items() if name != "call"}, separators=(",", ":"))


def by_conversation(wakes: Iterable[DueWake]) -> list[list[DueWake]]:
    """Group wake-ups by conversation, in their order; those of none, and calls, each by itself."""
    wait_queue = dict[str, list[DueWake]]()
    for wake in wakes:
        wait_queue.setdefault(_conversation_of(wake) or f"\0{wake.wake_id}", []).append(wake)
    return list(wait_queue.values())


def job_of(wake: DueWake) -> str:
    """The id of the job that news are of; "" where they do not say it."""
    try:
        found = json.loads(wake.body).get("job_id")
    except (ValueError, AttributeError, RecursionError):
        return ""
    return found if isinstance(found, str) else ""


def _conversation_of(wake: DueWake) -> str | None:
    try:
        found = json.loads(wake.body).get("conversation_id") if wake.kind in PATHS else None
    except (ValueError, AttributeError, RecursionError):
        return None
    return found if isinstance(found, str) else None
