"""A server that answers as Anthropic's Messages API does, by a script: Claude Code asks it as it would ask the real one."""

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Step = tuple[str, dict[str, Any], str]
"""A tool's name, its arguments, and Claude's id of the call."""


@dataclass
class ScriptedClaude:
    """Calls one tool for each of `steps`, and then says "done". `offered` has the tools of each request, `shown` what came of the calls."""

    steps: Sequence[Step]
    url: str = ""
    offered: list[set[str]] = field(default_factory=list)
    shown: list[dict[str, Any]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if not request.path.endswith("/messages"):
            return web.json_response({"input_tokens": 1})
        body = await request.json()
        tools = {tool["name"] for tool in body.get("tools", ())}
        if not tools.intersection(name for name, _, _ in self.steps):  # such as for a title of the session
            return _stream(body, {"type": "text", "text": ""}, {"type": "text_delta", "text": "done"}, "end_turn")
        self.offered.append(tools)
        contents = [message["content"] for message in body["messages"] if isinstance(message["content"], list)]
        self.shown = [part for content in contents for part in content if part.get("type") == "tool_result"]
        if len(self.shown) >= len(self.steps):
            return _stream(body, {"type": "text", "text": ""}, {"type": "text_delta", "text": "done"}, "end_turn")
        name, arguments, call_id = self.steps[len(self.shown)]
        block = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
        return _stream(body, block, {"type": "input_json_delta", "partial_json": json.dumps(arguments)}, "tool_use")


@asynccontextmanager
async def scripted_claude(*steps: Step) -> AsyncGenerator[ScriptedClaude]:
    """Serve the script on a free port."""
    script = ScriptedClaude(steps)
    app = web.Application()
    app.router.add_post("/{path:.*}", script.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    script.url = "http://{}:{}".format(*runner.addresses[0][:2])
    try:
        yield script
    finally:
        await runner.cleanup()


def _stream(body: dict[str, Any], block: dict[str, Any], delta: dict[str, Any], stop: str) -> web.Response:
    usage = {"input_tokens": 1, "output_tokens": 1}
    begun = {"id": "m", "type": "message", "role": "assistant", "model": body["model"], "content": []}
    events: list[tuple[str, dict[str, Any]]] = [
        ("message_start", {"message": {**begun, "stop_reason": None, "stop_sequence": None, "usage": usage}}),
        ("content_block_start", {"index": 0, "content_block": block}),
        ("content_block_delta", {"index": 0, "delta": delta}),
        ("content_block_stop", {"index": 0}),
        ("message_delta", {"delta": {"stop_reason": stop, "stop_sequence": None}, "usage": usage}),
        ("message_stop", {}),
    ]
    text = "".join(f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n" for kind, data in events)
    return web.Response(text=text, content_type="text/event-stream")
