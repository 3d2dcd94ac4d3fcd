"""Calls of an MCP server past the SDK: each gets its own answer and progress, whatever else the server writes."""

import asyncio
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span
from pydantic_core import from_json

from toolfleet_modules.hosts.mcp.exchanges import Lost, Malformed
from toolfleet_modules.hosts.mcp.transport import FIRST_ID, CallLane, CallListener
from toolfleet_registry.contracts.call_context import LogLevel, LogMessage, LogSink

pytestmark = pytest.mark.asyncio


class Server:
    """What a server sees of a lane, and has it read."""

    def __init__(self) -> None:
        self.read: list[dict[str, Any]] = []
        self.stray: list[LogMessage] = []
        self.logged: list[tuple[str, LogMessage]] = []
        self.lane = CallLane(lambda written: self.read.append(from_json(written)), self.stray.append)
        self.progress: list[tuple[float, float | None, str | None]] = []

    async def called(self) -> "asyncio.Task[dict[str, Any]]":
        """A call that the server has got."""
        task = asyncio.ensure_future(
            self.lane.call("owl", {"n": None}, CallListener(lambda *told: self.progress.append(told)))
        )
        await asyncio.sleep(0)
        return task

    async def logging(self, owner: str, least: LogLevel | None = "info") -> "asyncio.Task[dict[str, Any]]":
        """A call of `owner`, who wants to hear what the server logs of it."""
        log = None if least is None else LogSink(least, lambda message: self.logged.append((owner, message)))
        task = asyncio.ensure_future(self.lane.call("owl", {}, CallListener(lambda *_: None, log, owner)))
        await asyncio.sleep(0)
        return task

    async def logs(self, data: Any, level: str = "info") -> bool:
        is_taken = self.says(method="notifications/message", params={"level": level, "data": data, "logger": "owl"})
        await asyncio.sleep(0)
        return is_taken

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
        {"id": FIRST_ID + 0.5, "result": {}},
        {"id": "१०७३७४१८२४", "result": {}},
        {"id": "9" * 5000, "result": {}},
        {"id": FIRST_ID, "method": "sampling/createMessage"},  # the server counts its own requests
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


@pytest.mark.parametrize(
    ("message", "end"),
    [
        ({"result": {"n": 1}, "jsonrpc": "1.0"}, {"n": 1}),
        ({"result": {"n": 1}, "id": float(FIRST_ID)}, {"n": 1}),
        ({"result": {"n": 1}, "error": None}, {"n": 1}),
        ({"result": {"n": 1}, "method": "tools/call"}, {"n": 1}),
        ({"result": {"n": 1}, "error": {}}, {"n": 1}),
        ({"result": {"n": 1}, "error": "boom"}, (MCPError, -32603, "boom")),
        ({"error": "boom"}, (MCPError, -32603, "boom")),
        ({"error": ["boom", 2]}, (MCPError, -32603, '["boom",2]')),
        ({"error": {}}, (MCPError, -32603, "{}")),
        ({"error": {"code": 1}}, (MCPError, 1, '{"code":1}')),
        ({"error": {"message": "boom"}}, (MCPError, -32603, "boom")),
        ({"error": {"code": True, "message": "boom"}}, (MCPError, -32603, "boom (true)")),
        ({"error": {"code": "E_BOOM", "message": "boom"}}, (MCPError, -32603, "boom (E_BOOM)")),
        ({"error": {"code": 2**70, "message": "boom"}}, (MCPError, -32603, f"boom ({2**70})")),
        ({"error": {"code": -32000, "message": "Connection closed"}}, (MCPError, -32000, "Connection closed")),
        ({"error": {"code": -31901, "message": "not sent"}}, (MCPError, -31901, "not sent")),
        ({"result": "ok"}, (Malformed, -32603, "its server's answer is none of the protocol: ok")),
        ({"result": None}, (Malformed, -32603, "its server's answer is none of the protocol: null")),
        ({"result": [1]}, (Malformed, -32603, "its server's answer is none of the protocol: [1]")),
        ({"said": "ok"}, (Malformed, -32603, "its server's answer is none of the protocol: ")),
    ],
)
async def test_an_id_of_a_call_ends_it(message: dict[str, Any], end: dict[str, Any] | tuple[type, int, str]) -> None:
    """Whatever else the message is; what can be read of it is the result or the error, with the server's words."""
    server = Server()
    call = await server.called()

    assert server.says(**{"id": FIRST_ID, **message})
    ended: object = (await asyncio.gather(call, return_exceptions=True))[0]

    if isinstance(end, dict):
        assert ended == end
    else:
        assert isinstance(ended, MCPError)
        assert (type(ended), ended.code) == end[:2]
        assert ended.message == end[2] or (end[2].endswith(": ") and "ok" in ended.message)


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

    assert [type(each.exception()) for each in calls] == [Lost] * 3
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


