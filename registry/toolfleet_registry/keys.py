"""Every Redis key of ours: how it is built, whether it expires, and if it lasts, why.

Celery's and kombu's own keys (queues, `unacked*`, `_kombu.binding.*`, `celery-task-meta-<call id>`) are theirs.
"""

import re
from dataclasses import dataclass

PREFIX = "toolfleet:"
MANIFESTS_CHANGED = f"{PREFIX}manifests-changed"  # a pub/sub channel, no key: carries the changed module's name


def module_manifest(module: str) -> str:
    """A module's last good manifest, as JSON. Expires `manifest_ttl_seconds` after the last look at the module."""
    return f"module_manifest:{module}"


def refresh_slot(slot: int) -> str:
    """Held by the one refresh of a time slot, so that two beats do the work once. Expires with the slot."""
    return f"{PREFIX}refresh:{slot}"


@dataclass(frozen=True, slots=True)
class KeyRule:
    """What keys of one kind look like. `lasting` says why such a key has no TTL; `None`: it must have one."""

    pattern: re.Pattern[str]
    lasting: str | None = None


RULES = (
    KeyRule(re.compile(r"module_manifest:[^:]+")),
    KeyRule(re.compile(rf"{PREFIX}refresh:\d+")),
    KeyRule(re.compile(r"celery-task-meta-.+")),
    KeyRule(re.compile(r"(tools\..+|toolfleet\.control)"), lasting="a queue: the broker removes it when it is empty"),
    KeyRule(re.compile(r"unacked(_index|_mutex)?"), lasting="the broker's own: messages that a worker holds"),
    KeyRule(
        re.compile(r"_kombu\.binding(\..+|_deadlines|_permanent\..+)"),
        lasting="the broker's own: which queue is bound to which exchange",
    ),
    KeyRule(re.compile(r".*\.reply\.celery\.pidbox"), lasting="the broker's own: answers to inspect commands"),
)
