"""What talks to the example core as its bots and the fleet do."""

import base64
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
from fastapi import FastAPI
from standardwebhooks import Webhook

from toolfleet_registry.contracts.jobs import WakeUp

SECRET = "whsec_" + base64.b64encode(b"o" * 32).decode()


@dataclass
class Bot:
    """What talks to a core: users' messages, and the fleet's wake-ups."""

    http: httpx.AsyncClient
    app: FastAPI

    async def say(self, text: str = "hello", **fields: Any) -> httpx.Response:
        return await self.http.post("/message", json={"user_id": "ada", "text": text, **fields})

    async def begin(self) -> str:
        """Say something; the conversation's id."""
        reply = await self.say()
        return str(reply.raise_for_status().json()["conversation_id"])

    async def wake(self, conversation_id: str | None, path: str = "/continue", **fields: Any) -> httpx.Response:
        fields.setdefault("kind", path.removeprefix("/"))
        sent = wake_up(conversation_id, **fields)
        return await self.http.post(path, content=sent[1], headers=sent[0])

    async def said(self, conversation_id: str) -> list[tuple[str, str]]:
        shown = (await self.http.get(f"/conversations/{conversation_id}")).raise_for_status().json()
        return [(message["source"], message["text"]) for message in shown["messages"]]


Open = Callable[..., AbstractAsyncContextManager[Bot]]


def wake_up(
    conversation_id: str | None, *, wake_id: str | None = None, secret: str = SECRET, late: float = 0, **fields: Any
) -> tuple[dict[str, str], bytes]:
    """A signed wake-up: headers and body. One of each conversation, unless it has an id."""
    wake_id = wake_id or f"wake-{conversation_id}"  # the fleet outlives a test, and remembers what followed from which
    facts = {"type": "job.completed", "wake_id": wake_id, "job_id": "j1", "timestamp": 1, "message": "Ready.", **fields}
    wake = WakeUp.model_validate({"user_id": "ada", **facts, "conversation_id": conversation_id})
    body = wake.model_dump_json()
    at = datetime.now(UTC) - timedelta(seconds=late)
    headers = {
        "webhook-id": wake_id,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": Webhook(secret).sign(wake_id, at, body),
    }
    return headers, body.encode()
