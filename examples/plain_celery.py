"""Calls tools from a program that has Celery, and nothing of Toolfleet."""

import json
import os
import time
import uuid
from typing import Any

from celery import Celery

REDIS_URL = os.environ["REDIS_URL"]
app = Celery(broker=REDIS_URL, backend=REDIS_URL)


def call(tool_name: str, arguments: dict[str, Any], caller: dict[str, Any], seconds: float = 60) -> Any:
    """Send a call, and return its result."""
    call_id, now = str(uuid.uuid4()), time.time()
    message = {
        "call_id": call_id,  # the same as the task's id
        "tool_name": tool_name,
        "arguments": arguments,
        "user_id": caller["user_id"],
        "caller": caller,
        "effect": None,  # as the tool declares it: "read", "idempotent", "once", or None
        "limit_seconds": 30,  # for the module's request
        "published_at": now,
        "deadline_at": now + seconds,  # for waiting and running together
    }
    queue = f"tools.{tool_name.partition('.')[0]}"
    options = {"queue": queue, "task_id": call_id, "shadow": tool_name}  # Flower shows the shadow
    sent = app.send_task("toolfleet.execute", [json.dumps(message)], **options)
    return json.loads(sent.get(timeout=seconds))


ada = {"user_id": "ada", "permission": "user", "allowed_modules": "*"}
print(call("owls.echo", {"text": "hello"}, ada))
print(call("owls.ecco", {"text": "hello"}, ada))
