"""Makes a job that a webhook ends, and sends the webhook."""

import asyncio
import json
import os
from base64 import b64encode
from datetime import UTC, datetime

import httpx
from standardwebhooks import Webhook

URL, KEY = os.environ["URL"], os.environ["KEY"]


async def main() -> None:
    async with httpx.AsyncClient(base_url=URL) as client:
        secret = "whsec_" + b64encode(os.urandom(32)).decode()  # each job has its own
        hook = {"secrets": [secret], "requires_job_id": True}
        wish = {"hook": hook, "conversation": {"conversation_id": "hatchery"}}
        job = (await client.post("/jobs", json=wish, headers={"Authorization": f"Bearer {KEY}"})).json()

        # What the outside system does, when the eggs have hatched.
        body = json.dumps({"job_id": job["job_id"], "success": True, "result": {"owlets": 3}})
        now = datetime.now(UTC)
        headers = {
            "webhook-id": "msg_1",
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": Webhook(secret).sign("msg_1", now, body),
            "content-type": "application/json",
        }
        answer = await client.post(f"/hooks/{job['job_id']}", content=body, headers=headers)
        print(answer.json()["state"])


asyncio.run(main())
