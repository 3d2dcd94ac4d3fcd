"""The hook by which a session of Claude's agent SDK defers calls: asked as Claude Code asks it. With the SDK itself: `tests/clients/test_claude.py`."""

from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from mcp import Client

from fleet.adapters.deferred.conftest import LongWork
from support.fleet import TestBed
from support.module_server import ModuleServer
from support.modules.works import Works
from support.servers.hatchery import Hatchery
from support.waiting import wait_until
from toolfleet import Caller, ToolFleet
from toolfleet.adapters.claude import FleetSession

DEFER = {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "defer"}}


@dataclass
class Use:
    """A call as Claude Code says that it is deferred."""

    name: str
    id: str = field(default_factory=lambda: f"toolu_{uuid4().hex}")
    input: dict[str, Any] = field(default_factory=dict)

    async def asked_before(self, session: FleetSession) -> dict[str, Any]:
        """What the hook says."""
        given = {"hook_event_name": "PreToolUse", "tool_name": self.name, "tool_input": self.input}
        return await session.hook({**given, "tool_use_id": self.id}, self.id, {"signal": None})

    async def made(self, session: FleetSession) -> str:
        """What Claude is shown then."""
        meta: Any = {"claudecode/toolUseId": self.id}
        async with Client(session.server["instance"]) as client:
            return str(
                (await client.call_tool(self.name.removeprefix("mcp__toolfleet__"), self.input, meta=meta)).content
            )


def use_of(tool: str) -> Use:
    return Use(f"mcp__toolfleet__{tool.replace('.', '__')}")


async def test_a_session_is_deferred_until_its_call_is_over(
    bed: TestBed, fleet: ToolFleet, ada: Caller, work: LongWork
) -> None:
    """The session that is resumed runs the hook again, in another process, and then has the one result."""
    use = use_of(work.tool)
    async with ToolFleet(settings=bed.settings) as gone:
        session = FleetSession(gone, ada, **work.options)
        assert await use.asked_before(session) == DEFER
        known = await session.deferred(use)
    await wait_until(lambda: work.times() == 1, "it has begun")
    session = FleetSession(fleet, ada, **work.options)

    assert known is not None
    assert (known["kind"], known["toolfleet_tool"]) == (work.kind, work.tool)
    assert await use.asked_before(session) == DEFER
    assert not await session.is_over(use, wait=0)
    work.end()
    assert await session.is_over(use)
    assert await use.asked_before(session) == {}
    assert work.shown in await use.made(session)
    assert work.times() == 1


async def test_a_short_call_is_made_once(
    fleet: ToolFleet, ada: Caller, modules: tuple[ModuleServer, Hatchery, Works]
) -> None:
    """By the hook, which keeps its end for Claude Code's own call, also that of one that has failed; it has no say in other tools."""
    owls = modules[0]
    owls.forget()
    session = FleetSession(fleet, ada, defer_after=30)
    for method in ("echo", "fail"):
        use = use_of(f"owls.{method}")
        assert await use.asked_before(session) == {}
        assert ("I cannot." in await use.made(session)) == (method == "fail")
        assert len(owls.calls(method)) == 1
    assert await Use("Bash").asked_before(session) == {}
    assert await use_of("owls.nobody").asked_before(session) == {}
    assert await use_of("owls.echo").asked_before(FleetSession(fleet, ada)) == {}
    assert len(owls.calls("echo")) == 1
    assert session.matcher == "mcp__toolfleet__.*"
