"""Calls of an MCP server past the SDK: each gets its own answer and progress, whatever else the server writes."""

import asyncio
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span
from pydantic_core import from_json

from toolfleet_modules.hosts.mcp.transports.call_lane import FIRST_ID, CallLane

pytestmark = pytest.mark.asyncio


class Server:
    """What a server sees of a lane, and has it read."""

    def __init__(self) -> None:
        self.read: list[dict[str, Any]] = []
        self.lane = CallLane(lambda written: self.read.append(from_json(written)))
        self.progress: list[tuple[float, float | None, str | None]] = []

    async def called(self) -> "asyncio.Task[dict[str, Any]]":
        """A call that the server has got."""
        task = asyncio.ensure_future(self.lane.call("owl", {"n": None}, lambda *told: self.progress.append(told)))
        await asyncio.sleep(0)
        return task

    def says(self, **message: Any) -> bool:
        return self.lane.take({"jsonrpc": "2.0", **message})


async def test_each_call_gets_its_own_answer() -> None:
    """In whatever order they come, and whether the server returns its number as it is or as text."""
    server = Server()
    one, other = await server.called(), await server.called()
    first, second = (each["id"] for each in server.read)

    assert server.says(id=str(second), result={"content": []})
    assert server.says(id=first, error={"code": 7, "message": "no owls", "data": {"n": 1}})
    assert await other == {"content": []}
    with pytest.raises(MCPError, match="no owls") as failed:
        await one
    assert (failed.value.code, failed.value.data) == (7, {"n": 1})
    assert server.read[0]["params"]["arguments"] == {"n": None}


async def test_an_answer_counts_once_and_for_its_call() -> None:
    """A second one, a late one and one for nobody are ignored; none of them is left to the SDK."""
    server = Server()
    call = await server.called()
    number = server.read[0]["id"]

    assert server.says(id=number + 1, result={"n": 0})
    assert server.says(id=number, result={"n": 1})
    assert server.says(id=number, result={"n": 2})
    assert server.says(id=number, error={"code": 1, "message": "no"})
    assert await call == {"n": 1}
    assert server.says(id=number, result={"n": 3})


@pytest.mark.parametrize(
    "message",
    [
        {"id": 1, "result": {}},  # the SDK's
        {"id": None, "error": {"code": 1, "message": "no"}},
        {"id": float(FIRST_ID), "result": {}},
        {"id": "१०७३७४१८२४", "result": {}},
        {"id": "9" * 5000, "result": {}},
        {"id": FIRST_ID, "result": 5},
        {"id": FIRST_ID, "error": {"code": True, "message": "no"}},
        {"id": FIRST_ID, "error": {"code": 1}},
        {"id": FIRST_ID},
        {"id": FIRST_ID, "result": {}, "jsonrpc": "1.0"},
        {"id": FIRST_ID, "method": "sampling/createMessage"},
        {"method": "notifications/progress", "params": {"progressToken": 1, "progress": 1}},
        {"method": "notifications/progress", "params": [FIRST_ID]},
    ],
)
async def test_what_is_no_answer_to_a_call_is_left_to_others(message: dict[str, Any]) -> None:
    """The call goes on waiting for its own."""
    server = Server()
    call = await server.called()

    assert not server.says(**message)
    assert server.says(id=FIRST_ID, result={"n": 1})
    assert await call == {"n": 1}


async def test_progress_is_told_as_far_as_it_is_any() -> None:
    """A number, of how much, and words; what is none of them is left out, and breaks nothing."""
    server = Server()
    call = await server.called()
    token = server.read[0]["params"]["_meta"]["progressToken"]
    for told in (
        {"progress": 1, "total": 4, "message": "egg 1"},
        {"progress": 2.5, "total": "four", "message": 5},
        {"progress": True},
        {"progress": 10**400},
        {"progress": 3, "total": 10**400},
        {},
    ):
        assert server.says(method="notifications/progress", params={"progressToken": token, **told})
    assert server.says(id=token, result={})
    await call

    assert server.progress == [(1.0, 4.0, "egg 1"), (2.5, None, None), (3.0, None, None)]


async def test_a_server_is_told_that_a_call_is_over() -> None:
    """Once, by the number of its request."""
    server = Server()
    call = await server.called()
    call.cancel()
    await asyncio.wait({call})

    asked, over = server.read
    assert (over["method"], over["params"]["requestId"]) == ("notifications/cancelled", asked["id"])
    assert call.cancelled()


async def test_an_end_is_that_of_all_calls() -> None:
    """Those at work, and those that come later; then nothing is written any more."""
    server = Server()
    calls = [await server.called(), await server.called()]
    cancelled = await server.called()
    server.lane.end()
    cancelled.cancel()
    calls.append(await server.called())
    await asyncio.wait({*calls, cancelled})

    assert [each.exception().code for each in calls] == [CONNECTION_CLOSED] * 3  # type: ignore[union-attr]  # all have failed
    assert len(server.read) == 3


async def test_a_trace_goes_with_the_call() -> None:
    """Where the host is traced, the server can say what it has done for which call."""
    server = Server()
    span = NonRecordingSpan(SpanContext(trace_id=7, span_id=9, is_remote=False, trace_flags=TraceFlags(1)))
    with use_span(span):
        call = await server.called()
    server.lane.end()
    await asyncio.wait({call})

    assert server.read[0]["params"]["_meta"]["traceparent"] == f"00-{7:032x}-{9:016x}-01"
    assert isinstance(call.exception(), MCPError)
