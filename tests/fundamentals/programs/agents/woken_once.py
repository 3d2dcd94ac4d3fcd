"""Receives wake-ups in an agent's core: each is acted on once, however often it comes."""

import asyncio
import time
from datetime import UTC, datetime

from standardwebhooks import Webhook

from toolfleet import Settings, WakeUp
from toolfleet.webhooks import RedisSeen, WakeReceiver

SECRET = "whsec_" + "c2VjcmV0" * 5
woken = WakeUp(type="job.completed", wake_id=f"w-{time.time()}", job_id="j-1", timestamp=1.0, message="41 owls.")


def delivery() -> tuple[dict[str, str], bytes]:
    """Make what a worker posts to `{core_url}/continue`."""
    body, at = woken.model_dump_json(), datetime.now(UTC)
    signature = Webhook(SECRET).sign(woken.wake_id, at, body)
    headers = {"webhook-timestamp": str(int(at.timestamp())), "webhook-signature": signature}
    return {"webhook-id": woken.wake_id, **headers}, body.encode()


async def main() -> None:
    seen = RedisSeen(str(Settings().redis_url))
    receiver = WakeReceiver(SECRET, seen)
    for _ in range(2):
        async with receiver.receive(*delivery()) as received:
            print("repeat" if received.wake is None else received.wake.message)
    await seen.aclose()


asyncio.run(main())

# It prints:
# 41 owls.
# repeat
