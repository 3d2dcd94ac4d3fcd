"""A real module over real HTTP, whose tools a test can see into. Runs in a thread, so that it outlives a test's loop."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from support.waiting import PATIENCE_SECONDS

Request = dict[str, Any]
Tool = Callable[[Request], Awaitable[web.StreamResponse | dict[str, Any]]]
"""Gets the body of `POST /execute`; answers with the reply's fields beside `tool_name`, or with a whole response."""


@dataclass
class ModuleServer:
    """`requests` has every body that came, `headers` theirs; `interrupted` those whose caller hung up.

    `is_mute`: it does not say what it offers. `token`: who does not bear it gets 401, and is quoted; `visits` has each request's path
    and `Authorization`. `memory`, if it is set, answers `POST /reconcile`: the fields beside the call id, by what the module was asked, at once or awaited;
    so does `statuses` for `POST /status`.
    """

    name: str
    definitions: list[dict[str, Any]] = field(default_factory=list)
    tools: dict[str, Tool] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    interrupted: list[Request] = field(default_factory=list)
    under_way: list[Request] = field(default_factory=list)
    memory: Callable[[Request], dict[str, Any] | Awaitable[dict[str, Any]]] | None = None
    statuses: Callable[[Request], dict[str, Any] | Awaitable[dict[str, Any]]] | None = None
    is_mute: bool = False
    on_change: str | None = None
    token: str | None = None
    visits: list[tuple[str, str | None]] = field(default_factory=list)
    looks: int = 0
    most_running: int = 0
    url: str = ""

    def add(self, method: str, tool: Tool, **definition: Any) -> None:
        """Offer a tool."""
        self.tools[f"{self.name}.{method}"] = tool
        self.definitions.append(
            {"name": f"{self.name}.{method}", "description": method, "parameters": [], **definition}
        )

    def forget(self) -> None:
        """Start counting anew. A call of before that still runs counts no more."""
        for record in (self.requests, self.headers, self.interrupted, self.visits, self.under_way):
            record.clear()
        self.most_running = 0

    @property
    def running(self) -> int:
        """How many calls run."""
        return len(self.under_way)

    def calls(self, method: str) -> list[Request]:
        """The requests for one tool."""
        return [request for request in self.requests if request["tool_name"] == f"{self.name}.{method}"]

    def call_ids(self, method: str) -> list[str]:
        """The ids under which one tool was called, one for each request."""
        both = zip(tuple(self.requests), tuple(self.headers), strict=False)  # one may be coming just now
        return [
            headers["idempotency-key"] for request, headers in both if request["tool_name"] == f"{self.name}.{method}"
        ]

    async def manifest(self, _: web.Request) -> web.Response:
        self.looks += 1
        if self.is_mute:
            raise web.HTTPServiceUnavailable
        more = {} if self.on_change is None else {"on_change": self.on_change}
        return web.json_response({"module_name": self.name, "description": "", "tools": self.definitions, **more})

    async def health(self, _: web.Request) -> web.Response:
        return web.Response(text="well")

    @property
    def guard(self) -> Any:
        @web.middleware
        async def guard(
            request: web.Request, handler: Callable[..., Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            told = request.headers.get("Authorization")
            self.visits.append((request.path, told))
            if self.token is not None and told != f"Bearer {self.token}":
                raise web.HTTPUnauthorized(text=f"You have said {told}, and that is wrong.")
            return await handler(request)

        return guard

    async def reconcile(self, request: web.Request) -> web.Response:
        return await _said(request, self.memory)

    async def status(self, request: web.Request) -> web.Response:
        return await _said(request, self.statuses)

    async def execute(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        self.under_way.append(body)
        self.requests.append(body)  # whoever sees it finds its headers
        self.most_running = max(self.most_running, self.running)
        try:
            answer = await self.tools[body["tool_name"]](body)
        except asyncio.CancelledError:
            if self._counts(body):
                self.interrupted.append(body)
            raise
        finally:
            self.under_way[:] = [request for request in self.under_way if request is not body]
        if isinstance(answer, web.StreamResponse):
            return answer
        return web.json_response({"tool_name": body["tool_name"], "error": None, "result": None, **answer})

    def _counts(self, body: Request) -> bool:
        """Whether a call has begun since it was told to forget."""
        return any(request is body for request in self.under_way)


async def _said(
    request: web.Request, says: Callable[[Request], dict[str, Any] | Awaitable[dict[str, Any]]] | None
) -> web.Response:
    if says is None:
        raise web.HTTPNotFound
    question = await request.json()
    answer = says(question)
    return web.json_response({**question, **(await answer if isinstance(answer, Awaitable) else answer)})


@contextmanager
def holding(module: ModuleServer, method: str) -> Generator[Callable[[], None]]:
    """Have each call of a tool wait in the module until the block ends, or what this yields is called; then the tool runs it."""
    name, released = f"{module.name}.{method}", threading.Event()
    tool = module.tools[name]

    async def wait(request: Request) -> web.StreamResponse | dict[str, Any]:
        await asyncio.to_thread(released.wait, 60)
        return await tool(request)

    module.tools[name] = wait
    try:
        yield released.set
    finally:
        released.set()
        module.tools[name] = tool


def hold(module: ModuleServer, method: str) -> asyncio.Event:
    """Have each call of a tool wait, in a module on the test's own loop, until this event is set; then the tool runs it."""
    name, released = f"{module.name}.{method}", asyncio.Event()
    tool = module.tools[name]

    async def wait(request: Request) -> web.StreamResponse | dict[str, Any]:
        await released.wait()
        return await tool(request)

    module.tools[name] = wait
    return released


@contextmanager
def serve(module: ModuleServer, *, port: int = 0) -> Generator[ModuleServer]:
    """Serve the module on this port of the loopback interface, or on a free one."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    runner = asyncio.run_coroutine_threadsafe(start(module, port), loop).result(PATIENCE_SECONDS)
    try:
        yield module
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(PATIENCE_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_SECONDS)
        loop.close()


async def start(module: ModuleServer, port: int) -> web.AppRunner:
    app = web.Application(client_max_size=2**26, middlewares=[module.guard])
    app.router.add_get("/manifest", module.manifest)
    app.router.add_get("/health", module.health)
    app.router.add_post("/execute", module.execute)
    app.router.add_post("/reconcile", module.reconcile)
    app.router.add_post("/status", module.status)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    host, port = runner.addresses[0][:2]
    module.url = f"http://{host}:{port}"
    return runner
