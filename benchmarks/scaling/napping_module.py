"""The module of the benchmark of scaling: `python -m benchmarks.scaling.napping_module PORT`.

`work.nap` takes `seconds`. `GET /begun` lists each request that has come: its call's number, and how long after its publishing.
"""

import asyncio
import json
import sys
import time
from typing import Any

import uvicorn

_PARAMETERS = [{"name": name, "type": "number", "description": name} for name in ("number", "published_at", "seconds")]
MANIFEST = {"module_name": "work", "tools": [{"name": "work.nap", "effect": "once", "parameters": _PARAMETERS}]}


class NappingModule:
    """The application."""

    def __init__(self) -> None:
        self._begun = list[tuple[int, float]]()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            while (event := (await receive())["type"]) != "lifespan.shutdown":
                await send({"type": f"{event}.complete"})
            await send({"type": "lifespan.shutdown.complete"})
        elif scope["path"] == "/execute":
            asked = json.loads(await _body(receive))["arguments"]
            self._begun.append((int(asked["number"]), time.time() - asked["published_at"]))
            await asyncio.sleep(asked["seconds"])
            await _answer(send, {"tool_name": "work.nap", "success": True, "result": "awake"})
        else:
            await _answer(send, MANIFEST if scope["path"] == "/manifest" else self._begun)


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
    uvicorn.run(NappingModule(), host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", access_log=False)
