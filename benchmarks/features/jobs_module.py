"""The module that the jobs of the benchmark poll: `python -m benchmarks.features.jobs_module PORT`.

`work.status` is always completed. `GET /lateness` says how many seconds after its job was due each poll has come.
"""

import json
import sys
import time
from typing import Any

import uvicorn

MANIFEST = {
    "module_name": "work",
    "tools": [
        {
            "name": "work.status",
            "effect": "read",
            "parameters": [{"name": "due_at", "type": "number", "description": "When the job was due."}],
        }
    ],
}


class Module:
    """The application."""

    def __init__(self) -> None:
        self._late = list[float]()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            while (event := (await receive())["type"]) != "lifespan.shutdown":
                await send({"type": f"{event}.complete"})
            await send({"type": "lifespan.shutdown.complete"})
        elif scope["path"] == "/execute":
            call, now = json.loads(await _body(receive)), time.time()
            self._late.append(now - call["arguments"]["due_at"])
            await _answer(send, {"tool_name": "work.status", "success": True, "result": {"status": "completed"}})
        else:
            await _answer(send, MANIFEST if scope["path"] == "/manifest" else self._late)


async def _body(receive: Any) -> bytes:
    body, more = b"", True
    while more:
        event = await receive()
        body, more = body + event.get("body", b""), event.get("more_body", False)
    return body


async def _answer(send: Any, content: Any) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(content).encode()})


if __name__ == "__main__":
    uvicorn.run(Module(), host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", access_log=False)
