"""Our own client, as an agent uses it; and stock Celery's way to wait, on our worker."""

import asyncio
import json
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.work import Call

from toolfleet import Caller, Conversation, ToolCall, ToolFleet
from toolfleet_registry.contracts import PublishedCall
from toolfleet_registry.settings import load_settings
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.messages.envelope import TASK
from toolfleet_tasks.queues import queue_of

_CALLER = Caller(permission="owner", allowed_modules="*")
_SECONDS = 60


class Client:
    """`ToolFleet`, for a caller with rights to everything, or for an agent that names its run and its thread."""

    def __init__(self, agent: str | None = None) -> None:
        self._caller = _CALLER if agent is None else _CALLER.model_copy(update={"agent": agent})
        self._conversation = None if agent is None else Conversation(conversation_id="thread", run_id="run")

    async def open(self) -> None:
        """Enter the fleet."""
        self._fleet = await ToolFleet().__aenter__()
        self._is_first = True

    async def call(self, call: Call) -> dict[str, Any]:
        """Run a tool. The first call may be made before there is a worker, whose start is measured with it."""
        waits, self._is_first = self._is_first, False
        result = await self._fleet.call(
            _tool_call(call), self._caller, conversation=self._conversation, waits_for_worker=waits
        )
        return {"success": result.success, "result": result.result, "error": result.error}

    async def publish(self, call: Call) -> None:
        """Publish a call, with a worker or without."""
        await self._fleet.submit(_tool_call(call), self._caller, conversation=self._conversation, waits_for_worker=True)


class ThreadedClient:
    """What one would do without it: Celery's `send_task` and `get` in threads, with the message that our task takes."""

    def __init__(self, threads: int) -> None:
        from toolfleet_tasks.app import make_app  # our own client loads no Celery

        self._threads = threads
        self._app = make_app(load_settings())

    async def open(self) -> None:
        """Get the threads."""
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(self._threads))

    async def call(self, call: Call) -> dict[str, Any]:
        """Publish a call and wait for its result, in a thread."""
        return await asyncio.to_thread(self._send_and_get, call)

    async def publish(self, call: Call) -> None:
        """Publish a call, in a thread."""
        await asyncio.to_thread(self._send, call)

    def _send(self, call: Call) -> Any:
        published = PublishedCall(
            call_id=str(uuid.uuid4()),
            tool_name=call.tool_name,
            arguments=call.arguments,
            user_id=call.user_id,
            caller=_CALLER,
            effect="read",
            limit_seconds=_SECONDS,
            published_at=time.time(),
            deadline_at=time.time() + _SECONDS,
        )
        queue = queue_of(call.tool_name.partition(".")[0])
        return self._app.send_task(
            TASK,
            args=[json_text.dump(published)],
            task_id=published.call_id,
            queue=queue,
            argsrepr="…",
            kwargsrepr="{}",
        )

    def _send_and_get(self, call: Call) -> dict[str, Any]:
        answer = json.loads(self._send(call).get(timeout=_SECONDS))
        return {"success": answer["success"], "result": answer["result"]}


def _tool_call(call: Call) -> ToolCall:
    return ToolCall(tool_name=call.tool_name, arguments=call.arguments, user_id=call.user_id)


def connect(variant: str) -> Client | ThreadedClient:
    """Ours, also for an agent by its name; or with so many threads that wait."""
    return ThreadedClient(int(variant)) if variant.isdecimal() else Client(variant or None)
