"""Calls that end in their agent have an audit line as well: refused, too late, too many, or without a queue to go to."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from support.module_server import ModuleServer
from support.published_call import published
from support.servers.redis_faults import faulty_redis
from support.waiting import PATIENCE_SECONDS, wait_until, wait_until_equal
from toolfleet import Caller, Conversation, ToolCall, ToolFleet, ToolResult
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.servers import connection_factory
from toolfleet_registry.settings import Settings
from toolfleet_tasks.calls import audit_trail
from toolfleet_tasks.calls.audit_trail import AuditTrail
from toolfleet_tasks.ledger.audit import EVENT
from toolfleet_tasks.redis_connection import PipelinedConnection

KEY = Keys().audit
REFUSED = ToolResult.refused("owls.echo", "permission_denied", "no")


@pytest.fixture
async def fleet(owls: ModuleServer, redis_url: str) -> AsyncIterator[ToolFleet]:
    """Without workers; one caller may have one call under way."""
    settings = Settings(redis_url=redis_url, module_services={"owls": owls.url}, calls_per_caller=1)
    async with ToolFleet(settings=settings) as fleet:
        yield fleet


async def lines(redis: Redis) -> list[dict[str, Any]]:
    entries: Any = await redis.xrange(KEY)
    return [json.loads(entry["line"]) for _, entry in entries]


@pytest.mark.parametrize(
    ("call", "code", "decisions"),
    [
        (ToolCall(tool_name="owls.nothing"), "unknown_tool", {"published": "no"}),
        (ToolCall(tool_name="no name"), "invalid_tool_name", {"published": "no"}),
        (ToolCall(tool_name="owls.admin_only"), "permission_denied", {"permission": "denied", "published": "no"}),
        (ToolCall(tool_name="owls.echo", arguments=7), "invalid_arguments", {"published": "no"}),
    ],
)
async def test_a_call_that_is_refused_has_a_line(
    fleet: ToolFleet, redis: Redis, call: ToolCall, code: str, decisions: dict[str, str]
) -> None:
    """With the id that its result has, and without its arguments' digest: nobody knows what is sensitive in them."""
    result = await fleet.call(call, Caller(user_id="eve", permission="user", allowed_modules="*"))
    await wait_until_async(redis, 1)
    (line,) = await lines(redis)

    assert (line["call_id"], line["user_id"], line["permission"]) == (result.audit.call_id, "eve", "user")
    assert (line["outcome"], line["error_code"], line["effect_state"]) == ("refused", code, "none")
    assert line["decisions"] == decisions
    assert "arguments" not in line


async def test_a_line_names_the_conversation_and_the_agent(fleet: ToolFleet, redis: Redis) -> None:
    """Of a call that was refused as of one that was published; neither is a decision, and without them there are no such fields."""
    caller = Caller(user_id="eve", permission="user", allowed_modules="*", agent="production")
    where = Conversation(conversation_id="talk-1")
    await fleet.call(ToolCall(tool_name="owls.nothing"), caller, conversation=where)
    await fleet.call(
        ToolCall(tool_name="owls.echo"), caller.model_copy(update={"agent": None}), conversation=where, timeout=0
    )
    await fleet.call(ToolCall(tool_name="owls.nothing"), Caller())
    await wait_until_async(redis, 3)
    refused, late, plain = await lines(redis)

    assert (refused["conversation_id"], refused["agent"]) == ("talk-1", "production")
    assert (late["conversation_id"], "agent" in late) == ("talk-1", False)
    assert not {"conversation_id", "agent"} & plain.keys()
    assert all("conversation_id" not in line["decisions"] for line in (refused, late, plain))


async def test_calls_that_no_worker_begins_have_one_line_each(fleet: ToolFleet, redis: Redis, owner: Caller) -> None:
    """Over its share, expired while it waited, taken back while it waited, too late from the start."""
    waiting = await fleet.submit(ToolCall(tool_name="owls.echo"), owner, timeout=30)
    busy = await fleet.submit(ToolCall(tool_name="owls.echo"), owner)
    late = await fleet.call(ToolCall(tool_name="owls.echo"), owner, timeout=0)
    await waiting.cancel()
    ended = [await waiting.result(PATIENCE_SECONDS), await busy.result(PATIENCE_SECONDS), late]
    await wait_until_async(redis, 3)
    found = {line["call_id"]: line for line in await lines(redis)}

    assert [result.error_code for result in ended] == ["cancelled", "busy", "expired"]
    assert [found[result.audit.call_id]["error_code"] for result in ended if result.audit] == [
        "cancelled",
        "busy",
        "expired",
    ]
    assert {line["attempts"] for line in found.values()} == {0}
    assert all(line["arguments"].startswith("sha256:") for line in found.values())


