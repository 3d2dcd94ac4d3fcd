"""Calls that are put into a fleet's queues without a client, so that what becomes of them can be watched in Redis."""

import json
import uuid
from typing import Any

from support.published_call import published
from support.worker_process import Calls
from toolfleet_registry.settings import Settings
from toolfleet_tasks.app import make_app
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.messages.envelope import TASK


class FleetCalls(Calls):
    """`Calls` of a fleet, by tool."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(str(settings.redis_url), "tools.owls")
        self.app.close()
        self.app = make_app(settings, stores_results=False)
        self.app.conf.task_create_missing_queues = True

    def call(self, method: str, *, queue: str = "tools.owls", countdown: float | None = None, **arguments: Any) -> str:
        """Publish a call of one of the owls' tools; returns its id."""
        return self.publish(
            f"{queue.removeprefix('tools.')}.{method}", countdown=countdown, arguments=arguments, effect="read"
        )

    def publish(self, tool_name: str, *, countdown: float | None = None, **fields: Any) -> str:
        """Publish a call of any module's tool, with these fields of the message; returns its id."""
        call_id = str(uuid.uuid4())
        call = published(tool_name, call_id=call_id, limit_seconds=60, **fields)
        limits = {"soft_time_limit": 61, "time_limit": 70}
        queue = f"tools.{tool_name.partition('.')[0]}"
        self.app.send_task(TASK, [json_text.dump(call)], queue=queue, task_id=call_id, countdown=countdown, **limits)
        return call_id

    def results(self, *call_ids: str, seconds: float = 20) -> list[dict[str, Any]]:
        """What became of the calls, once all have ended."""
        ends = self.wait(*call_ids, seconds=seconds)
        return [json.loads(end["result"]) if end["status"] == "SUCCESS" else end for end in ends]

    def succeeded(self, *call_ids: str, seconds: float = 20) -> list[bool]:
        return [bool(result.get("success")) for result in self.results(*call_ids, seconds=seconds)]
