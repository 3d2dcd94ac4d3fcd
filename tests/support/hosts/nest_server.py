"""An MCP server on the official SDK, as an app or a program: `nest_server.py stdio|http [--old] [--port N]`. It notes calls in `$NOTES`."""

import argparse
import asyncio
import base64
import os
import signal
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import mcp_types as types
import uvicorn
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp.shared.subscriptions import ToolsListChanged

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}}
LABEL = {"type": "object", "properties": {"text": {"type": "string", "x-mcp-header": "Text"}}}
NAMES = [
    "label",
    "echo",
    "weigh",
    "draw",
    "fail",
    "wait",
    "count",
    "hatch",
    "ask",
    "die",
    "environment",
    "brood",
    "tend",
    "log",
    "flood",
    "git/log.v2",
    "Eule-ü",
    "plain.dotted",
]
HINTS = {
    "echo": types.ToolAnnotations(read_only_hint=True),
    "wait": types.ToolAnnotations(idempotent_hint=True),
}
WEIGHT = {"type": "object", "properties": {"grams": {"type": "integer"}}, "required": ["grams"]}


TASKS = "io.modelcontextprotocol/tasks"
MOMENTS = {"createdAt": "2026-11-25T12:00:00Z", "lastUpdatedAt": "2026-11-25T12:00:00Z", "ttlMs": 60000}


class ById(types.RequestParams):
    task_id: str


class Answers(ById):
    input_responses: dict[str, Any]


