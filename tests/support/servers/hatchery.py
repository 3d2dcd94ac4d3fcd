"""A module that goes on with its calls by itself: a test says how they end, and sees who has asked for them."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from support.module_server import ModuleServer, Request

AT_WORK: dict[str, Any] = {"state": "running"}
HATCHED: dict[str, Any] = {"state": "done", "success": True, "result": "an owl"}


@dataclass
class Hatchery:
    """`answer`: what it says of every call that has begun, unless a `fault` comes first; then `asked` has the questions.

    `ends`: a call has hatched so many seconds after it has begun, if it was asked for once before. `poll_after`: when it wants to be asked. `begun` has
    the call ids.
    """

    server: ModuleServer = field(default_factory=lambda: ModuleServer("nest"))
    answer: dict[str, Any] = field(default_factory=lambda: AT_WORK)
    fault: int = 0
    ends: float | None = None
    poll_after: float | None = 0.2
    asked: list[Request] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)
    since: dict[str, float] = field(default_factory=dict)
    hangs: bool = False

    def start_anew(self) -> None:
        """Forget what was, for the next test: calls that still go on are not known any more."""
        self.answer, self.fault, self.ends, self.poll_after, self.hangs = AT_WORK, 0, None, 0.2, False
        self.asked, self.begun, self.since = [], [], {}
        self.server.forget()
        self.server.memory = None
        self.server.tools["nest.hatch"] = self.hatch

    def acceptance(self, tool: str) -> dict[str, Any]:
        """What it says of a call that begins."""
        self.begun.append(f"egg-{len(self.begun) + 1} ✓")
        self.since[self.begun[-1]] = time.monotonic()
        said = {"tool_name": tool, "accepted": True, "handle": self.begun[-1]}
        return said if self.poll_after is None else {**said, "poll_after_seconds": self.poll_after}

    async def hatch(self, request: Request) -> web.StreamResponse:
        return web.json_response(self.acceptance(request["tool_name"]))

    async def plainly(self, request: Request) -> web.StreamResponse:
        return web.json_response(self.acceptance(request["tool_name"]), status=202)

    async def in_lines(self, request: Request) -> web.StreamResponse:
        lines = '{"progress": 0.1, "message": "laid"}\n' + web.json_response(self.acceptance("nest.in_lines")).text  # type: ignore[operator] # it has a text
        return web.Response(text=lines, content_type="application/x-ndjson")

    async def quick(self, request: Request) -> dict[str, Any]:
        return {"success": True, "result": "here"}

    async def status(self, question: Request) -> dict[str, Any]:
        self.asked.append(question)
        if self.hangs:
            await asyncio.sleep(60)
        if self.fault:
            raise _fault(self.fault)
        if self.ends is None or len(self.asked) < 2 or time.monotonic() < self.since[question["handle"]] + self.ends:
            return self.answer
        return HATCHED

    def has_begun(self, count: int) -> bool:
        """Whether so many calls have."""
        return len(self.begun) >= count

    @property
    def cancelled(self) -> list[Request]:
        """The questions that said that nobody wants the call any more."""
        return [question for question in self.asked if question.get("cancel")]


def make_hatchery() -> Hatchery:
    """The module, to be served with `module_server.serve(hatchery.server)`."""
    hatchery = Hatchery()
    for tool in (hatchery.hatch, hatchery.plainly, hatchery.in_lines):
        hatchery.server.add(tool.__name__, tool, effect="once")
    hatchery.server.add("warm", hatchery.hatch, effect="read")
    hatchery.server.add("quick", hatchery.quick, effect="read")
    owl = {"type": "string", "maxLength": 10}
    hatchery.server.add("checked", hatchery.hatch, effect="once", output_schema=owl)
    hatchery.server.statuses = hatchery.status
    return hatchery


def _fault(status: int) -> web.HTTPException:
    return web.HTTPNotFound() if status == 404 else web.HTTPServiceUnavailable()
