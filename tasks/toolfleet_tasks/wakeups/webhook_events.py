"""Writes events of the registry, and notices of approvals, as the outbox of webhooks keeps them, and as they are sent."""

import hashlib
import json
from typing import Any, Final

from toolfleet_registry.manifests.specs import RegistryEvent

REGISTRY: Final = "registry"
"""The kind of such news in the outbox, of whichever source."""

_LONGEST_TEXT = 1_000  # characters: names and versions are others', and of any length
_RECEIVER_DIGITS = 16


def receiver_of(url: str) -> str:
    """Return the name of a receiver in Redis and in logs: 16 hexadecimal digits of its URL's SHA-256, for a URL may hold a token."""
    return hashlib.sha256(url.encode()).hexdigest()[:_RECEIVER_DIGITS]


def approval_receiver_of(url: str) -> str:
    """The same of a receiver of approvals, also if it is told of the registry at this URL, too."""
    return receiver_of(f"approvals {url}")


def outbox_id(event_id: str, receiver: str) -> str:
    """Return the event's id in the outbox for this receiver; the same in every process."""
    return f"{event_id}@{receiver}"


def parts_of(wake_id: str) -> tuple[str, str]:
    """The id of the event, which is the `webhook-id`, and the receiver."""
    event_id, _, receiver = wake_id.rpartition("@")
    return event_id, receiver


def outbox_body(event: RegistryEvent, receiver: str) -> str:
    """Return the event's record in the outbox: JSON with the payload, and its receiver.

    Of a text over 1,000 characters, its beginning.
    """
    fields = {name: _bounded(value) for name, value in event.model_dump(mode="json").items()}
    payload = {"type": f"registry.{event.kind}", "timestamp": fields["at"], "data": fields}
    kept = {"wake_id": outbox_id(event.id, receiver), "kind": REGISTRY, "payload": payload}
    return json.dumps(kept, separators=(",", ":"))


def notice_body(event_id: str, receiver: str, payload: dict[str, Any]) -> str:
    """Return the record of an approval's notice in the outbox: JSON with the payload, and its receiver."""
    kept = {"wake_id": outbox_id(event_id, receiver), "kind": REGISTRY, "payload": payload}
    return json.dumps(kept, separators=(",", ":"))


def sent_body(kept: str) -> str:
    """Return its payload, as JSON. Raises `ValueError` if it is invalid."""
    found = json.loads(kept)
    if not isinstance(found, dict) or not isinstance(found.get("payload"), dict):
        raise ValueError("it has no payload")  # noqa: TRY004 - what is stored cannot be read
    return json.dumps(found["payload"], separators=(",", ":"))


def _bounded(value: Any) -> Any:
    is_long = isinstance(value, str) and len(value) > _LONGEST_TEXT
    return f"{value[: _LONGEST_TEXT - 1]}…" if is_long else value
