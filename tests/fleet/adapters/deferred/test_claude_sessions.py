"""The hook by which a session of Claude's agent SDK defers calls: asked as Claude Code asks it. With the SDK itself: `tests/clients/test_claude.py`."""

from fleet.adapters.deferred.conftest import STATE, LongWork
from support.fleet import TestBed
from support.frameworks.claude_use import Use, use_of
from support.module_server import ModuleServer
from support.modules.works import Works
from support.servers.hatchery import Hatchery
from support.waiting import wait_until
from toolfleet import Caller, ToolFleet
from toolfleet.adapters.claude import FleetSession

DEFER = {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "defer"}}


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


async def test_a_job_is_started_once_though_its_tool_was_renamed(
    fleet: ToolFleet, ada: Caller, modules: tuple[ModuleServer, Hatchery, Works]
) -> None:
    """The session that is resumed, and the application, know the former name."""
    works, use = modules[2], use_of("works.begin")
    works.forget()
    before = list(works.server.definitions)
    session = FleetSession(fleet, ada, jobs={"works.begin": STATE})
    assert await use.asked_before(session) == DEFER
    known = await session.deferred(use)
    await wait_until(lambda: bool(works.pieces), "it has begun")
    works.server.tools["works.start"] = works.begin
    works.server.definitions[0] = {**before[0], "name": "works.start", "former_names": ["works.begin"]}
    try:
        await fleet.modules.refresh()
        assert await use.asked_before(session) == DEFER
        assert await session.deferred(use) == known
        works.pieces.update(dict.fromkeys(works.pieces, "completed"))
        assert await session.is_over(use)
        assert await use.asked_before(session) == {}
        assert "completed" in await use.made(session)
        assert len(works.pieces) == 1
    finally:
        works.server.definitions[:] = before
        await fleet.modules.refresh()
