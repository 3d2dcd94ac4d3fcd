"""The modules of the benchmark, in one process: `/<module>/manifest` and `/<module>/execute`, for any name.

`python -m benchmarks.module.app PORT`. A module named `wait<n>` answers after n ms, any other at once; `/most-running`
says how many calls ran at the same time, since it was asked last. As little as possible, so that it limits nothing.
"""

import asyncio
import json
import resource
import sys
from typing import Any

import uvicorn

_HEADERS = [(b"content-type", b"application/json")]
_BACKLOG = 8192
_PARAMETERS = {"title": "string", "text": "string", "tags": "array", "number": "integer", "nested": "object"}


class Modules:
    """The application."""

    def __init__(self) -> None:
        self._running = self._most_running = 0

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Answer one request; the server's start and end are not our business."""
        if scope["type"] != "http":
            await _start_and_end(receive, send)
            return
        _, module, *rest = scope["path"].split("/")
        if rest == ["execute"]:
            await self._execute(module, json.loads(await _body(receive)), send)
        elif rest == ["manifest"]:
            await _answer(send, _manifest(module))
        else:
            await _answer(send, {"most_running": self._most_running})
            self._most_running = self._running

    async def _execute(self, module: str, call: dict[str, Any], send: Any) -> None:
        self._running += 1
        self._most_running = max(self._most_running, self._running)
        if module.startswith("wait"):
            await asyncio.sleep(int(module.removeprefix("wait")) / 1000)
        self._running -= 1
        result = {"echo": call["arguments"]}
        await _answer(send, {"tool_name": call["tool_name"], "success": True, "result": result, "error": None})


def _manifest(module: str) -> dict[str, Any]:
    parameters = [{"name": name, "type": kind, "description": ""} for name, kind in _PARAMETERS.items()]
    tool = {"name": f"{module}.echo", "description": "Echoes.", "parameters": parameters, "effect": "read"}
    return {"module_name": module, "description": "", "tools": [tool]}


async def _body(receive: Any) -> bytes:
    parts: list[bytes] = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


async def _answer(send: Any, content: dict[str, Any]) -> None:
    body = json.dumps(content).encode()
    headers = [*_HEADERS, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _start_and_end(receive: Any, send: Any) -> None:
    while (message := await receive())["type"] != "lifespan.shutdown":
        await send({"type": f"{message['type']}.complete"})
    await send({"type": "lifespan.shutdown.complete"})


def main() -> None:
    """Serve on the loopback interface."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    uvicorn.run(
        Modules(),
        host="127.0.0.1",
        port=int(sys.argv[1]),
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
        backlog=_BACKLOG,
        timeout_keep_alive=120,
    )


if __name__ == "__main__":
    main()