class Noting:
    """What a server was given, and where it notes what it does."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self.environment = environment

    def note(self, text: str) -> None:
        if path := self.environment.get("NOTES"):
            with Path(path).open("a") as file:
                file.write(f"{text}\n")


class Nest(Noting):
    """Its tools, which grow by one with each `hatch`."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        super().__init__(environment)
        self.names = list(NAMES)
        self.tasks: dict[str, dict[str, Any]] = {}
        self.bus = InMemorySubscriptionBus()

    async def list_tools(self, ctx: Any, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        """Two pages."""
        first = params is None or params.cursor is None
        half = len(self.names) // 2
        shown = self.names[:half] if first else self.names[half:]
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=name,
                    description=f"Does {name}.",
                    input_schema=LABEL if name == "label" else TEXT,
                    output_schema=WEIGHT if name == "weigh" else None,
                    annotations=HINTS.get(name),
                )
                for name in shown
            ],
            next_cursor="more" if first else None,
        )

    async def call_tool(self, ctx: Any, params: types.CallToolRequestParams) -> Any:
        """One call."""
        text = str((params.arguments or {}).get("text", ""))
        self.note(f"{params.name} {text}")
        if params.name not in self.names:
            raise MCPError(-32602, f"there is no tool {params.name}")
        if params.input_responses and isinstance(answer := params.input_responses["who"], types.ElicitResult):
            return types.CallToolResult(content=said(f"Hello {(answer.content or {})['name']}, {params.request_state}"))
        special = getattr(self, f"do_{params.name}", None)
        result = await special(ctx, text) if special is not None else None
        return result or types.CallToolResult(content=said(f"{params.name}: {text} from {os.getpid()}"))

    async def do_weigh(self, ctx: Any, text: str) -> Any:
        image = types.ImageContent(type="image", data=base64.b64encode(PNG).decode(), mime_type="image/png")
        return types.CallToolResult(content=[*said('{"grams": 12}'), image], structured_content={"grams": 12})

    async def do_draw(self, ctx: Any, text: str) -> Any:
        return types.CallToolResult(content=drawn())

    async def do_fail(self, ctx: Any, text: str) -> Any:
        return types.CallToolResult(content=said(f"no {text}"), is_error=True)

    async def do_wait(self, ctx: Any, text: str) -> Any:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.note("cancelled")
            raise

    async def do_count(self, ctx: Any, text: str) -> Any:
        for done in range(1, 4):
            await ctx.session.report_progress(done, 4, f"egg {done}")
            await asyncio.sleep(0.3)

    async def do_hatch(self, ctx: Any, text: str) -> Any:
        self.names.append(f"chick{len(self.names)}")
        await self.bus.publish(ToolsListChanged())
        if ctx.protocol_version < "2026":
            await ctx.session.send_tool_list_changed()

    async def do_die(self, ctx: Any, text: str) -> Any:
        assert __name__ == "__main__", "a program of its own may die"
        os.kill(os.getpid(), getattr(signal, text or "SIGKILL"))

    async def do_brood(self, ctx: Any, text: str) -> Any:
        """Go on by itself, where the client can follow that."""
        capabilities: Any = (ctx.meta or {}).get("io.modelcontextprotocol/clientCapabilities") or {}
        extensions = capabilities.get("extensions") if isinstance(capabilities, dict) else capabilities.extensions
        if TASKS not in (extensions or {}):
            return None
        task_id = f"task-{len(self.tasks)}"
        self.tasks[task_id] = {"taskId": task_id, "status": "working", "statusMessage": "warm", "pollIntervalMs": 100}
        return {**self.tasks[task_id], **MOMENTS, "resultType": "task"}

    async def do_tend(self, ctx: Any, text: str) -> Any:
        """Go on by itself, and ask `text` times, once by default. `slow`: its first look after an answer is one from before."""
        task_id = f"task-{len(self.tasks)}"
        asks = int(text) if text.isdigit() else 1
        task = {"taskId": task_id, "status": "input_required", "pollIntervalMs": 100, "inputRequests": who(1)}
        self.tasks[task_id] = {**task, "asks": asks, "names": [], "is_slow": text == "slow"}
        return {"taskId": task_id, "status": "working", "pollIntervalMs": 100, **MOMENTS, "resultType": "task"}

    async def do_log(self, ctx: Any, text: str) -> Any:
        """Say two things; with a `!` the second one when the file says so."""
        await logged(ctx, "debug", f"{text} sleeps")
        await logged(ctx, "info", f"{text} wakes")
        while text.endswith("!") and not Path(self.environment["NOTES"]).with_name("go").exists():  # noqa: ASYNC110 - a file tells nobody
            await asyncio.sleep(0.02)
        await logged(ctx, "warning", {"owl": text, "key": self.environment.get("EGG", "egg"), "nothing": None})

    async def do_flood(self, ctx: Any, text: str) -> Any:
        for number in range(int(text)):
            await logged(ctx, "info", f"{number}")

    async def get_task(self, ctx: Any, params: ById) -> dict[str, Any]:
        """Be done when the file says so."""
        task = self.tasks.get(params.task_id)
        if task is None:
            raise MCPError(-32602, "unknown task")
        if task["status"] == "working" and Path(self.environment["NOTES"]).with_name("hatched").exists():
            task.update(status="completed", result={"content": [{"type": "text", "text": "three chicks"}]})
        if task.get("is_slow") and task["status"] != "input_required":
            task["is_slow"] = False
            return {**task, "status": "input_required", "inputRequests": who(1), **MOMENTS, "resultType": "complete"}
        return {**task, **MOMENTS, "resultType": "complete"}

    async def update_task(self, ctx: Any, params: Answers) -> dict[str, Any]:
        """Take the answer that it waits for, and no other; nor that of `nobody`."""
        task = self.tasks[params.task_id]
        ((key, answer),) = params.input_responses.items()
        name = str((answer.get("content") or {}).get("name"))
        self.note(f"update {params.task_id} {key} {name}")
        if key not in task.get("inputRequests", {}) or name == "nobody":
            raise MCPError(-32602, f"nobody waits for {key}")
        names = task["names"] = [*task["names"], name]
        if len(names) < task["asks"]:
            task["inputRequests"] = who(len(names) + 1)
        else:
            del task["inputRequests"]
            task.update(
                status="completed", result={"content": [{"type": "text", "text": f"Hello {' and '.join(names)}"}]}
            )
        return {"resultType": "complete"}

    async def cancel_task(self, ctx: Any, params: ById) -> dict[str, Any]:
        """End it, unless it has just ended by itself."""
        self.note(f"cancel {params.task_id}")
        if (await self.get_task(ctx, params))["status"] == "completed":
            raise MCPError(-32602, "the task has ended")
        self.tasks[params.task_id]["status"] = "cancelled"
        return {"resultType": "complete"}

    async def set_level(self, ctx: Any, params: types.SetLevelRequestParams) -> types.EmptyResult:
        self.note(f"level {params.level}")
        return types.EmptyResult()

    async def do_environment(self, ctx: Any, text: str) -> Any:
        return types.CallToolResult(content=said(self.environment.get(text, "(none)")))

    async def do_ask(self, ctx: Any, text: str) -> Any:
        """Ask for input, as both eras do."""
        schema = {"type": "object", "properties": {"name": {"type": "string"}}}
        if ctx.protocol_version < "2026":
            name: object = None
            for number in range(int(text or "1")):
                call = None if "ASIDE" in self.environment else ctx.request_id
                answer = await ctx.session.elicit_form("Who?", schema, related_request_id=call)
                name = (answer.content or {}).get("name")
                self.note(f"answered {answer.action} {name}")
                await logged(ctx, "info", f"{name} is number {number + 1}")
            return types.CallToolResult(content=said(f"Hello {name}"))
        request = types.ElicitRequest(params=types.ElicitRequestFormParams(message="Who?", requested_schema=schema))
        return types.InputRequiredResult(input_requests={"who": request}, request_state="s")


def who(number: int) -> dict[str, Any]:
    """What a task asks."""
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    params = {"message": "Who?", "requestedSchema": schema}
    return {f"who-{number}": {"method": "elicitation/create", "params": params}}


