"""A receiver of the registry's events takes what the fleet has signed, and nothing else."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from standardwebhooks import Webhook

from support.followers import SECRET
from support.workers.wakes import OTHER_SECRET
from toolfleet.webhooks import RegistryEvent, RegistryReceiver, WakeRefused, WebhookRefused
from toolfleet_tasks.wakeups.webhook_feed import outbox_body, sent_body

EVENT = RegistryEvent(
    id="0000000000000001-0000000000000042", kind="changed", tool_name="owls.count", at=datetime(2026, 1, 2, tzinfo=UTC)
)
Sent = tuple[dict[str, str], bytes]


def sent(event: RegistryEvent = EVENT, *, secret: str = SECRET, ago: float = 0, **more: Any) -> Sent:
    """As the fleet sends it; `more` stands beside what it says."""
    payload = json.loads(sent_body(outbox_body(event, "0" * 16)))
    payload["data"] |= more.pop("data", {})
    body = json.dumps({**payload, **more})
    at = datetime.now(UTC) - timedelta(seconds=ago)
    signature = Webhook(secret).sign(EVENT.id, at, body)
    headers = {"Webhook-Id": EVENT.id, "webhook-timestamp": str(int(at.timestamp())), "webhook-signature": signature}
    return headers, body.encode()


def test_what_the_fleet_sends_is_read() -> None:
    """Also with one of several secrets, and with fields of a later release."""
    assert RegistryReceiver(SECRET).read(*sent()) == EVENT
    assert RegistryReceiver([OTHER_SECRET, SECRET]).read(*sent(data={"owl": 1}, more=2)) == EVENT


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: sent(secret=OTHER_SECRET), "not signed"),
        (lambda: ({}, sent()[1]), "not signed"),
        (lambda: (sent()[0], sent()[1].replace(b"changed", b"removed")), "not signed"),
        (lambda: sent(ago=400), "five minutes"),
        (lambda: sent(EVENT.model_copy(update={"id": "0000000000000001-0000000000000043"})), "another id"),
        (lambda: sent(data={"kind": "eaten"}), "cannot be read"),
        (lambda: sent(data={"at": None}), "cannot be read"),
        (lambda: (sent()[0], b"x" * 1_000_001), "too large"),
    ],
)
def test_anything_else_is_refused(make: Callable[[], Sent], why: str) -> None:
    """Forged, changed on the way, too old, under another id, and what is none."""
    with pytest.raises(WebhookRefused, match=why) as caught:
        RegistryReceiver(SECRET).read(*make())
    assert not isinstance(caught.value, WakeRefused)


def test_a_receiver_needs_a_secret() -> None:
    """One that no fleet has is refused at once."""
    with pytest.raises(ValueError, match="needs a secret"):
        RegistryReceiver([])
    with pytest.raises(ValueError, match="whsec_"):
        RegistryReceiver("an owl")