async def test_lines_wait_while_redis_is_away(tmp_path: Path) -> None:
    """No result waits for them. When Redis is back they are written, each once."""
    with faulty_redis(tmp_path) as redis:
        line = PipelinedConnection(connection_factory(redis.url), name="agent")
        trail = AuditTrail(line, Settings(redis_url=redis.url))
        line.start()
        await line.connected()
        with redis.restarted():
            await wait_until(lambda: not line.is_connected, "the line has noticed")
            for number in range(3):
                call = published("owls.echo", call_id=f"call-{number}")
                assert trail.unpublished(call, REFUSED).audit.call_id
            assert redis.look is not None
        await wait_until(lambda: int(redis.look.xlen(KEY)) == 3, "the lines are there")
        await trail.settle()
        await line.aclose()

    assert trail.auditor.missed == 0


async def test_lines_that_are_lost_are_counted(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the latest thousand none is, nor does anything wait for a Redis that is not there."""
    monkeypatch.setattr(audit_trail, "_SETTLE_SECONDS", 0.01)
    line = PipelinedConnection(connection_factory("redis://127.0.0.1:1"), name="agent")
    trail = AuditTrail(line, Settings(redis_url=redis_url))
    with capture_logs() as logs:
        for number in range(1_010):
            trail.unpublished(published("owls.echo", call_id=f"call-{number}"), REFUSED)
        assert trail.auditor.missed == 10
        async with asyncio.timeout(PATIENCE_SECONDS):  # it never gets a connection
            await trail.settle()

    assert trail.auditor.missed == 1_010
    assert len([entry for entry in logs if entry["event"] == EVENT]) == 1_010, "the log has all of them"
    await line.aclose()


async def test_a_line_of_the_first_moment_is_not_lost(redis: Redis, redis_url: str) -> None:
    """An agent that makes one call and leaves: its line to Redis may not stand before it goes."""
    line = PipelinedConnection(connection_factory(redis_url), name="agent")
    trail = AuditTrail(line, Settings(redis_url=redis_url))
    line.start()
    trail.unpublished(published("owls.echo"), REFUSED)
    assert not line.is_connected
    await trail.settle()
    await line.aclose()

    assert (trail.auditor.missed, len(await lines(redis))) == (0, 1)


async def test_a_loops_first_call_without_redis_is_told(redis_url: str, owner: Caller) -> None:
    """There is no stream for its line; the log has it."""
    async with ToolFleet(settings=Settings(redis_url=redis_url)) as fleet:

        async def call() -> ToolResult:
            fleet._sessions.settings = Settings(redis_url="redis://127.0.0.1:1")
            return await fleet.call(ToolCall(tool_name="owls.echo"), owner, timeout=3)

        with capture_logs() as logs:
            result = await asyncio.to_thread(asyncio.run, call())

    (entry,) = [entry for entry in logs if entry["event"] == EVENT]
    assert (entry["call_id"], entry["user_id"]) == (result.audit.call_id, owner.user_id)
    assert "audit_not_written" in {entry["event"] for entry in logs}


async def test_a_replay_that_is_refused_has_a_line(fleet: ToolFleet, redis: Redis) -> None:
    """Its letter cannot be read, say; the line has the id that the result has."""
    await redis.hset("toolfleet:dead", "call-1", "nonsense")
    result = await fleet.dead_letters.replay("call-1")
    await wait_until_async(redis, 1)
    (line,) = await lines(redis)

    assert (line["call_id"], line["error_code"]) == (result.audit.call_id, "internal")


async def test_a_line_that_redis_refuses_is_counted(redis: Redis, redis_url: str) -> None:
    """Another's key stands there; the result is what it was."""
    await redis.set(KEY, "x")
    line = PipelinedConnection(connection_factory(redis_url), name="agent")
    trail = AuditTrail(line, Settings(redis_url=redis_url))
    line.start()
    await line.connected()
    result = trail.unpublished(published("owls.echo"), REFUSED)
    await trail.settle()
    await line.aclose()
    await redis.delete(KEY)

    assert (result.error_code, trail.auditor.missed) == ("permission_denied", 1)


async def wait_until_async(redis: Redis, count: int) -> None:
    """So many lines are there: nobody waits for them but a test."""
    await wait_until_equal(lambda: redis.xlen(KEY), count, "the lines are there")