async def logged(ctx: Any, level: types.LoggingLevel, data: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its age: older clients want it
        sending = ctx.session.send_log_message(level, data, logger="owls", related_request_id=ctx.request_id)
    await sending


def said(text: str) -> list[types.ContentBlock]:
    return [types.TextContent(type="text", text=text)]


def drawn() -> list[types.ContentBlock]:
    data = base64.b64encode(PNG).decode()
    return [
        types.TextContent(type="text", text="an owl"),
        types.ImageContent(type="image", data=data, mime_type="image/jpeg"),  # which it is not
        types.AudioContent(type="audio", data=base64.b64encode(b"RIFF....WAVEfmt ").decode(), mime_type="audio/wav"),
        types.EmbeddedResource(
            type="resource", resource=types.TextResourceContents(uri="nest://egg", mime_type="text/plain", text="egg")
        ),
        types.ResourceLink(type="resource_link", uri="nest://owl", name="owl", mime_type="image/png"),
    ]


class Deaf:
    """Knows no question of the newer era, as servers before it."""

    def __init__(self, read: Any, write: Any) -> None:
        self._read, self._write = read, write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._read, name)

    async def __aenter__(self) -> Self:
        await self._read.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> Any:
        return await self._read.__aexit__(*error)

    def __aiter__(self) -> "Deaf":
        return self

    async def __anext__(self) -> Any:
        while True:
            item = await self._read.__anext__()
            message: Any = getattr(item, "message", None)
            if getattr(message, "method", None) != "server/discover":
                return item
            error = types.ErrorData(code=-32601, message="Method not found")
            await self._write.send(SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=message.id, error=error)))


async def completion(ctx: Any, params: Any) -> types.CompleteResult:
    return types.CompleteResult(completion=types.Completion(values=["owl"]))


def server_of(nest: Nest, *, is_old: bool) -> Server[Any]:
    async def prompts(ctx: Any, params: Any) -> types.ListPromptsResult:
        return types.ListPromptsResult(prompts=[types.Prompt(name="greet", description="Greet.")])

    async def prompt(ctx: Any, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        message = types.PromptMessage(role="user", content=types.TextContent(type="text", text=f"Hoot {params.name}"))
        return types.GetPromptResult(messages=[message])

    async def resources(ctx: Any, params: Any) -> types.ListResourcesResult:
        return types.ListResourcesResult(resources=[types.Resource(uri="nest://egg", name="egg")])

    async def resource(ctx: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        return types.ReadResourceResult(
            contents=[types.TextResourceContents(uri=params.uri, text=nest.environment.get("EGG", "egg"))]
        )

    server: Server[Any] = Server(
        "nest",
        get_tool_input_schema=lambda name: LABEL if name == "label" else None,
        version="1",
        on_list_tools=nest.list_tools,
        on_call_tool=nest.call_tool,
        on_list_prompts=prompts,
        on_get_prompt=prompt,
        on_list_resources=resources,
        on_read_resource=resource,
        on_completion=completion,
        on_subscriptions_listen=None if is_old else ListenHandler(nest.bus),
    )
    server.extensions[TASKS] = {}
    server.add_request_handler("tasks/get", ById, nest.get_task)
    server.add_request_handler("tasks/update", Answers, nest.update_task)
    server.add_request_handler("tasks/cancel", ById, nest.cancel_task)
    if is_old:
        make_older(server)
        server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, nest.set_level)
    return server


def make_older(server: Server[Any]) -> None:
    """Have it know no question of the newer era, over HTTP."""

    async def unknown(ctx: Any, params: Any) -> Any:
        raise MCPError(-32601, "Method not found")

    server.add_request_handler("server/discover", types.RequestParams, unknown)


def http_app(server: Server[Any], environment: Mapping[str, str]) -> Any:
    """The server over HTTP; it opens the stream on which it speaks by itself after `STREAM_SECONDS`, or never if the client has gone."""
    app, seconds = server.streamable_http_app(), float(environment.get("STREAM_SECONDS", "0"))

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        messages = []
        if scope["type"] == "http" and scope["method"] == "GET" and seconds:
            messages.append(await receive())
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    messages.append(await receive())  # the client has gone

        async def received() -> Any:
            return messages.pop(0) if messages else await receive()

        if len(messages) < 2:
            await app(scope, received, send)

    return answer


async def main(make: Callable[[bool], Server[Any]], told: NotificationOptions, greeting: str = "") -> None:
    """Serve what `make` gives for an older server or a newer one, as the program's arguments say."""
    parser = argparse.ArgumentParser()
    parser.add_argument("transport")
    parser.add_argument("--old", action="store_true")
    parser.add_argument("--port", type=int, default=0)
    said_of = parser.parse_args()
    server = make(said_of.old)
    Noting().note(f"started {os.getpid()}")
    if said_of.transport == "stdio":
        sys.stderr.write(greeting)
        async with stdio_server() as (read, write):
            heard: Any = Deaf(read, write) if said_of.old else read
            await server.run(heard, write, server.create_initialization_options(told))
        return
    config = uvicorn.Config(http_app(server, os.environ), host="127.0.0.1", port=said_of.port, log_level="warning")
    await uvicorn.Server(config).serve()


if __name__ == "__main__":
    options = NotificationOptions(tools_changed=True)
    asyncio.run(main(lambda is_old: server_of(Nest(), is_old=is_old), options, "owls say hello\n"))