async def test_what_a_server_logs_is_of_the_one_call_that_there_is() -> None:
    """As grave as its caller wants it; what is no log message is nobody's."""
    server = Server()
    call = await server.logging("ada", "warning")

    assert await server.logs("quiet")
    assert await server.logs({"owls": 2}, "error")
    assert await server.logs("?", "deafening")
    assert server.says(method="notifications/message", params=None)

    server.says(id=server.read[0]["id"], result={})
    await call
    assert server.logged == [("ada", LogMessage(level="error", data={"owls": 2}, logger="owl"))]
    assert server.stray == []


async def test_where_two_calls_are_at_work_nobody_hears_what_is_logged() -> None:
    """It may be the other's. When one of them has ended, the other hears again."""
    server = Server()
    one, other = await server.logging("ada"), await server.logging("bob")

    await server.logs("whose?")
    server.says(id=server.read[0]["id"], result={})
    await one
    await server.logs("bob's")
    server.says(id=server.read[1]["id"], result={})
    await other
    await server.logs("too late")

    assert [(owner, message.data) for owner, message in server.logged] == [("bob", "bob's")]
    assert [message.data for message in server.stray] == ["whose?", "too late"]


async def test_a_call_whose_caller_does_not_want_it_hears_nothing() -> None:
    """Nor does anybody else."""
    server = Server()
    call = await server.logging("ada", None)

    await server.logs("hello?")
    server.says(id=server.read[0]["id"], result={})
    await call

    assert (server.logged, server.stray) == ([], [])


async def test_beside_another_request_nobody_hears_what_is_logged() -> None:
    """A prompt that another user asks for, say."""
    server = Server()
    call = await server.logging("ada")

    with server.lane.beside():
        await server.logs("whose?")
    await server.logs("ada's")
    server.says(id=server.read[0]["id"], result={})
    await call

    assert [message.data for _, message in server.logged] == ["ada's"]
    assert [message.data for message in server.stray] == ["whose?"]


async def test_a_cancelled_call_may_still_be_at_work_and_log() -> None:
    """No other user hears what is logged until the server has answered it; its own user does."""
    server = Server()
    left = await server.logging("ada")
    left.cancel()
    await asyncio.wait({left})

    other = await server.logging("bob")
    await server.logs("ada's secret")
    server.says(id=server.read[-1]["id"], result={})
    await other
    again = await server.logging("ada")
    await server.logs("ada's own")
    server.says(id=server.read[0]["id"], error={"code": 0, "message": "Request cancelled"})
    server.says(id=server.read[-1]["id"], result={})
    await again
    last = await server.logging("bob")
    await server.logs("bob's")
    server.says(id=server.read[-1]["id"], result={})
    await last

    assert [(owner, message.data) for owner, message in server.logged] == [("ada", "ada's own"), ("bob", "bob's")]
    assert [message.data for message in server.stray] == ["ada's secret"]
