"""Who follows the registry by webhooks: a real receiver, which verifies what comes and keeps it."""

import asyncio
import base64
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from toolfleet.stores import ToolSpec
from toolfleet.webhooks import RegistryEvent, RegistryReceiver, WebhookRefused
from toolfleet_registry.catalog.operator import fleets_registry
from toolfleet_registry.settings import Settings
from toolfleet_registry.specs import ToolFinding
from toolfleet_registry.store.registry import ToolRegistry

SECRET = "whsec_" + base64.b64encode(b"r" * 32).decode()


class Follower:
    """`events`: each delivery that it has accepted, in the order in which they came. `status` is its answer; `hangs`: it gives none."""

    def __init__(self) -> None:
        self.events: list[RegistryEvent] = []
        self.refused = 0
        self.status, self.hangs = 200, False
        self._receiver = RegistryReceiver(SECRET)
        self._runner: web.AppRunner | None = None
        self._port = 0
        self._released = asyncio.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/tools?token=s3cret"

    @property
    def told(self) -> list[tuple[str, str]]:
        """Kind and tool of each."""
        return [(event.kind, event.tool_name) for event in self.events]

    async def start(self) -> None:
        """Listen, the second time at the same address."""
        app = web.Application()
        app.router.add_post("/tools", self._take)
        self._runner = web.AppRunner(app, shutdown_timeout=1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        self._released.set()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        if self.hangs:
            await self._released.wait()
        try:
            event = self._receiver.read(request.headers, await request.read())
        except WebhookRefused:
            self.refused += 1
            return web.Response(status=401)
        if self.status == 200:
            self.events.append(event)
        return web.Response(status=self.status)


@asynccontextmanager
async def following() -> AsyncGenerator[Follower]:
    """A receiver that listens."""
    follower = Follower()
    await follower.start()
    try:
        yield follower
    finally:
        await follower.stop()


def spec(name: str, version: str = "1.0.0", **fields: Any) -> ToolSpec:
    """Of a tool that takes and returns anything."""
    return ToolSpec(tool_name=name, version=version, input_schema={}, output_schema={}, **fields)


async def change(settings: Settings, *names: str) -> None:
    """Register tools in the fleet's registry."""
    async with fleets_registry(settings) as registry:
        await asyncio.to_thread(registry.register_many, [spec(name) for name in names])


def live_through_all(registry: ToolRegistry) -> list[tuple[str, str]]:
    """Have everything happen that can happen to a tool. Returns kind and tool of each event, in order."""
    registry.register(spec("owls.count"))
    registry.register(spec("owls.count", "1.1.0"))
    registry.rollback("owls.count", "1.0.0")
    registry.set_enabled("owls.count", False)
    registry.set_enabled("owls.count", True)
    registry.note([ToolFinding(kind="drifted", tool_name="owls.count")])
    registry.note([ToolFinding(kind="withheld", tool_name="owls.feed")])
    registry.remove("owls.count")
    kinds = ["registered", "changed", "rolled_back", "disabled", "enabled", "drifted"]
    return [*((kind, "owls.count") for kind in kinds), ("withheld", "owls.feed"), ("removed", "owls.count")]
