"""Signs requests as an outside system does that ends a job."""

import time
from datetime import UTC, datetime

from standardwebhooks import Webhook

SECRET = "whsec_" + "b3ds" * 8


def signed(body: bytes, secret: str = SECRET, *, delivery: str = "msg_1", at: datetime | None = None) -> dict[str, str]:
    """The headers of a request, as Standard Webhooks has them."""
    at = at or datetime.fromtimestamp(time.time(), UTC)  # the time that a bed replaces
    signature = Webhook(secret).sign(delivery, at, body.decode())
    headers = {"webhook-id": delivery, "webhook-timestamp": str(int(at.timestamp())), "webhook-signature": signature}
    return headers | {"content-type": "application/json"}
