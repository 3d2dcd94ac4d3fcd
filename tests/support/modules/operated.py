"""A module whose tools a test changes, with a beat and an agent that share nothing but Redis."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio import Redis

from support.modules.raw_modules import answering, manifest_of, raw_module
from toolfleet_registry.catalog.catalog import Catalog, Judged
from toolfleet_registry.contracts import Caller, ToolCall, ToolResult
from toolfleet_registry.manifests.manifest_cache import ManifestCache
from toolfleet_registry.settings import Settings

OWNER = Caller(permission="owner", allowed_modules="*")


class Git:
    """A module whose tools a test changes; and an agent beside an operator, who share nothing but Redis."""

    def __init__(self) -> None:
        self.manifest = manifest_of("git", "log", "pull", "push")

    def change(self, method: str, **fields: Any) -> None:
        """Offer a tool with other fields from now on."""
        next(tool for tool in self.manifest["tools"] if tool["name"] == f"git.{method}").update(fields)

    def offer(self, *methods: str) -> None:
        """Offer exactly these tools."""
        self.manifest = manifest_of("git", *methods)

    async def answer(self, head: bytes, writer: asyncio.StreamWriter) -> None:
        await answering(json.dumps(self.manifest).encode())(head, writer)


class Stage:
    def __init__(self, git: Git, settings: Settings, redis: Redis) -> None:
        self.git, self.settings, self.redis = git, settings, redis
        self.beat, self.agent = (Catalog(settings, ManifestCache(redis, ttl_seconds=100)) for _ in range(2))

    async def refresh(self) -> None:
        await self.beat.refresh()

    async def change(self, method: str, **fields: Any) -> None:
        """Have the module offer a tool with other fields, and the beat look at it."""
        self.git.change(method, **fields)
        await self.refresh()

    async def offer(self, *methods: str) -> None:
        """Have the module offer exactly these tools, and the beat look at it."""
        self.git.offer(*methods)
        await self.refresh()

    async def listed(self) -> dict[str, str]:
        """What an agent lists now: method -> description."""
        await self.agent.load()
        return {tool.name.partition(".")[2]: tool.description for tool in self.agent.tools(OWNER)}

    async def refusal(self, method: str) -> str | None:
        """Why the agent's call is refused now; `None` if it is not."""
        await self.agent.load()
        judged = self.agent.judge(ToolCall(tool_name=f"git.{method}"), OWNER)
        if isinstance(judged, Judged):
            return None
        assert isinstance(judged, ToolResult)
        assert (judged.error_code, judged.effect_state) == ("permission_denied", "none")
        return judged.error


@asynccontextmanager
async def staged(redis: Redis, redis_url: str, registry_url: str | None) -> AsyncGenerator[Stage]:
    git = Git()
    async with raw_module(git.answer) as url:
        settings = Settings(redis_url=redis_url, module_services={"git": url}, registry_url=registry_url)
        stage = Stage(git, settings, redis)
        await stage.refresh()
        yield stage
